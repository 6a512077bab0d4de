// What the KDA recurrence reads, from its raw projections.  H heads of d channels.
//
//   key'[h]    = key[h] / sqrt(sum key[h]^2 + 1e-6)
//   query'[h]  = query[h] / sqrt(sum query[h]^2 + 1e-6) * d^-1/2
//   decay'[h][c] = lower_bound * sigmoid(exp(a_log[h]) * (decay[h][c] + dt_bias[h][c]))
//   beta'[h]   = sigmoid(beta[h])
//
// decay' is the log decay g of the recurrence, in (lower_bound, 0) with lower_bound = -5.
//
// Shapes:   query, key, decay [R, H * d]; beta [R, H]; a_log [H]; dt_bias [H * d].
// Numerics: fp32 in both arithmetics.  A row's bits depend on that row alone.
// Effects:  all four matrices are changed in place; they do not overlap (they may be column slices
//           of one matrix).
#pragma once

#include "core/views.h"

namespace percheron::ops {

struct KdaGates {
    std::size_t heads = 0;
    std::size_t dim = 0;
    const float* a_log = nullptr;
    const float* dt_bias = nullptr;
    float lower_bound = -5.0f;
    Rows<float> query;
    Rows<float> key;
    Rows<float> decay;
    Rows<float> beta;
};

}  // namespace percheron::ops
