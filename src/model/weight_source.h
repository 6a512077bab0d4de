// Where a network's weights come from: a checkpoint on disk (src/checkpoint) or a generator
// (`synth:`).  The network asks by the names of MODEL.md section 3.1, written with the
// `model.language_model.` prefix; the source knows other spellings of the same name.
#pragma once

#include <span>
#include <string_view>

#include "core/dtype.h"
#include "core/status.h"
#include "ops/backend.h"
#include "ops/expert_store.h"
#include "ops/weight_matrix.h"

namespace percheron::model {

class WeightSource {
  public:
    virtual ~WeightSource() = default;

    // Whether any tensor of this stem is there: "....q_proj" finds q_proj.weight, .weight_packed, …
    virtual bool has(std::string_view stem) const = 0;

    // The matrix of a stem, [n, k], in whatever format is stored, its parts gathered from any
    // shard. `stem` has no ".weight"; a tensor stored under the bare stem
    // (index_kpool_compress_gate) is found too.  The view points into the source's memory and lives
    // as long as the source. Errors: not_found, corrupt (shape or scale mismatch, named),
    // unsupported (format).
    virtual Result<ops::WeightMatrix> matrix(std::string_view stem, std::size_t n,
                                             std::size_t k) = 0;

    // A small tensor by its full name, stored as F32 or BF16, widened to float into `out`, whose
    // size must equal the element count.
    virtual Status vector(std::string_view name, std::span<float> out) = 0;

    // Takes over the routed experts of the layer with this prefix, as matrix() gave them, if not
    // all of them are to lie in memory.  Errors: unsupported.
    virtual Result<ops::StreamedExperts> stream(
        std::string_view /*prefix*/, std::span<const ops::FeedForwardWeights> /*experts*/) {
        return ops::StreamedExperts{};
    }
};

}  // namespace percheron::model
