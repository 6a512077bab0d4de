// The vision tower: patches of a picture become one feature row a token, to stand in the place of
// the embedding of an image placeholder.
//
//   z = W_pe patch + b
//   every block:  z += Attention(RMS(z; norm1));  z += MLP(RMS(z; norm2))
//   feature = merger of the 2 x 2 patches of a cell of RMS(z; post_layernorm)
//
// (formulas in ops/vision_stages.h).  A picture is encoded in slices, each a bounded piece of work,
// so that whoever drives the tower can do other things between them; how it is sliced changes no
// bit of the features.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "core/status.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "ops/backend.h"

namespace percheron::model {

struct VisionOptions {
    std::size_t max_tokens = 8000;  // of one picture
    std::size_t slice_rows = 256;   // patches of a slice at most; a multiple of merge^2
};

// A picture as a grid of patches, whose rows are written when they are needed.
struct PatchGrid {
    std::size_t height = 0, width = 0;  // patches, multiples of `merge`
    // Rows [first, first + count), cell by cell and inside a cell row by row, each
    // [channel][frame][y][x], into out [count][channels x frames x patch^2].
    std::function<void(std::size_t first, std::size_t count, std::span<float> out)> rows;
};

class VisionTower {
  public:
    // What load() will ask for beside the weights.  0 for a backend without the stages.
    static Bytes memory(const ModelConfig& config, const ops::Backend& backend,
                        const VisionOptions& options);

    // Asks the source for every tensor below model.visual.
    // Errors: the source's; unsupported (a shape the stages do not compute, a backend without
    // them); out_of_memory.
    static Result<std::unique_ptr<VisionTower>> load(const ModelConfig& config,
                                                     WeightSource& weights, ops::Backend& backend,
                                                     const VisionOptions& options);
    virtual ~VisionTower() = default;

    virtual const VisionConfig& config() const = 0;
    std::size_t tokens_of(const PatchGrid& grid) const {
        return grid.height * grid.width / (config().merge * config().merge);
    }

    // Starts a picture, dropping one that is half done.  advance() calls grid.rows and writes
    // `features` [tokens][out_hidden], host memory that outlives the encoding.
    // Errors: invalid_argument (sides that are no multiple of merge, more tokens than max_tokens,
    // features of another size).
    virtual Status begin(PatchGrid grid, std::span<float> features) = 0;

    // Computes the next slice; true once the features are complete.
    virtual bool advance() = 0;
};

}  // namespace percheron::model
