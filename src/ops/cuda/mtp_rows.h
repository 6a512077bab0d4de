// Rows of the MTP layer, which has one residual stream instead of hyper-connections.
//
//   join_rows      joined[r] = [RMS(e_r; embedding_norm), RMS(h_r; hidden_norm)], rounded to bf16;
//                  e_r is zero where row r stands at position 0, h_r is row hidden_rows[r] of
//                  hidden
//   residual_turn  x[r] += y[r] and, if there are pairs, what the row's experts gave;
//                  normed[r] = RMS(x[r]; norm), in parts (row_parts.h) and as fp32
//
// RMS(v; w) = v w / sqrt(mean(v^2) + eps).  A block works on one row, so that a row's bits do not
// depend on the others; all arithmetic is fp32.  The hidden size is a multiple of 4.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "core/status.h"
#include "ops/cuda/device_batch.h"
#include "ops/cuda/few_row_gemm.h"
#include "ops/cuda/launch.h"

namespace percheron::ops::cuda {

struct JoinedRows {
    int hidden = 0;
    DeviceBatch batch;
    const float* embedded = nullptr;             // [rows][hidden]
    const float* hidden_state = nullptr;         // [any number][hidden]
    const std::uint32_t* hidden_rows = nullptr;  // [rows]
    const float* embedding_norm = nullptr;
    const float* hidden_norm = nullptr;
    float eps = 0.0f;
    __nv_bfloat16* joined = nullptr;  // [rows][2 hidden]
};

Status join_rows(const JoinedRows& op, const LaunchContext& context);

struct ResidualTurn {
    int rows = 0, hidden = 0;
    float* x = nullptr;        // [rows][hidden], in and out
    const float* y = nullptr;  // [rows][hidden]; nullptr: x stays as it is
    ExpertPairs pairs;         // chosen == 0: none
    const float* norm = nullptr;
    float eps = 0.0f;
    __nv_bfloat16* parts = nullptr;   // [rows][row_parts][hidden]
    __nv_bfloat16* raised = nullptr;  // [rows][hidden], see row_parts.h; or nullptr
    float* normed = nullptr;          // [rows][hidden]
};

Status residual_turn(const ResidualTurn& op, const LaunchContext& context);

}  // namespace percheron::ops::cuda
