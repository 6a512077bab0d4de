#include "engine/image_queue.h"

#include <set>

#include "engine/picture_grid.h"

namespace percheron::engine {

void ImageQueue::add(std::unique_ptr<Sequence> sequence) {
    insert_in_order(waiting_, std::move(sequence));
    for (std::size_t i = 1; i < waiting_.size(); ++i) {
        for (SequenceImage& image : waiting_[i]->images) {
            image.features.reset();
        }
    }
}

// Gives a sequence what is there already; the first image that is not, or null.
SequenceImage* ImageQueue::next_missing(Sequence& sequence) {
    for (SequenceImage& image : sequence.images) {
        if (image.features) continue;
        image.features = features_.find(image.place.content_hash);
        if (!image.features) return &image;
        ++reused_;
    }
    return nullptr;
}

Status ImageQueue::begin(const PromptImage& image) {
    const model::VisionConfig& config = tower_->config();
    model::PatchGrid grid = picture_grid(image, config);
    encoding_.emplace();
    encoding_->hash = image.content_hash;
    encoding_->rows.resize(tower_->tokens_of(grid) * config.out_hidden);
    return tower_->begin(std::move(grid), encoding_->rows);
}

void ImageQueue::advance() {
    while (!waiting_.empty()) {
        Sequence& first = *waiting_.front();
        SequenceImage* const missing = next_missing(first);
        if (missing == nullptr) {
            ready_.push_back(std::move(waiting_.front()));
            waiting_.erase(waiting_.begin());
            continue;
        }
        const PromptImage& image = missing->place;
        if (!encoding_ || encoding_->hash != image.content_hash) {
            encoding_.reset();
            const Bytes bytes =
                std::uint64_t{image.count} * tower_->config().out_hidden * sizeof(float);
            // What stands in the way belongs to sequences that run, and ends with them.
            if (!features_.make_room(bytes)) return;
            if (Status status = begin(image); !status.ok()) {
                encoding_.reset();
                failure_ = {&first, status.error()};
                return;
            }
        }
        if (!tower_->advance()) return;
        missing->features = features_.add(encoding_->hash, std::move(encoding_->rows));
        encoding_.reset();
        ++encoded_;
        if (next_missing(first) != nullptr) return;
    }
}

std::unique_ptr<Sequence> ImageQueue::remove(const Sequence& sequence) {
    if (failure_ && failure_->first == &sequence) failure_.reset();
    std::unique_ptr<Sequence> taken = take_from(waiting_, sequence);
    // An image that nobody waits for any more is not finished.
    if (waiting_.empty()) encoding_.reset();
    return taken;
}

Bytes feature_bytes(const std::vector<PromptImage>& images, std::size_t hidden) {
    Bytes bytes = 0;
    std::set<ImageHash> counted;
    for (const PromptImage& image : images) {
        if (!counted.insert(image.content_hash).second) continue;
        bytes += std::uint64_t{image.count} * hidden * sizeof(float);
    }
    return bytes;
}

}  // namespace percheron::engine
