// Layer normalisation of rows, with weight and bias.
//
//   m = mean_i in[r][i],  v = mean_i (in[r][i] - m)^2
//   out[r][i] = (in[r][i] - m) * (v + eps)^-1/2 * weight[i] + bias[i]
//
// Shapes:   input, output [R, N]; weight, bias [N].  R >= 0, N >= 1.
// Numerics: fp32; two passes (the variance is taken around the mean).  A row's bits depend on that
//           row alone.
// Effects:  writes output.  output may be the same rows as input; no other overlap.
#pragma once

#include "core/views.h"

namespace percheron::ops {

struct LayerNorm {
    Rows<const float> input;
    const float* weight = nullptr;
    const float* bias = nullptr;
    float eps = 1e-6f;
    Rows<float> output;
};

}  // namespace percheron::ops
