// From one sublayer's output to the next one's input (ops/backend.h, MhcTurn), in one kernel: the
// streams' update, the next gates with their product over all streams, the mixed and normalised
// input.  Four streams.
//
// Eight thread blocks of a cluster share a row: each holds an eighth of the hidden channels of all
// streams in shared memory, the partial products meet through the cluster's shared memory and are
// added in the order of the blocks.  fp32 throughout, the product with fn included; only normed is
// also given in bf16 parts, which is what matrix products read.  Needs sm_90 or later.  Of many
// rows two kernels do the same sums in the same order, so that fn is not read once for every row.
#pragma once

#include <cuda_bf16.h>

#include "core/status.h"
#include "ops/cuda/few_row_gemm.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/row_parts.h"

namespace percheron::ops::cuda {

struct HyperConnection {
    const __nv_bfloat16* fn = nullptr;  // [24][4 D], row-major as stored
    const float* base = nullptr;        // [24]
    const float* scale = nullptr;       // [3]
    const float* norm = nullptr;        // [D]
};

struct HyperConnectionTurn {
    int rows = 0;
    int hidden = 0;                     // D, a multiple of 32
    float* streams = nullptr;           // [rows][4 D], in and out
    const float* output = nullptr;      // [rows][D]; nullptr: the streams are not updated
    ExpertPairs pairs;                  // added to the output (few_row_gemm.h)
    float* post = nullptr;              // [rows][4], in for the update, out for the next
    float* comb = nullptr;              // [rows][16], likewise
    HyperConnection next;               // fn == nullptr: the last turn of the network
    const float* final_norm = nullptr;  // [D], of the last turn
    int iterations = 20;
    float rms_eps = 1e-5f, mhc_eps = 1e-6f;
    __nv_bfloat16* normed = nullptr;  // [rows][row_parts][D], see row_parts.h
    __nv_bfloat16* raised = nullptr;  // [rows][D], likewise, or nullptr
    float* normed_wide = nullptr;     // [rows][D] unrounded, or nullptr
    float* tap = nullptr;             // [rows][D], mean of the updated streams, or nullptr
};

Status mhc_turn(const HyperConnectionTurn& turn, const LaunchContext& context);

}  // namespace percheron::ops::cuda
