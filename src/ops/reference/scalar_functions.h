// Scalar pieces of the oracle's formulas.
#pragma once

#include <cmath>

#include "core/dtype.h"
#include "ops/batch.h"

namespace percheron::ops::reference {

inline double sigmoid(double x) {
    return 1.0 / (1.0 + std::exp(-x));
}

// What a matrix product sees of an input element.
inline float product_input(float value, Arithmetic arithmetic) {
    return arithmetic == Arithmetic::standard ? rounded_to_bf16(value) : value;
}

}  // namespace percheron::ops::reference
