// The Gaussian error linear unit, exact.
//
//   out[r][i] = x / 2 * (1 + erf(x / sqrt(2))),  x = in[r][i]
//
// Shapes:   input, output [R, N].
// Numerics: fp32 in both arithmetics.
// Effects:  writes output; output may be the same rows as input.
#pragma once

#include "core/views.h"

namespace percheron::ops {

struct Gelu {
    Rows<const float> input;
    Rows<float> output;
};

}  // namespace percheron::ops
