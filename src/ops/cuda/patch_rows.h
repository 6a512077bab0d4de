// Rows of the vision tower between its matrix products.
//
//   round_rows    out[r] = in[r] rounded to bf16, zeros behind it
//   update_rows   v = (z[r] +) (y[r] + bias); z[r] = v where there is a z;
//                 out[r] = RMS(v; norm), or v where there is no norm, rounded to bf16
//   gate_rows     out[r] = silu(min(g, limit)) clamp(u, -limit, limit), g = gate[r] + gate_bias and
//                 u = up[r] + up_bias, rounded to bf16
//   settle_rows   out[r] = GELU(LayerNorm(in[r]; weight, bias, eps)), rounded to bf16
//
// A block works on one row, so that a row's bits do not depend on the others; all arithmetic is
// fp32 (ops/rms_norm.h, add_rows.h, swiglu.h, layer_norm.h, gelu.h have the formulas).
#pragma once

#include <cuda_bf16.h>

#include "core/status.h"
#include "ops/cuda/launch.h"

namespace percheron::ops::cuda {

struct RoundedRows {
    int rows = 0, columns = 0;
    const float* in = nullptr;     // [rows][columns]
    __nv_bfloat16* out = nullptr;  // [rows][out_stride]
    int out_stride = 0;            // at least columns
};

struct UpdatedRows {
    int rows = 0, columns = 0;
    const float* y = nullptr;     // [rows][columns]; nullptr: v = z[r]
    const float* bias = nullptr;  // [columns]
    bool add = false;             // to what z holds
    float* z = nullptr;           // [rows][columns]
    const float* norm = nullptr;  // [columns]
    float eps = 0.0f;
    __nv_bfloat16* out = nullptr;  // nullptr: not wanted; [rows][columns], but see below
    // More than 1: so many neighbouring rows make a cell, [rows / merged][columns][merged].
    int merged = 1;
};

struct GatedRows {
    int rows = 0, columns = 0;
    const float *gate = nullptr, *up = nullptr;  // [rows][columns]
    const float *gate_bias = nullptr, *up_bias = nullptr;
    float limit = 0.0f;
    __nv_bfloat16* out = nullptr;  // [rows][columns]
};

struct SettledRows {
    int rows = 0, columns = 0;
    const float* in = nullptr;  // [rows][columns]
    const float *weight = nullptr, *bias = nullptr;
    float eps = 0.0f;
    __nv_bfloat16* out = nullptr;  // [rows][columns]
};

Status round_rows(const RoundedRows& op, const LaunchContext& context);
Status update_rows(const UpdatedRows& op, const LaunchContext& context);
Status gate_rows(const GatedRows& op, const LaunchContext& context);
Status settle_rows(const SettledRows& op, const LaunchContext& context);

}  // namespace percheron::ops::cuda
