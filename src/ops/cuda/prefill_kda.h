// The KDA mixer of prompts between its input projections and its output projection: short
// convolution with SiLU, gates and norms of query and key, the recurrence in chunks of 64
// (kda_chunk of ops/kda_step.h), the gated norm of the output.  Heads of 128 channels and 4 taps
// only.
//
// Two kernels.  The first prepares every chunk of every head by itself: with L and A as in
// ops/kda_step.h it inverts I + L by forward substitution, in fp32.  The second goes through a
// sequence's chunks in order, a block for half of a head's values, and carries the state in fp32:
//   V' = (I + L)^-1 diag(beta) (V - (K * e^G) S)
// A head's two blocks send each other their rows' squares, normalise and gate.
//
// Numerics.  Everything is fp32, exponentials and quotients by the quick instructions; products on
// the tensor core take each operand as two bf16 parts (16 bits of it) and add the three larger of
// their four products in fp32.  e^(G_i - G_j) of one chunk is a product of e^(G_i - r) and e^(r -
// G_j), r being G in the middle of i's run of 16.  A row's bits depend on its own sequence alone,
// and not on how the sequence is cut at multiples of 64.
#pragma once

#include <span>

#include <cuda_bf16.h>

#include "core/status.h"
#include "ops/cache_views.h"
#include "ops/cuda/device_batch.h"
#include "ops/cuda/launch.h"

namespace percheron::ops::cuda {

struct KdaPrompt {
    int heads = 0;
    // Raw projections of a row, fp32: q, k, v at [0, H d), [H d, 2 H d), [2 H d, 3 H d).
    const float* projections = nullptr;
    int projection_stride = 0;    // strides are multiples of 4
    const float* beta = nullptr;  // [row][beta_stride], H used
    int beta_stride = 0;
    const float* decay = nullptr;  // [row][decay_stride], H d used: f_b f_a x
    int decay_stride = 0;
    const float* gate = nullptr;  // [row][gate_stride], H d used: g_b g_a x
    int gate_stride = 0;
    const float* conv = nullptr;      // [3 H d][4]
    const float* a_log = nullptr;     // [H]
    const float* dt_bias = nullptr;   // [H d]
    const float* out_norm = nullptr;  // [128]
    float lower_bound = -5.0f;
    float norm_eps = 1e-5f;
    KdaSlots slots;
    // All rows of a sequence are committed, and none is kept: first_position, a multiple of 64, is
    // state_position.
    const DeviceSequence* sequences = nullptr;
    int sequence_count = 0;
    std::byte* prepared = nullptr;    // kda_prompt_bytes() of the chunks, 128-byte aligned
    int prepared_chunks = 0;          // that it has room for
    __nv_bfloat16* output = nullptr;  // [rows][H d], ordered (prefill_rows.h)
    float* mixed = nullptr;           // [rows][H d], before norm and gate; nullptr: not wanted
};

std::size_t kda_prompt_bytes(int heads, int chunks);

// `row_counts`: of every sequence.  A sequence's chunks must fit into `prepared`.
// Errors: invalid_argument (room), internal (launch).
Status kda_prompt(const KdaPrompt& prompt, std::span<const std::uint32_t> row_counts,
                  const LaunchContext& context);

}  // namespace percheron::ops::cuda
