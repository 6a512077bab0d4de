// The gated activation between a feed-forward's two products.
//
//   g = min(gate[r][i], limit),  u = clamp(up[r][i], -limit, limit)
//   out[r][i] = g * sigmoid(g) * u
//
// Shapes:   gate, up, output [R, I].
// Numerics: fp32 in both arithmetics.
// Effects:  writes output; output may be the same rows as gate or as up.
#pragma once

#include "core/views.h"

namespace percheron::ops {

struct Swiglu {
    Rows<const float> gate;
    Rows<const float> up;
    float limit = 10.0f;
    Rows<float> output;
};

}  // namespace percheron::ops
