// Sequences whose prompts hold images, until the images' feature rows are there.
//
// Encoding is work of its own beside the steps: the engine asks for one slice between two steps, so
// that a large image never stands in the way of those who run.  The first in line is served first;
// it alone holds rows here, so that two who wait can never keep each other out of the budget.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/status.h"
#include "engine/image_features.h"
#include "engine/sequence_order.h"
#include "model/vision_tower.h"

namespace percheron::engine {

class ImageQueue {
  public:
    // `tower` null: no sequence with images ever comes.
    ImageQueue(model::VisionTower* tower, Bytes budget) : tower_(tower), features_(budget) {}

    void add(std::unique_ptr<Sequence> sequence);

    // One slice of the tower at most.  What is complete after it waits in ready().
    void advance();

    // Sequences with all their rows; the caller takes them out.
    Sequences& ready() { return ready_; }
    // A sequence whose image cannot be encoded, and why; still in the queue.
    std::optional<std::pair<Sequence*, Error>> take_failure() {
        return std::exchange(failure_, std::nullopt);
    }

    // Null: it is not here.
    std::unique_ptr<Sequence> remove(const Sequence& sequence);
    const Sequences& waiting() const { return waiting_; }

    std::uint64_t encoded() const { return encoded_; }  // images, since the start
    std::uint64_t reused() const { return reused_; }    // images whose rows were there already

  private:
    struct Encoding {
        ImageHash hash{};
        std::vector<float> rows;
    };

    SequenceImage* next_missing(Sequence& sequence);
    Status begin(const PromptImage& image);

    model::VisionTower* tower_;
    ImageFeatures features_;
    Sequences waiting_, ready_;
    std::optional<Encoding> encoding_;
    std::optional<std::pair<Sequence*, Error>> failure_;
    std::uint64_t encoded_ = 0;
    std::uint64_t reused_ = 0;
};

// The most bytes of feature rows that a prompt's images need at once.
Bytes feature_bytes(const std::vector<PromptImage>& images, std::size_t hidden);

}  // namespace percheron::engine
