// Which experts a row goes to, and with what weight.
//
//   s_e    = sigmoid(sum_k W[e][k] * x[k])
//   choice = the `chosen` largest s_e + bias_e, in descending order, ties to the lower e
//   weight = scale * s_e / (sum of the chosen s + 1e-20)     (without `normalise`: scale * s_e)
//
// Shapes:   weight [E, K]; bias [E]; input [R, K]; experts, weights [R, chosen].  chosen <= E.
// Numerics: fp32 in both arithmetics: the input is not rounded.  A row's bits and choice depend on
//           that row alone.
// Effects:  writes experts and weights.
#pragma once

#include <cstdint>

#include "core/views.h"
#include "ops/weight_matrix.h"

namespace percheron::ops {

struct Router {
    WeightMatrix weight;
    const float* bias = nullptr;
    float scale = 1.0f;
    bool normalise = true;
    Rows<const float> input;
    Rows<std::uint32_t> experts;
    Rows<float> weights;
};

}  // namespace percheron::ops
