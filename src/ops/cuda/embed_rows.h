// Rows in and out of a step: embeddings, rounding to bf16, the rows whose logits are wanted.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "core/status.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/row_parts.h"
#include "ops/weight_matrix.h"

namespace percheron::ops::cuda {

// streams[r][s][*] = row tokens[r] of the table, kept as stored in any format, for every stream s.
struct Embedding {
    WeightMatrix table;                     // [vocabulary, hidden], device memory
    const std::uint32_t* tokens = nullptr;  // [rows]
    int rows = 0;
    int streams = 0;
    float* out = nullptr;  // [rows][streams][hidden]
};

Status embed_rows(const Embedding& op, const LaunchContext& context);

// out[i][part][*] = the parts of in[i][*], raised[i][*] the rounded values times raised_by
// (row_parts.h; nullptr: not asked for); columns a multiple of 4.
Status split_rows(const float* in, int rows, int columns, __nv_bfloat16* out, __nv_bfloat16* raised,
                  const LaunchContext& context);

// out[i][*] = in[rows[i] * stride + *]; columns and stride multiples of 8.
Status gather_rows(const __nv_bfloat16* in, int stride, const std::uint32_t* rows, int count,
                   int columns, __nv_bfloat16* out, const LaunchContext& context);

}  // namespace percheron::ops::cuda
