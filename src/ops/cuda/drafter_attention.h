// Attention of a block drafter's rows over the pages of their context and over their own block
// (ops/block_drafting.h).
//
// A block's context is cut into at most `most_context_parts` runs of whole pages, whose number and
// length follow from what the block sees and from nothing else; parts are added in order, the
// block's own keys last.  Scores and sums are fp32.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/drafter_rows.h"

namespace percheron::ops::cuda {

inline constexpr int most_context_parts = 32;
inline constexpr int most_block_queries = 128;  // rows of a block x heads that share keys

struct DrafterAttention {
    DraftTable table;
    ContextPages pages;
    int heads = 0;
    int most_rows = 0;         // of a block
    std::uint32_t window = 0;  // 0: everything is seen
    const __nv_bfloat16 *query = nullptr, *key = nullptr, *value = nullptr;
    float* partial = nullptr;           // partial_floats() of them
    __nv_bfloat16* attended = nullptr;  // [rows][heads * dim]
};

constexpr std::size_t partial_floats(std::size_t rows, std::size_t heads, std::size_t dim) {
    return (most_context_parts + 1) * rows * heads * (dim + 2);
}

// Head dimensions of 64 and 128, bf16 or fp8 pages.  Errors: invalid_argument, internal.
Status attend_block(const DrafterAttention& op, const LaunchContext& context);

}  // namespace percheron::ops::cuda
