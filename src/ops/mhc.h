// Manifold-constrained hyper-connections: S residual streams of D values a token, read and written
// through gates.  X [R, S * D] is stream-major: stream 0, stream 1, ...
//
// mhc_gates, f = vec(X) of a row, r = (mean f^2 + rms_eps)^-1/2, m = r * (fn f):
//   pre_i     = sigmoid(scale[0] * m[i] + base[i]) + mhc_eps                      i < S
//   post_j    = 2 * sigmoid(scale[1] * m[S + j] + base[S + j])                    j < S
//   C[a][b]   = softmax over b of scale[2] * m[2S + Sa + b] + base[2S + Sa + b],  + mhc_eps
//   C        /= column sums + mhc_eps                                   (column sum: over a)
//   then iterations - 1 times: C /= row sums + mhc_eps; C /= column sums + mhc_eps
//
// mhc_update, in place:  X_j <- post_j * y + sum_a C[a][j] * X_a        C is [source][destination]
//
// mhc_collapse:  u = sum_i pre_i * X_i;  out = RMS norm of u (rms_norm.h).  Without `norm`
// (nullptr) out = u; without `pre` (data nullptr) every pre_i is 1 / S: the mean of the streams.
//
// Shapes:   fn [(2 + S) * S, S * D]; base [(2 + S) * S]; scale [3]; pre, post [R, S];
//           comb [R, S * S] source-major; y, out [R, D].
// Numerics: fp32 everywhere in both arithmetics; the product fn f is never rounded to bf16.  A
//           row's bits depend on that row alone.
// Effects:  mhc_gates writes pre, post, comb; mhc_update changes X; mhc_collapse writes out.
//           Nothing overlaps.
#pragma once

#include "core/views.h"
#include "ops/weight_matrix.h"

namespace percheron::ops {

struct MhcGateComputation {
    std::size_t streams = 4;
    std::size_t iterations = 20;
    float rms_eps = 1e-5f;
    float mhc_eps = 1e-6f;
    WeightMatrix fn;
    const float* base = nullptr;
    const float* scale = nullptr;
    Rows<const float> state;  // X
    Rows<float> pre;
    Rows<float> post;
    Rows<float> comb;
};

struct MhcUpdate {
    std::size_t streams = 4;
    Rows<const float> output;  // y, the sublayer's
    Rows<const float> post;
    Rows<const float> comb;
    Rows<float> state;  // X
};

struct MhcCollapse {
    std::size_t streams = 4;
    Rows<const float> state;  // X
    Rows<const float> pre;
    const float* norm = nullptr;
    float rms_eps = 1e-5f;
    Rows<float> output;
};

}  // namespace percheron::ops
