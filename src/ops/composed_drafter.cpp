#include "ops/composed_drafter.h"

#include <algorithm>
#include <limits>

#include "ops/composed_scratch.h"

namespace percheron::ops {
namespace {

struct ContextScratch {
    Rows<float> keys, values;  // [R, G d]
    static ContextScratch lay_out(ScratchArena& arena, const DrafterShape& shape,
                                  std::size_t rows) {
        ContextScratch scratch;
        scratch.keys = arena.rows<float>(rows, shape.kv_heads * shape.head_dim);
        scratch.values = arena.rows<float>(rows, shape.kv_heads * shape.head_dim);
        return scratch;
    }
};

struct AttentionScratch {
    Rows<float> normed, convolved;  // [R, D]
    Rows<float> gates;              // [R, 2 taps groups]
    Rows<float> query, attended;    // [R, H d]
    Rows<float> key, value;         // [R, G d]
    Rows<float> output;             // [R, D]
    static AttentionScratch lay_out(ScratchArena& arena, const DrafterShape& shape,
                                    std::size_t rows) {
        AttentionScratch scratch;
        scratch.normed = arena.rows<float>(rows, shape.hidden);
        scratch.convolved = arena.rows<float>(rows, shape.hidden);
        scratch.gates = arena.rows<float>(rows, 2 * shape.gates());
        scratch.query = arena.rows<float>(rows, shape.heads * shape.head_dim);
        scratch.attended = arena.rows<float>(rows, shape.heads * shape.head_dim);
        scratch.key = arena.rows<float>(rows, shape.kv_heads * shape.head_dim);
        scratch.value = arena.rows<float>(rows, shape.kv_heads * shape.head_dim);
        scratch.output = arena.rows<float>(rows, shape.hidden);
        return scratch;
    }
};

struct DrafterFeedForwardScratch {
    Rows<float> normed, convolved;  // [R, D]
    Rows<float> gates;              // [R, 2 taps groups]
    Rows<float> gate, up;           // [R, I]
    Rows<float> output;             // [R, D]
    static DrafterFeedForwardScratch lay_out(ScratchArena& arena, const DrafterShape& shape,
                                             std::size_t rows) {
        DrafterFeedForwardScratch scratch;
        scratch.normed = arena.rows<float>(rows, shape.hidden);
        scratch.convolved = arena.rows<float>(rows, shape.hidden);
        scratch.gates = arena.rows<float>(rows, 2 * shape.gates());
        scratch.gate = arena.rows<float>(rows, shape.intermediate);
        scratch.up = arena.rows<float>(rows, shape.intermediate);
        scratch.output = arena.rows<float>(rows, shape.hidden);
        return scratch;
    }
};

void measure(ScratchArena& angles, ScratchArena& scratch, const DrafterShape& shape) {
    angles.restart();
    angles.rows<float>(std::max(shape.context_rows, shape.block_rows), shape.head_dim);
    scratch.restart();
    scratch.rows<float>(shape.context_rows, shape.taps * shape.hidden);
    scratch.restart();
    ContextScratch::lay_out(scratch, shape, shape.context_rows);
    scratch.restart();
    AttentionScratch::lay_out(scratch, shape, shape.block_rows);
    scratch.restart();
    DrafterFeedForwardScratch::lay_out(scratch, shape, shape.block_rows);
}

}  // namespace

Bytes ComposedDrafter::working_bytes(const DrafterShape& shape) const {
    ScratchArena angles, scratch;
    measure(angles, scratch, shape);
    return angles.peak() + scratch.peak() + primitives_.drafter_working_bytes(shape);
}

Status ComposedDrafter::prepare(const DrafterShape& shape) {
    shape_ = shape;
    measure(angles_, scratch_, shape);
    PERCHERON_TRY(angles_.reserve());
    PERCHERON_TRY(scratch_.reserve());
    return primitives_.prepare_drafter(shape);
}

Linear ComposedDrafter::product(const WeightMatrix& weight, Rows<const float> input,
                                Rows<float> output, NumericClass numeric_class) const {
    return {weight, input, output, arithmetic_, numeric_class};
}

void ComposedDrafter::context_features(const WeightMatrix& fusion, const float* norm,
                                       std::span<const Activations> taps,
                                       std::span<const std::uint32_t> tap_rows,
                                       std::span<const DraftRows> rows, NumericClass numeric_class,
                                       Activations c) {
    scratch_.restart();
    const std::size_t width = shape_.hidden;
    const Rows<float> joined = scratch_.rows<float>(tap_rows.size(), taps.size() * width);
    for (std::size_t row = 0; row < tap_rows.size(); ++row) {
        for (std::size_t tap = 0; tap < taps.size(); ++tap) {
            std::copy_n(float_rows(taps[tap]).row(tap_rows[row]), width,
                        joined.row(row) + tap * width);
        }
    }
    const Rows<float> out = float_rows(c);
    const Linear products[] = {product(fusion, joined, out, numeric_class)};
    primitives_.linear(products);
    primitives_.rms_norm({out, norm, shape_.rms_eps, out});
    angles_.restart();
    primitives_.rope_angles(
        {rows, shape_.rope_theta, angles_.rows<float>(tap_rows.size(), shape_.head_dim)});
}

void ComposedDrafter::store_context(const DrafterLayerWeights& layer, const ContextPages& pages,
                                    std::span<const DraftRows> rows, NumericClass numeric_class,
                                    Activations c) {
    scratch_.restart();
    const ContextScratch s = ContextScratch::lay_out(scratch_, shape_, c.rows);
    const Rows<const float> input = float_rows(c);
    const Linear products[] = {product(layer.key, input, s.keys, numeric_class),
                               product(layer.value, input, s.values, numeric_class)};
    primitives_.linear(products);
    angles_.restart();
    const Rows<const float> angles = angles_.rows<float>(c.rows, shape_.head_dim);
    primitives_.rotate_heads(
        {s.keys, shape_.head_dim, layer.key_norm, shape_.rms_eps, angles, s.keys});
    primitives_.store_context({rows, s.keys, s.values, pages});
}

void ComposedDrafter::embed_blocks(const WeightMatrix& embedding, std::span<const DraftRows> blocks,
                                   std::span<const TokenId> tokens, const float* mask, float scale,
                                   Activations x) {
    const Rows<float> out = float_rows(x);
    for (const DraftRows& block : blocks) {
        for (std::uint32_t i = 0; i < block.row_count; ++i) {
            const std::uint32_t row = block.first_row + i;
            float* const values = out.row(row);
            if (i > 0 && mask != nullptr) {
                std::copy_n(mask, out.columns, values);
            } else {
                dequantise_row(embedding, static_cast<std::size_t>(to_int(tokens[row])), values);
            }
            for (std::size_t c = 0; scale != 1.0f && c < out.columns; ++c) {
                values[c] *= scale;
            }
        }
    }
    angles_.restart();
    primitives_.rope_angles(
        {blocks, shape_.rope_theta, angles_.rows<float>(x.rows, shape_.head_dim)});
}

Rows<const float> ComposedDrafter::convolved(const BlockConvWeights& conv,
                                             std::span<const DraftRows> blocks,
                                             Rows<const float> normed, Rows<float> gates,
                                             Rows<float> out) {
    if (conv.base == nullptr) return normed;
    const Linear products[] = {product(conv.gates, normed, gates)};
    primitives_.linear(products);
    primitives_.block_conv({blocks, normed, conv.base, gates.column_slice(0, shape_.gates()),
                            shape_.conv_taps, shape_.conv_width, false, out});
    return out;
}

void ComposedDrafter::add_output(const BlockConvWeights& conv, std::span<const DraftRows> blocks,
                                 Rows<const float> y, Rows<const float> gates, Rows<float> x) {
    if (conv.base == nullptr) {
        primitives_.add_rows({y, nullptr, x, x});
        return;
    }
    primitives_.block_conv({blocks, y, conv.base + shape_.conv_taps * shape_.hidden,
                            gates.column_slice(shape_.gates(), shape_.gates()), shape_.conv_taps,
                            shape_.conv_width, true, x});
}

void ComposedDrafter::block_attention(const DrafterLayerWeights& layer, const ContextPages& pages,
                                      std::span<const DraftRows> blocks, Activations x) {
    scratch_.restart();
    const AttentionScratch s = AttentionScratch::lay_out(scratch_, shape_, x.rows);
    primitives_.rms_norm({float_rows(x), layer.input_norm, shape_.rms_eps, s.normed});
    const Rows<const float> input =
        convolved(layer.attention_conv, blocks, s.normed, s.gates, s.convolved);
    const Linear projections[] = {product(layer.query, input, s.query),
                                  product(layer.key, input, s.key),
                                  product(layer.value, input, s.value)};
    primitives_.linear(projections);
    angles_.restart();
    const Rows<const float> angles = angles_.rows<float>(x.rows, shape_.head_dim);
    const std::size_t dim = shape_.head_dim;
    primitives_.rotate_heads({s.query, dim, layer.query_norm, shape_.rms_eps, angles, s.query});
    primitives_.rotate_heads({s.key, dim, layer.key_norm, shape_.rms_eps, angles, s.key});
    primitives_.block_attention(
        {blocks, s.query, s.key, s.value, pages, layer.window, arithmetic_, s.attended});
    const Linear out[] = {product(layer.out, s.attended, s.output)};
    primitives_.linear(out);
    add_output(layer.attention_conv, blocks, s.output, s.gates, float_rows(x));
}

void ComposedDrafter::block_feed_forward(const DrafterLayerWeights& layer,
                                         std::span<const DraftRows> blocks, Activations x) {
    scratch_.restart();
    const DrafterFeedForwardScratch s =
        DrafterFeedForwardScratch::lay_out(scratch_, shape_, x.rows);
    primitives_.rms_norm({float_rows(x), layer.post_attention_norm, shape_.rms_eps, s.normed});
    const Rows<const float> input =
        convolved(layer.feed_forward_conv, blocks, s.normed, s.gates, s.convolved);
    const Linear in[] = {product(layer.feed_forward.gate, input, s.gate),
                         product(layer.feed_forward.up, input, s.up)};
    primitives_.linear(in);
    primitives_.swiglu({s.gate, s.up, std::numeric_limits<float>::infinity(), s.gate});
    const Linear out[] = {product(layer.feed_forward.down, s.gate, s.output)};
    primitives_.linear(out);
    add_output(layer.feed_forward_conv, blocks, s.output, s.gates, float_rows(x));
}

void ComposedDrafter::block_output(const float* norm, Activations x, Activations hidden) {
    primitives_.rms_norm({float_rows(x), norm, shape_.rms_eps, float_rows(hidden)});
}

void ComposedDrafter::project(const WeightMatrix& weight, Activations hidden, Activations out) {
    const Linear products[] = {product(weight, float_rows(hidden), float_rows(out))};
    primitives_.linear(products);
}

}  // namespace percheron::ops
