// Adding a bias and, for a sublayer's output, the rows it is added to.
//
//   out[r][i] = (residual[r][i] +) in[r][i] (+ bias[i])
//
// Shapes:   input, residual, output [R, N]; bias [N].  residual may be empty and bias null: nothing
//           is added then.
// Numerics: fp32 in both arithmetics; input and bias are added first.
// Effects:  writes output; output may be the same rows as input or as residual.
#pragma once

#include "core/views.h"

namespace percheron::ops {

struct AddRows {
    Rows<const float> input;
    const float* bias = nullptr;
    Rows<const float> residual;
    Rows<float> output;
};

}  // namespace percheron::ops
