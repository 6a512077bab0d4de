// The stages of a block drafter (DFlash, DFlash2): a small network that names several tokens in one
// pass from the trunk's inner rows.
//
//   context_features   c_t = RMS(W [tap_1(t); ...; tap_n(t)]; norm): all that is known of a
//   position store_context      every layer's keys k = rope(RMS_head(W_k c)) and values v = W_v c,
//   kept embed_blocks       x = E[token] scale; places to be named: the mask vector, or E's row of
//   the
//                      mask token where there is none
//   block_attention    n = RMS(x; input_norm);                gates = W_g n  [side, tap, group]
//                      n' = conv(n; side 0);   q, k = rope(RMS_head(W_q,k n')),  v = W_v n'
//                      x += conv(W_o attention(q; context, k, v); side 1)
//   block_feed_forward m = RMS(x; post_attention_norm);       gates = W_g m
//                      x += conv(W_down(silu(W_gate m') * (W_up m')); side 1),  m' = conv(m; side
//                      0)
//   block_output       hidden = RMS(x; norm)
//   project            a plain product of hidden rows
// A layer without convolutions (plain DFlash) leaves conv out.  ops/block_drafting.h has the
// formulas of conv, rope and attention.
//
// context_features and embed_blocks note the rows' positions for the stages behind them, which must
// be called with the same rows.  All run inside Backend::run().
// Numerics: products as `Linear`; everything else fp32.
#pragma once

#include <cstdint>
#include <span>

#include "ops/backend.h"
#include "ops/block_drafting.h"

namespace percheron::ops {

struct BlockConvWeights {
    const float* base = nullptr;  // [2 sides, taps, D]; null: there is no convolution
    WeightMatrix gates;           // [2 * taps * D / width, D]
};

struct DrafterLayerWeights {
    const float* input_norm = nullptr;
    WeightMatrix query;                 // [H * d, D]
    WeightMatrix key, value;            // [G * d, D]
    const float* query_norm = nullptr;  // [d]
    const float* key_norm = nullptr;    // [d]
    WeightMatrix out;                   // [D, H * d]
    const float* post_attention_norm = nullptr;
    FeedForwardWeights feed_forward;
    BlockConvWeights attention_conv;
    BlockConvWeights feed_forward_conv;
    std::uint32_t window = 0;  // 0: all of the context is seen
};

struct DrafterShape {
    std::size_t hidden = 0;
    std::size_t taps = 0;  // of the trunk
    std::size_t heads = 0;
    std::size_t kv_heads = 0;
    std::size_t head_dim = 0;
    std::size_t intermediate = 0;
    std::size_t conv_taps = 0;  // 0: no convolutions
    std::size_t conv_width = 1;
    std::size_t rank = 0;  // of the selector; 0: none
    float rms_eps = 1e-6f;
    float rope_theta = 10000.0f;
    std::size_t context_rows = 0;  // of a pass at most
    std::size_t block_rows = 0;    // over the blocks of a pass at most
    std::size_t block = 0;         // of one block at most

    std::size_t gates() const { return conv_taps * (hidden / conv_width); }  // of one side
};

class DrafterStages {
  public:
    virtual ~DrafterStages() = default;

    virtual Bytes working_bytes(const DrafterShape& shape) const = 0;
    // Called once, after the weights were placed.
    virtual Status prepare(const DrafterShape& shape) = 0;

    // c[i] from row tap_rows[i] of every tap.
    virtual void context_features(const WeightMatrix& fusion, const float* norm,
                                  std::span<const Activations> taps,
                                  std::span<const std::uint32_t> tap_rows,
                                  std::span<const DraftRows> rows, NumericClass numeric_class,
                                  Activations c) = 0;
    virtual void store_context(const DrafterLayerWeights& layer, const ContextPages& pages,
                               std::span<const DraftRows> rows, NumericClass numeric_class,
                               Activations c) = 0;

    // tokens: one a row; `mask` null: none.
    virtual void embed_blocks(const WeightMatrix& embedding, std::span<const DraftRows> blocks,
                              std::span<const TokenId> tokens, const float* mask, float scale,
                              Activations x) = 0;
    virtual void block_attention(const DrafterLayerWeights& layer, const ContextPages& pages,
                                 std::span<const DraftRows> blocks, Activations x) = 0;
    virtual void block_feed_forward(const DrafterLayerWeights& layer,
                                    std::span<const DraftRows> blocks, Activations x) = 0;
    virtual void block_output(const float* norm, Activations x, Activations hidden) = 0;
    virtual void project(const WeightMatrix& weight, Activations hidden, Activations out) = 0;
};

}  // namespace percheron::ops
