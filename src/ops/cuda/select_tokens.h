// Which tokens each row attends to: index scores of all candidate pools on the tensor cores, then
// the exact best of them.  The formulas and the order of the positions are those of
// ops/select_tokens.h; index dim 128, pool 4, at most 32 index heads, bf16 or fp8 pooled keys.
//
// Numerics: a score is the same function of its row's query and its pool wherever it is computed:
// fp32 sums over the columns in the tensor core's order, over the heads in a fixed tree.  Rows none
// of whose candidates can be left out are not scored.
#pragma once

#include <cuda_bf16.h>

#include "core/status.h"
#include "ops/cache_views.h"
#include "ops/cuda/device_batch.h"
#include "ops/cuda/launch.h"

namespace percheron::ops::cuda {

struct TokenSelection {
    int heads = 0;
    int topk = 0;                          // tokens
    const __nv_bfloat16* query = nullptr;  // [rows][query_stride], heads * 128 used
    int query_stride = 0;
    const float* head_weight = nullptr;  // [rows][head_weight_stride], heads used
    int head_weight_stride = 0;
    LatentPages pages;
    DeviceBatch batch;
    int most_pools = 0;                  // an upper bound of any row's candidates
    float* scores = nullptr;             // [rows][most_pools], scratch
    std::uint32_t* positions = nullptr;  // [rows][positions_stride >= topk + 3], out
    int positions_stride = 0;
    std::uint32_t* counts = nullptr;  // [rows], out
};

Status select_tokens(const TokenSelection& op, const LaunchContext& context);

// Its second part, for whoever has the scores of every row's candidates, and what both ask for.
Status take_best_pools(const TokenSelection& op, const LaunchContext& context);
Status check_selection(const TokenSelection& op);

}  // namespace percheron::ops::cuda
