// The KDA mixer between its input projections and its output projection, in one pass over the
// state: short convolution with SiLU, gates and norms of query and key, the recurrence token by
// token, the gated norm of the output.  The formulas are those of ops/short_conv.h, kda_gates.h,
// kda_step.h and gated_norm.h; heads of 128 channels and 4 taps only.
//
// One thread block owns a head of a sequence: it folds the kept rows, runs the step's rows, writes
// the state once (after the last committed row), the kept rows and the convolution's history.  All
// tokens, folded or new, go through the same code, so that committing at once, folding later and
// verifying any number of rows give the same bits.
#pragma once

#include <cuda_bf16.h>

#include "core/status.h"
#include "ops/cache_views.h"
#include "ops/cuda/device_batch.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/packed_matrix.h"

namespace percheron::ops::cuda {

struct KdaStep {
    int heads = 0;
    // Raw projections of a row, fp32: q, k, v at [0, H d), [H d, 2 H d), [2 H d, 3 H d).
    const float* projections = nullptr;
    int projection_stride = 0;
    const float* beta = nullptr;  // [row][beta_stride], H used
    int beta_stride = 0;
    const float* decay = nullptr;  // [row][decay_stride], H d used: f_b f_a x
    int decay_stride = 0;
    const float* gate = nullptr;  // [row][gate_stride], H d used: g_b g_a x
    int gate_stride = 0;
    // Instead of decay and gate, if gates_in_place(): what they are products of, and the matrices.
    // The bits are those of few_row_gemm().
    const __nv_bfloat16* decay_rank = nullptr;  // [row][128]: f_a x
    const __nv_bfloat16* gate_rank = nullptr;   // [row][128]: g_a x
    PackedMatrix decay_weight, gate_weight;     // f_b and g_b, [H d, 128], bf16
    // With them also weights of the kernel behind, asked for by thread blocks that have no head.
    WeightsAhead ahead;
    const float* conv = nullptr;      // [3 H d][4]
    const float* a_log = nullptr;     // [H]
    const float* dt_bias = nullptr;   // [H d]
    const float* out_norm = nullptr;  // [128]
    float lower_bound = -5.0f;
    float norm_eps = 1e-5f;
    KdaSlots slots;
    const DeviceSequence* sequences = nullptr;
    int sequence_count = 0;
    __nv_bfloat16* output = nullptr;  // [row][H d]
};

// Whether a step should get decay_rank and gate_rank: every thread block has one head of one
// sequence, and reads that head's part of the two matrices while it waits.
bool gates_in_place(int heads, int sequences, const PackedMatrix& decay_weight,
                    const PackedMatrix& gate_weight, const LaunchContext& context);

Status kda_step(const KdaStep& step, const LaunchContext& context);

}  // namespace percheron::ops::cuda
