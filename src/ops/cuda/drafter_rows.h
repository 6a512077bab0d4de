// What a block drafter's stages compute beside products (ops/drafter_stages.h has the formulas):
// taps side by side, norms, rotated heads, the convolution along a block.
//
// Rows come in runs: positions of a sequence's context, or a block.  Sums are fp32 in a fixed
// order; a row's bits depend on its own run, its context's values and its position alone.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "core/dtype.h"
#include "core/status.h"
#include "ops/block_drafting.h"
#include "ops/cuda/launch.h"

namespace percheron::ops::cuda {

// ops::DraftRows on the device.
struct DeviceDraftRows {
    std::uint32_t first_row = 0, row_count = 0, first_position = 0;
    std::uint32_t begin = 0, end = 0;  // of its context
    std::uint32_t first_page = 0;      // in the table's list, that of position `begin`
};

// The rows of a pass; every pointer is device memory.
struct DraftTable {
    int rows = 0, runs = 0;
    const DeviceDraftRows* run = nullptr;       // [runs]
    const std::uint32_t* run_of_row = nullptr;  // [rows]
    const std::uint32_t* pages = nullptr;
};

inline constexpr int most_drafter_taps = 16;

// joined[r] = [taps[0][tap_rows[r]], taps[1][...], ...], rounded; columns a multiple of 4.
struct JoinedTaps {
    int rows = 0, taps = 0, columns = 0;
    const float* tap[most_drafter_taps] = {};  // [.][columns]
    const std::uint32_t* tap_rows = nullptr;   // [rows]
    __nv_bfloat16* joined = nullptr;           // [rows][taps * columns]
};
Status join_taps(const JoinedTaps& op, const LaunchContext& context);

// RMS norm of rows, in fp32 and rounded, either of which may be left out; without `norm` they are
// only rounded.  `out` may be `in`; columns a multiple of 4.
struct NormedRows {
    int rows = 0, columns = 0;
    const float* in = nullptr;
    const float* norm = nullptr;
    float eps = 0;
    float* out = nullptr;
    __nv_bfloat16* rounded = nullptr;
};
Status norm_rows(const NormedRows& op, const LaunchContext& context);

// angles[r] = [cos | sin] of the row's position, dim of them.
Status rope_angles(const DraftTable& table, int dim, float theta, float* angles,
                   const LaunchContext& context);

// Keys turned and normalised, and values, into the pages of their positions.
struct StoredContext {
    DraftTable table;
    ContextPages pages;
    const float* keys = nullptr;  // [rows][heads * dim]
    const float* values = nullptr;
    const float* norm = nullptr;  // [dim]
    float eps = 0;
    const float* angles = nullptr;  // [rows][dim]
};
Status store_context(const StoredContext& op, const LaunchContext& context);

// Queries and keys of blocks turned and normalised, and values, rounded.
struct BlockHeads {
    int rows = 0, heads = 0, kv_heads = 0, dim = 0;
    const float *query = nullptr, *key = nullptr, *value = nullptr;
    const float *query_norm = nullptr, *key_norm = nullptr;
    float eps = 0;
    const float* angles = nullptr;
    __nv_bfloat16 *turned_query = nullptr, *turned_key = nullptr, *rounded_value = nullptr;
};
Status turn_heads(const BlockHeads& op, const LaunchContext& context);

// x = scale * x of a block's first row, and of the others scale * mask, or scale * x without one.
Status mask_rows(const DraftTable& table, int columns, const float* mask, float scale, float* x,
                 const LaunchContext& context);

// One side of a block's convolution; without `base` the rows themselves.  Added to x, or rounded.
struct ConvolvedRows {
    DraftTable table;
    int columns = 0, taps = 0, width = 0;
    const float* in = nullptr;     // [rows][columns]
    const float* base = nullptr;   // [taps][columns]
    const float* gates = nullptr;  // [rows][gates_stride], of this side
    int gates_stride = 0;
    float* x = nullptr;
    __nv_bfloat16* rounded = nullptr;
};
Status convolve_rows(const ConvolvedRows& op, const LaunchContext& context);

}  // namespace percheron::ops::cuda
