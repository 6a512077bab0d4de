// Rounds rows of floats to the packed weight formats, nearest value each (no calibration).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace percheron::tools {

// Values that share a scale: 4-bit groups of a row, FP8 blocks of as many rows.
inline constexpr std::size_t block_width = 128;

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

// The factor of an NVFP4 matrix whose largest magnitude is `largest`: largest / (6 * 448), so that
// the largest block scale is FP8's largest value.  1 for a matrix of zeros.
float nvfp4_global_scale(float largest);

// One row in blocks of 16, E2M1 values with an FP8 scale each and the matrix's factor:
//   scale = f8(max|w| / (6 * global_scale)), at least the smallest FP8 value above zero;
//   code  = e2m1(w / (scale * global_scale)), that product rounded to float first; low nibble =
//   even
//           k
// weights: [k], k a multiple of 16; codes: [k / 2]; scales: [k / 16].  Weights must be finite.
RoundingError round_to_nvfp4(std::span<const float> weights, float global_scale,
                             std::span<std::uint8_t> codes, std::span<Float8E4M3> scales);

// The INT4 value nearest to `quotient`, -8..7.
inline float nearest_int4(float quotient) {
    return nearest_whole(std::min(std::max(quotient, -8.0f), 7.0f));
}

// The code of one of the E2M1 values; zero has no sign.
unsigned code_e2m1(float value);

}  // namespace percheron::tools
