// Rounds rows of floats to the packed weight formats, nearest value each (no calibration).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace percheron::tools {

// Squared error and squared sum over what was rounded.
struct RoundingError {
    double squared_error = 0;
    double squared_sum = 0;

    RoundingError& operator+=(const RoundingError& other) {
        squared_error += other.squared_error;
        squared_sum += other.squared_sum;
        return *this;
    }
};

// Up to 128 rows of a matrix, one row of FP8 blocks:
//   scale = max|w| / 448 over a block of `rows` x 128 (1 for a block of zeros), code = f8(w /
//   scale).
// weights: [rows][k]; codes: [rows][k]; scales: [ceil(k / 128)].  Weights must be finite.
RoundingError round_to_fp8_blocks(std::span<const float> weights, std::size_t rows, std::size_t k,
                                  std::span<Float8E4M3> codes, std::span<float> scales);

// One row in groups of 128, symmetric INT4 in offset binary:
//   code = clamp(round(w / scale), -8, 7) + 8, the first of eight in the lowest nibble.
// The scale is the one among all bfloat16 values from max|w| / 14 to max|w| / 7 that makes the
// group's squared error smallest (the smaller of equals): at the upper end nothing is cut off, at
// the lower end the steps are half as wide.  A group of zeros has scale 1. weights: [k], k a
// multiple of 128; words: [k / 8]; scales: [k / 128].  Weights must be finite.
RoundingError round_to_w4a16(std::span<const float> weights, std::span<std::uint32_t> words,
                             std::span<BFloat16> scales);

}  // namespace percheron::tools
