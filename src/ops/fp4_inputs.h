// Inputs of an nvfp4 weight rounded as the weight is: the W4A4 arithmetic of FP4 matrix units.
//
// For each row and each 16 inputs x of it, with the weight's input_scale s:
//
//   block = e4m3(max |x| / (6 s))      to the nearest, ties to even; at most 448
//   code  = e2m1(x / (block s))        to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6, ties to even
//
// What is multiplied is code * block, which BF16 holds exactly, so that no later rounding of inputs
// changes it; s goes to the weight's own factor.  A block of 0 makes its inputs 0.
#pragma once

#include <span>
#include <vector>

#include "ops/linear.h"

namespace percheron::ops {

// One row; k a multiple of 16.  `out` may be `in`.
void round_to_fp4(std::span<const float> in, float input_scale, std::span<float> out);

// Takes the place of products whose weight says how its inputs are rounded.
class Fp4Inputs {
  public:
    static bool needed(std::span<const Linear> ops);
    // The same product of inputs that are rounded; it lives until the next call.
    Linear rounded(const Linear& op);

  private:
    std::vector<float> rows_;  // grows to the largest input there is
};

}  // namespace percheron::ops
