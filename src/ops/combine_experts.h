// The sum of a row's expert outputs and the shared expert's.
//
//   out[r] = (sum_{j < chosen, ascending} weights[r][j] * expert_output[place[r][j]]) + shared[r]
//
// Shapes:   expert_output [R * chosen, D]; place, weights [R, chosen]; shared, output [R, D].
// Numerics: fp32 in both arithmetics, in the order written.  A row's bits depend on that row alone.
// Effects:  writes output; output may be the same rows as shared.
#pragma once

#include <cstdint>

#include "core/views.h"

namespace percheron::ops {

struct CombineExperts {
    Rows<const float> expert_output;
    Rows<const std::uint32_t> place;
    Rows<const float> weights;
    Rows<const float> shared;
    Rows<float> output;
};

}  // namespace percheron::ops
