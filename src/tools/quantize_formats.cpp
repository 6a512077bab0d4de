#include "tools/quantize_formats.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace percheron::tools {
namespace {

constexpr std::uint16_t smallest_normal = 0x0080;  // as bits of a bfloat16

float largest_magnitude(std::span<const float> values) {
    float largest = 0;
    for (const float value : values) {
        largest = std::max(largest, std::fabs(value));
    }
    return largest;
}

float squared_error(const float* weights, float scale) {
    const float inverse = 1.0f / scale;
    constexpr std::size_t lanes = 16;
    float sums[lanes] = {};
    for (std::size_t i = 0; i < block_width; i += lanes) {
        for (std::size_t lane = 0; lane < lanes; ++lane) {
            const float weight = weights[i + lane];
            const float error = weight - nearest_int4(weight * inverse) * scale;
            sums[lane] += error * error;
        }
    }
    float sum = 0;
    for (const float part : sums) {
        sum += part;
    }
    return sum;
}

BFloat16 best_scale(std::span<const float> weights) {
    const float largest = largest_magnitude(weights);
    // Bits of positive bfloat16 values are ordered like the values.
    const std::uint16_t first = BFloat16(largest / 14.0f).bits;
    const std::uint16_t last = BFloat16(largest / 7.0f).bits;
    if (last < smallest_normal) return BFloat16(1.0f);  // zeros, or so close that they become zeros
    // Compared at a size where squares neither vanish nor overflow; a power of two changes no
    // digit.
    const float unit = std::ldexp(1.0f, -std::ilogb(largest));
    float scaled[block_width];
    for (std::size_t i = 0; i < block_width; ++i) {
        scaled[i] = weights[i] * unit;
    }
    BFloat16 best = BFloat16::from_bits(last);
    float smallest = squared_error(scaled, static_cast<float>(best) * unit);
    for (std::uint16_t bits = std::max(first, smallest_normal); bits < last; ++bits) {
        const BFloat16 scale = BFloat16::from_bits(bits);
        const float error = squared_error(scaled, static_cast<float>(scale) * unit);
        if (error < smallest || (error == smallest && bits < best.bits)) {
            smallest = error;
            best = scale;
        }
    }
    return best;
}

}  // namespace

RoundingError round_to_fp8_blocks(std::span<const float> weights, std::size_t rows, std::size_t k,
                                  std::span<Float8E4M3> codes, std::span<float> scales) {
    assert(rows <= block_width && weights.size() == rows * k && codes.size() == rows * k);
    assert(scales.size() == (k + block_width - 1) / block_width);
    RoundingError total;
    for (std::size_t first = 0; first < k; first += block_width) {
        const std::size_t count = std::min(block_width, k - first);
        float largest = 0;
        for (std::size_t row = 0; row < rows; ++row) {
            largest = std::max(largest, largest_magnitude(weights.subspan(row * k + first, count)));
        }
        const float quotient = largest / largest_e4m3;
        const float scale = std::isnormal(quotient) ? quotient : 1.0f;
        scales[first / block_width] = scale;
        for (std::size_t row = 0; row < rows; ++row) {
            for (std::size_t i = row * k + first; i < row * k + first + count; ++i) {
                codes[i] = Float8E4M3(weights[i] / scale);
                const double error = weights[i] - static_cast<float>(codes[i]) * scale;
                total.squared_error += error * error;
                total.squared_sum += static_cast<double>(weights[i]) * weights[i];
            }
        }
    }
    return total;
}

RoundingError round_to_w4a16(std::span<const float> weights, std::span<std::uint32_t> words,
                             std::span<BFloat16> scales) {
    assert(weights.size() % block_width == 0 && words.size() == weights.size() / 8);
    assert(scales.size() == weights.size() / block_width);
    RoundingError total;
    std::fill(words.begin(), words.end(), 0u);
    for (std::size_t group = 0; group < scales.size(); ++group) {
        scales[group] = best_scale(weights.subspan(group * block_width, block_width));
        const auto scale = static_cast<float>(scales[group]);
        const float inverse = 1.0f / scale;
        for (std::size_t i = group * block_width; i < (group + 1) * block_width; ++i) {
            const float code = nearest_int4(weights[i] * inverse);
            const auto nibble = static_cast<std::uint32_t>(static_cast<int>(code) + 8);
            words[i / 8] |= nibble << (4 * (i % 8));
            const double error = weights[i] - code * scale;
            total.squared_error += error * error;
            total.squared_sum += static_cast<double>(weights[i]) * weights[i];
        }
    }
    return total;
}

float nvfp4_global_scale(float largest) {
    const float scale = largest / (largest_e2m1 * largest_e4m3);
    return std::isnormal(scale) ? scale : 1.0f;
}

RoundingError round_to_nvfp4(std::span<const float> weights, float global_scale,
                             std::span<std::uint8_t> codes, std::span<Float8E4M3> scales) {
    constexpr std::size_t group = 16;
    assert(weights.size() % group == 0 && codes.size() == weights.size() / 2);
    assert(scales.size() == weights.size() / group);
    RoundingError total;
    std::fill(codes.begin(), codes.end(), std::uint8_t{0});
    for (std::size_t first = 0; first < weights.size(); first += group) {
        const float largest = largest_magnitude(weights.subspan(first, group));
        Float8E4M3 block(largest / (largest_e2m1 * global_scale));
        if (block.bits == 0) block.bits = 1;  // a scale of zero would lose what is small
        scales[first / group] = block;
        const float scale = static_cast<float>(block) * global_scale;
        for (std::size_t i = first; i < first + group; ++i) {
            const float value = nearest_e2m1(weights[i] / scale);
            codes[i / 2] |= static_cast<std::uint8_t>(code_e2m1(value) << (4 * (i % 2)));
            const double error = weights[i] - value * scale;
            total.squared_error += error * error;
            total.squared_sum += static_cast<double>(weights[i]) * weights[i];
        }
    }
    return total;
}

unsigned code_e2m1(float value) {
    const auto twice = static_cast<unsigned>(2 * std::fabs(value));
    // 0, 0.5, 1, 1.5, 2, 3, 4, 6 doubled.
    constexpr unsigned codes[13] = {0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7};
    const unsigned code = codes[twice];
    return value < 0 ? code | 8u : code;
}

}  // namespace percheron::tools
