// Attention without positions over cached latents, in the absorbed form: one shared key-value
// vector of `latent` values a token serves all H heads.  W_uk[h] [query_key_dim, latent] and
// W_uv[h] [value_dim, latent] are the row blocks of kv_b: per head the keys' rows, then the
// values'.
//
// absorb_queries:    absorbed_h = W_uk[h]^T q_h                                      [latent]
// latent_attention:  s_i = (absorbed_h . c(p_i)) * query_key_dim^-1/2, over the selected positions
//                    p_0 < p_1 < ...;  read_h = sum_i softmax(s)_i c(p_i)            [latent]
// expand_values:     out_h = W_uv[h] read_h                                          [value_dim]
//
// store_latents writes the rows' own latents first, so every selected latent is read from the
// cache.
//
// latent_attention works in splits of attention_split selected tokens, in order: each split keeps
// its maximum, its sum of exponentials and its unnormalised read; the splits are then joined in
// order by rescaling to the common maximum.  The cut depends on the selection alone.
//
// Shapes:   query [R, H * query_key_dim]; absorbed, read [R, H * latent]; output [R, H *
// value_dim];
//           latents to store [R, latent]; positions and counts as select_tokens leaves them.
// Numerics: `standard` rounds to bf16 what enters a product: q_h, absorbed_h, read_h.  Latents are
//           read as stored (latent_dtype, stored_rows.h).  Scores, softmax and sums are fp32 (an
//           oracle may sum wider).  A row's bits depend on its own sequence and selection alone.
// Effects:  store_latents writes the pages; the others their output.  Nothing overlaps.
#pragma once

#include <cstdint>
#include <span>

#include "core/views.h"
#include "ops/batch.h"
#include "ops/cache_views.h"
#include "ops/weight_matrix.h"

namespace percheron::ops {

inline constexpr std::size_t attention_split = 256;

struct StoreLatents {
    Rows<const float> latents;
    LatentPages pages;
    const RowBatch* batch = nullptr;
};

// How kv_b is cut into heads.
struct LatentHeads {
    std::size_t heads = 0;
    std::size_t query_key_dim = 0;
    std::size_t value_dim = 0;
    std::size_t latent = 0;
};

struct AbsorbQueries {
    LatentHeads shape;
    WeightMatrix kv_b;
    Rows<const float> query;
    Arithmetic arithmetic = Arithmetic::standard;
    Rows<float> absorbed;
    NumericClass numeric_class = NumericClass::decode;
};

struct LatentAttention {
    LatentHeads shape;
    Rows<const float> absorbed;
    Rows<const std::uint32_t> positions;
    std::span<const std::uint32_t> counts;
    LatentPages pages;
    const RowBatch* batch = nullptr;
    Arithmetic arithmetic = Arithmetic::standard;
    Rows<float> read;
};

struct ExpandValues {
    LatentHeads shape;
    WeightMatrix kv_b;
    Rows<const float> read;
    Arithmetic arithmetic = Arithmetic::standard;
    Rows<float> output;
    NumericClass numeric_class = NumericClass::decode;
};

}  // namespace percheron::ops
