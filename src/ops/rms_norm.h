// Root-mean-square normalisation of rows.
//
//   out[r][i] = in[r][i] * (mean_i in[r][i]^2 + eps)^-1/2 * weight[i]
//
// Shapes:   input, output [R, N]; weight [N].  R >= 0, N >= 1.
// Numerics: fp32, nothing rounded in either arithmetic (a matrix product that reads the result
//           rounds its own input).  A row's bits depend on that row alone.
// Effects:  writes output.  output may be the same rows as input; no other overlap.
#pragma once

#include "core/views.h"

namespace percheron::ops {

struct RmsNorm {
    Rows<const float> input;
    const float* weight = nullptr;
    float eps = 1e-5f;
    Rows<float> output;
};

}  // namespace percheron::ops
