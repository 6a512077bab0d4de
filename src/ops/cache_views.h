// One layer's share of the caches, as the stages see it.  src/cache owns the memory (from the
// backend's arena) and hands these out; strides let the owner choose the lay-out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace percheron::ops {

// KDA layer: everything mutable is indexed by request slot.
//
//   state  [slot][head][key dim][value dim]            fp32
//   conv   [slot][position % ring][q | k | v channels] fp32 raw projections, before convolution
//   kept   [slot][position % ring][kept_row]           fp32 rows not yet folded into the state:
//          normalised key [head][key dim], value [head][value dim], log decay g [head][key dim],
//          step size beta [head]
//
// ring >= 3 + the largest number of rows in [state_position, first_position + row_count) of a step
// that does not commit them all.  conv of positions before 0 is zero by definition, not by content.
struct KdaSlots {
    float* state = nullptr;
    std::size_t state_stride = 0;  // floats from slot to slot
    float* conv = nullptr;
    std::size_t conv_stride = 0;
    float* kept = nullptr;
    std::size_t kept_stride = 0;
    std::uint32_t ring = 4;
};

constexpr std::size_t kda_kept_row(std::size_t heads, std::size_t dim) {
    return heads * (3 * dim + 1);
}

// Sparse-attention layer (the MTP layer's included).
//
//   latents [page][64][latent]                  latent_dtype: bf16, f32 (fp32 arithmetic), f8_e4m3
//   pooled  [page][64 / pool][index dim]        pooled_dtype: as latent_dtype
//     of f8_e4m3 with the rows' scales behind the values (stored_rows.h)
//   tails   [slot][position % tail_ring][2][index dim]   fp32: index key, pooling gate logit
//
// A pool's key is written when its last token is computed and never read before the query's
// position reaches that token, so rejected rows need no clean-up.  tail_ring >= pool + the largest
// verification round.
struct LatentPages {
    void* latents = nullptr;
    DType latent_dtype = DType::bf16;
    std::size_t latent_page_bytes = 0;  // from page to page
    void* pooled = nullptr;
    DType pooled_dtype = DType::bf16;
    std::size_t pooled_page_bytes = 0;
    float* tails = nullptr;
    std::size_t tail_stride = 0;  // floats from slot to slot
    std::uint32_t tail_ring = 4;
};

}  // namespace percheron::ops
