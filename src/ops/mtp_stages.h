// The stages that only the MTP layer has.  The layer is single-stream: instead of hyper-connections
// it has one residual x, and its mixer and feed-forward are the trunk's sparse_mixer and moe_ffn.
//
//   mtp_input       e = RMS(E[token]; embedding_norm), zeros at position 0
//                   h = RMS(hidden[hidden_rows[r]]; hidden_norm)
//                   x = W [e; h];  normed = RMS(x; input_norm)
//   residual_turn   x = x + y;  normed = RMS(x; norm)
//   sparse_caches   what sparse_mixer(normed) writes, with the same bits, and nothing else:
//   latents,
//                   tails and completed pools of rows whose output nobody reads
//
// Row t of a batch stands at position t of its sequence: its token is the one at t + 1 (an
// override's features where that is an image placeholder), `hidden` the trunk's final normed row of
// t, or the layer's own output of the step before.  A batch may leave out rows of `hidden`: row r
// reads row hidden_rows[r] of it.
//
// Shapes:   hidden [any number, D]; hidden_rows [R]; x, y, normed [R, D]; W [D, 2 D], the
// embedding's half first. Numerics: the product as `Linear`; everything else fp32. Effects:  x and
// normed are written; hidden may be the same rows as normed, nothing else overlaps.
#pragma once

#include <cstdint>
#include <span>

#include "ops/backend.h"

namespace percheron::ops {

struct MtpWeights {
    const float* embedding_norm = nullptr;  // enorm
    const float* hidden_norm = nullptr;     // hnorm
    WeightMatrix projection;                // eh_proj
    const float* input_norm = nullptr;
    SparseAttentionWeights attention;
    const float* post_attention_norm = nullptr;
    ExpertsWeights experts;
    const float* output_norm = nullptr;  // shared_head.norm
};

class MtpStages {
  public:
    virtual ~MtpStages() = default;
    virtual void mtp_input(const MtpWeights& weights, const WeightMatrix& embedding,
                           const RowBatch& batch, Activations hidden,
                           std::span<const std::uint32_t> hidden_rows, Activations x,
                           Activations normed) = 0;
    virtual void residual_turn(const float* norm, Activations y, Activations x,
                               Activations normed) = 0;
    virtual void sparse_caches(const SparseAttentionWeights& weights, const LatentPages& pages,
                               const RowBatch& batch, Activations normed) = 0;
};

}  // namespace percheron::ops
