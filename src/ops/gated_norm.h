// KDA's output: each head normalised, then gated by the sigmoid of the gate projection.
//
//   out[r][h][c] = in[r][h][c] * (mean_c in[r][h][c]^2 + eps)^-1/2 * weight[c]
//                  * sigmoid(gate[r][h][c])
//
// Shapes:   input, gate, output [R, H * d]; weight [d], shared by the heads.
// Numerics: fp32 in both arithmetics.  A row's bits depend on that row alone.
// Effects:  writes output; output may be the same rows as input or as gate.
#pragma once

#include "core/views.h"

namespace percheron::ops {

struct GatedNorm {
    std::size_t dim = 0;
    Rows<const float> input;
    Rows<const float> gate;
    const float* weight = nullptr;
    float eps = 1e-5f;
    Rows<float> output;
};

}  // namespace percheron::ops
