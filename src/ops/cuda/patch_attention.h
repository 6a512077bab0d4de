// Attention among the patches of one picture (ops/patch_attention.h has the formulas), for heads of
// 64 values kept as bf16.
//
// Of PatchHeads queries and keys are [head][patch][dim]; values lie transposed, [head][dim][patch],
// so that four neighbouring patches are one operand of the product with the weights.  The number of
// patches is a multiple of 4.
//
// Numerics.  Scores, softmax and sums are fp32.  Weights enter their product as two bf16 parts, 16
// bits together.  A query's keys are taken in groups of 32, group i by the (i mod 8)-th warp, and
// the warps' parts are joined in order: its bits do not depend on the queries beside it.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "core/status.h"
#include "ops/cuda/launch.h"
#include "ops/patch_attention.h"

namespace percheron::ops::cuda {

inline constexpr int patch_head_dim = 64;

struct PatchHeadRows {
    int rows = 0;                      // of the slice
    const float* projected = nullptr;  // [rows][3 heads dim]: queries, keys, values
    const float* bias = nullptr;       // [3 heads dim]
    const float* query_norm = nullptr;
    const float* key_norm = nullptr;
    float eps = 0.0f, theta = 0.0f;
    const PatchPlace* places = nullptr;  // [rows], device memory
    std::size_t first = 0;               // of the picture's rows
    PatchHeads heads;
};

// Writes rows [first, first + rows) of the heads.
Status store_patch_heads(const PatchHeadRows& op, const LaunchContext& context);

struct PatchQueries {
    int rows = 0;
    std::size_t first = 0;
    PatchHeads heads;
    __nv_bfloat16* out = nullptr;  // [rows][heads dim]
};

Status patch_attention(const PatchQueries& op, const LaunchContext& context);

}  // namespace percheron::ops::cuda
