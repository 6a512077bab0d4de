#include "ops/composed_vision.h"

#include <cassert>

#include "ops/composed_scratch.h"

namespace percheron::ops {
namespace {

constexpr float layer_norm_eps = 1e-5f;
// Slices have many rows, like prompts.
constexpr NumericClass picture_class = NumericClass::prefill;

struct HeadsScratch {
    Rows<float> normed;     // [R, D]
    Rows<float> projected;  // [R, 3 D]
    static HeadsScratch lay_out(ScratchArena& arena, const VisionShape& shape, std::size_t rows) {
        HeadsScratch scratch;
        scratch.normed = arena.rows<float>(rows, shape.hidden);
        scratch.projected = arena.rows<float>(rows, 3 * shape.hidden);
        return scratch;
    }
};

struct BlockScratch {
    Rows<float> attended;  // [R, D]
    Rows<float> output;    // [R, D]
    Rows<float> normed;    // [R, D]
    Rows<float> gate, up;  // [R, I]
    static BlockScratch lay_out(ScratchArena& arena, const VisionShape& shape, std::size_t rows) {
        BlockScratch scratch;
        scratch.attended = arena.rows<float>(rows, shape.hidden);
        scratch.output = arena.rows<float>(rows, shape.hidden);
        scratch.normed = arena.rows<float>(rows, shape.hidden);
        scratch.gate = arena.rows<float>(rows, shape.intermediate);
        scratch.up = arena.rows<float>(rows, shape.intermediate);
        return scratch;
    }
};

struct MergeScratch {
    Rows<float> normed;     // [R, D]
    Rows<float> cells;      // [R / merge^2, D merge^2]
    Rows<float> merged;     // [R / merge^2, O]
    Rows<float> projected;  // [R / merge^2, O]
    Rows<float> gate, up;   // [R / merge^2, P]
    static MergeScratch lay_out(ScratchArena& arena, const VisionShape& shape, std::size_t rows) {
        const std::size_t tokens = rows / shape.merged();
        MergeScratch scratch;
        scratch.normed = arena.rows<float>(rows, shape.hidden);
        scratch.cells = arena.rows<float>(tokens, shape.hidden * shape.merged());
        scratch.merged = arena.rows<float>(tokens, shape.out_hidden);
        scratch.projected = arena.rows<float>(tokens, shape.out_hidden);
        scratch.gate = arena.rows<float>(tokens, shape.projection);
        scratch.up = arena.rows<float>(tokens, shape.projection);
        return scratch;
    }
};

void measure(ScratchArena& arena, const VisionShape& shape, std::size_t rows) {
    arena.restart();
    HeadsScratch::lay_out(arena, shape, rows);
    arena.restart();
    BlockScratch::lay_out(arena, shape, rows);
    arena.restart();
    MergeScratch::lay_out(arena, shape, rows);
}

}  // namespace

Bytes ComposedVision::working_bytes(const VisionShape& shape, std::size_t rows,
                                    std::size_t patches) const {
    ScratchArena arena;
    measure(arena, shape, rows);
    return arena.peak() + primitives_.vision_working_bytes(shape, rows, patches);
}

Status ComposedVision::prepare(const VisionShape& shape, std::size_t rows, std::size_t patches) {
    shape_ = shape;
    measure(scratch_, shape, rows);
    PERCHERON_TRY(scratch_.reserve());
    return primitives_.prepare_vision(shape, rows, patches);
}

DType ComposedVision::heads_dtype() const {
    return arithmetic_ == Arithmetic::fp32 ? DType::f32 : DType::bf16;
}

void ComposedVision::product(const WeightMatrix& weight, Rows<const float> input,
                             Rows<float> output) {
    assert(weight.k == input.columns && weight.n == output.columns && input.rows == output.rows);
    const Linear products[] = {{weight, input, output, arithmetic_, picture_class}};
    primitives_.linear(products);
}

void ComposedVision::biased(const BiasedMatrix& weight, Rows<const float> input, Rows<float> output,
                            Rows<const float> residual) {
    product(weight.matrix, input, output);
    primitives_.add_rows({output, weight.bias, residual, output});
}

void ComposedVision::embed_patches(const BiasedMatrix& weights, Rows<const float> patches,
                                   Activations z) {
    biased(weights, patches, float_rows(z));
}

void ComposedVision::project_heads(const VisionBlockWeights& weights,
                                   std::span<const PatchPlace> places, std::size_t first,
                                   Activations z, const PatchHeads& heads) {
    scratch_.restart();
    const HeadsScratch s = HeadsScratch::lay_out(scratch_, shape_, z.rows);
    primitives_.rms_norm({float_rows(z), weights.norm1, shape_.block_rms_eps, s.normed});
    biased(weights.qkv, s.normed, s.projected);
    primitives_.store_patch_heads({s.projected, weights.query_norm, weights.key_norm,
                                   shape_.rms_eps, shape_.rope_theta, places, first, heads});
}

void ComposedVision::finish_block(const VisionBlockWeights& weights, const PatchHeads& heads,
                                  std::size_t first, Activations z) {
    scratch_.restart();
    const BlockScratch s = BlockScratch::lay_out(scratch_, shape_, z.rows);
    const Rows<float> state = float_rows(z);
    primitives_.patch_attention({heads, first, s.attended});
    product(weights.out.matrix, s.attended, s.output);
    primitives_.add_rows({s.output, weights.out.bias, state, state});

    primitives_.rms_norm({state, weights.norm2, shape_.block_rms_eps, s.normed});
    const Linear in[] = {{weights.gate.matrix, s.normed, s.gate, arithmetic_, picture_class},
                         {weights.up.matrix, s.normed, s.up, arithmetic_, picture_class}};
    primitives_.linear(in);
    primitives_.add_rows({s.gate, weights.gate.bias, {}, s.gate});
    primitives_.add_rows({s.up, weights.up.bias, {}, s.up});
    primitives_.swiglu({s.gate, s.up, shape_.swiglu_limit, s.gate});
    product(weights.down.matrix, s.gate, s.output);
    primitives_.add_rows({s.output, weights.down.bias, state, state});
}

void ComposedVision::merge(const VisionMergerWeights& weights, Activations z,
                           Rows<float> features) {
    scratch_.restart();
    const MergeScratch s = MergeScratch::lay_out(scratch_, shape_, z.rows);
    primitives_.rms_norm({float_rows(z), weights.post_norm, shape_.rms_eps, s.normed});
    const std::size_t merged = shape_.merged();
    for (std::size_t token = 0; token < s.cells.rows; ++token) {
        float* const cell = s.cells.row(token);
        for (std::size_t part = 0; part < merged; ++part) {
            const float* const patch = s.normed.row(token * merged + part);
            for (std::size_t channel = 0; channel < shape_.hidden; ++channel) {
                cell[channel * merged + part] = patch[channel];
            }
        }
    }
    biased(weights.downsample, s.cells, s.merged);
    product(weights.projection, s.merged, s.projected);
    primitives_.layer_norm({s.projected, weights.projection_norm, weights.projection_norm_bias,
                            layer_norm_eps, s.projected});
    primitives_.gelu({s.projected, s.projected});
    const FeedForwardWeights& ffn = weights.feed_forward;
    const Linear in[] = {{ffn.gate, s.projected, s.gate, arithmetic_, picture_class},
                         {ffn.up, s.projected, s.up, arithmetic_, picture_class}};
    primitives_.linear(in);
    primitives_.swiglu({s.gate, s.up, shape_.swiglu_limit, s.gate});
    product(ffn.down, s.gate, features);
}

}  // namespace percheron::ops
