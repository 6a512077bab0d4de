// Rows on their way to the products of the prefill class (prefill_gemm.h): the order of columns
// that packed weights ask for, and the places that pairs of a row and a chosen expert get.
//
// Ordered rows.  A product takes 16 columns at a time, and packed weights (packed_matrix.h) hold
// those of 32 columns c = 8 q + 4 p + 2 h + e as place = 16 p + 8 h + 2 q + e.  Rows are kept in
// the same order, so that 16 places next to each other are what a product takes.
#pragma once

#include <algorithm>
#include <cstdint>

#include <cuda_bf16.h>

#include "core/status.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/router.h"

namespace percheron::ops::cuda {

struct OrderedRows {
    int rows = 0, columns = 0;         // columns a multiple of 32
    const __nv_bfloat16* x = nullptr;  // [..][x_stride], 16-byte aligned, x_stride a multiple of 8
    int x_stride = 0;
    // Not nullptr: row r of the result is row pair_order[r] / pairs_per_row of x.
    const std::uint32_t* pair_order = nullptr;
    int pairs_per_row = 1;
    __nv_bfloat16* out = nullptr;  // [rows][columns], ordered
};

// Errors: invalid_argument (columns or stride), internal (launch).
Status order_rows(const OrderedRows& op, const LaunchContext& context);

// Lists pairs expert by expert, of an expert in ascending order, and cuts each expert's into groups
// of at most `group_rows`: pairs [first, first + count) of the order.
struct PairGrouping {
    int pairs = 0, experts = 0;  // at most 512 experts
    int group_rows = 0;
    const std::uint32_t* chosen = nullptr;  // [pairs], below experts
    std::uint32_t* pair_order = nullptr;    // [pairs], out
    ExpertGroup* groups = nullptr;          // [most_groups()], out
    std::int32_t* group_count = nullptr;    // out
    std::int32_t* touched = nullptr;        // experts with a pair, out; or nullptr
};

// How many groups there can be.
constexpr int most_groups(int pairs, int experts, int group_rows) {
    return std::min(pairs, pairs / group_rows + experts);
}

// Errors: unsupported (more than 512 experts), internal (launch).
Status group_pairs(const PairGrouping& op, const LaunchContext& context);

}  // namespace percheron::ops::cuda
