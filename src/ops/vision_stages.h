// The stages of the vision tower: rows of patches become one feature row a token of the picture.
//
// A tower walks over its picture in slices of rows, so that a large one never holds the machine for
// long: every stage below works on a slice, and no result depends on how the slices are cut.  Only
// attention needs the whole picture: its queries, keys and values (PatchHeads) are stored for all
// rows of a block before any row of that block attends.
//
//   embed_patches   z = W row + b
//   project_heads   heads of RMS(z; norm1), projected, normalised and turned (patch_attention.h)
//   finish_block    z += W_o attention + b;  n = RMS(z; norm2)
//                   z += down(silu(min(gate n, limit)) * clamp(up n, -limit, limit)), all biased
//   merge           n = RMS(z; post_norm); a token's merge^2 rows are neighbours;
//                   d = sum over them of W_d[:, :, dy, dx] n + b
//                   a = GELU(LayerNorm(W_p d; norm, bias, eps 1e-5))
//                   feature = down(silu(min(gate a, limit)) * clamp(up a, -limit, limit))
//
// Numerics: as the primitives it is made of: `standard` rounds every product's input to bf16.
#pragma once

#include <span>

#include "core/status.h"
#include "core/views.h"
#include "ops/backend.h"
#include "ops/patch_attention.h"
#include "ops/weight_matrix.h"

namespace percheron::ops {

struct VisionShape {
    std::size_t patch_values = 0;  // channels x frames x patch x patch
    std::size_t hidden = 0, heads = 0, intermediate = 0;
    std::size_t merge = 2;  // patches of a token's side
    std::size_t out_hidden = 0, projection = 0;
    float rms_eps = 1e-5f;        // q, k and post norm
    float block_rms_eps = 1e-5f;  // norm1 and norm2
    float swiglu_limit = 10.0f;
    float rope_theta = 10000.0f;

    std::size_t head_dim() const { return hidden / heads; }
    std::size_t merged() const { return merge * merge; }
};

struct BiasedMatrix {
    WeightMatrix matrix;
    const float* bias = nullptr;
};

struct VisionBlockWeights {
    const float* norm1 = nullptr;
    BiasedMatrix qkv;  // [3 H d, D]
    const float* query_norm = nullptr;
    const float* key_norm = nullptr;
    BiasedMatrix out;  // [D, H d]
    const float* norm2 = nullptr;
    BiasedMatrix gate, up;  // [I, D]
    BiasedMatrix down;      // [D, I]
};

struct VisionMergerWeights {
    const float* post_norm = nullptr;
    BiasedMatrix downsample;  // [O, D merge merge], k counts (channel, dy, dx)
    WeightMatrix projection;  // [O, O]
    const float* projection_norm = nullptr;
    const float* projection_norm_bias = nullptr;
    FeedForwardWeights feed_forward;  // [P, O], [O, P]
};

class VisionStages {
  public:
    virtual ~VisionStages() = default;

    // What prepare() reserves for slices of `rows` rows of pictures of at most `patches` patches.
    virtual Bytes working_bytes(const VisionShape& shape, std::size_t rows,
                                std::size_t patches) const = 0;
    virtual Status prepare(const VisionShape& shape, std::size_t rows, std::size_t patches) = 0;

    // The element type of PatchHeads under the backend's arithmetic.
    virtual DType heads_dtype() const = 0;

    // `patches` [R, patch_values] in host memory; z [R, D].
    virtual void embed_patches(const BiasedMatrix& weights, Rows<const float> patches,
                               Activations z) = 0;
    // z: rows [first, first + R) of the picture.
    virtual void project_heads(const VisionBlockWeights& weights,
                               std::span<const PatchPlace> places, std::size_t first, Activations z,
                               const PatchHeads& heads) = 0;
    virtual void finish_block(const VisionBlockWeights& weights, const PatchHeads& heads,
                              std::size_t first, Activations z) = 0;
    // z: [T merge^2, D]; features: [T, out_hidden] in host memory.
    virtual void merge(const VisionMergerWeights& weights, Activations z, Rows<float> features) = 0;
};

}  // namespace percheron::ops
