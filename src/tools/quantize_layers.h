// The network over a calibration set, one layer at a time: what a layer's matrices read, with all
// earlier layers as they were written.
//
// Between layers only the residual streams of every token stay, in a file; weights and working
// memory of a layer are freed before the next one.  A layer has two halves, so that its experts can
// be rounded in between:
//   attend()        streams -> streams after the mixer, and the feed-forward's input rows
//   feed_forward()  those -> streams of the next layer
// Texts are computed one by one as prompts, in standard arithmetic.  The same files and weights
// give the same bytes for any number of threads.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "ops/backend.h"
#include "ops/linear.h"
#include "tools/calibration_pictures.h"
#include "tools/quantize_calibration.h"
#include "tools/row_file.h"

namespace percheron::tools {

// A checkpoint in which some matrices have been replaced by rounded ones.
class ReplacedWeights final : public model::WeightSource {
  public:
    explicit ReplacedWeights(checkpoint::Checkpoint& source) : source_(source) {}

    // `matrix` views memory that outlives this, or until clear().
    void replace(const std::string& stem, const ops::WeightMatrix& matrix) {
        replaced_[stem] = matrix;
    }
    void clear() { replaced_.clear(); }
    checkpoint::Checkpoint& original() { return source_; }

    bool has(std::string_view stem) const override { return source_.has(stem); }
    Result<ops::WeightMatrix> matrix(std::string_view stem, std::size_t n, std::size_t k) override;
    Status vector(std::string_view name, std::span<float> out) override {
        return source_.vector(name, out);
    }

  private:
    checkpoint::Checkpoint& source_;
    std::map<std::string, ops::WeightMatrix, std::less<>> replaced_;
};

// Called with a set of products before they are computed.
using ProductWatcher = std::function<void(std::span<const ops::Linear>)>;

// Places of the files in a folder.
struct LayerFiles {
    std::filesystem::path folder;
    // Streams in front of layer `index`; index layers(): behind the last.
    std::filesystem::path streams(std::size_t index) const;
    std::filesystem::path inputs() const;  // of the feed-forward being calibrated
};

class LayeredNetwork {
  public:
    // `texts` and `weights` outlive the object.  The MTP layer counts as layer layers().
    LayeredNetwork(const model::ModelConfig& config, ReplacedWeights& weights,
                   const std::vector<CalibrationText>& texts, LayerFiles files,
                   std::size_t threads);
    ~LayeredNetwork();

    std::size_t tokens() const { return tokens_; }

    // Writes the streams in front of layer 0.
    Status embed();

    // Loads layer `index` and computes its first half from the file of its streams.  `watcher`
    // sees the mixer's products.
    Status attend(std::size_t index, const ProductWatcher& watcher);

    // Rows the feed-forward of the attended layer reads: as many as tokens(), fewer for the MTP
    // layer, which has no row for the last token of a text.
    std::size_t input_rows() const { return input_rows_; }
    const RowFile& inputs() const { return *inputs_; }
    // The router of the attended layer; null for a dense one.
    const ops::ExpertsWeights* experts() const;

    // Takes the feed-forward's weights anew, then computes the second half.  Without `keep` nothing
    // is written: for watching.  The MTP layer's second half is never kept.
    Status feed_forward(const ProductWatcher& watcher, bool keep);

    // Frees what belongs to the attended layer.
    void leave();

  private:
    class Layer;

    // What the pictures' placeholders are embedded as; encoded on the first call.
    Result<const CalibrationPictures*> pictures();

    const model::ModelConfig& config_;
    ReplacedWeights& weights_;
    const std::vector<CalibrationText>& texts_;
    LayerFiles files_;
    std::size_t threads_;
    std::size_t tokens_ = 0;
    std::size_t input_rows_ = 0;
    std::optional<CalibrationPictures> pictures_;  // once they are needed
    std::unique_ptr<Layer> layer_;
    std::optional<RowFile> inputs_;
};

}  // namespace percheron::tools
