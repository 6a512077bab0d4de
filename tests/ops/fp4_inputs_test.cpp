#include "ops/fp4_inputs.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "core/dtype.h"

namespace percheron::ops {
namespace {

// The nearest of all values there are; of two as near the one with the even code.
template <class Values>
float nearest_of(const Values& values, double wanted) {
    double least = std::numeric_limits<double>::infinity();
    std::size_t best = 0;
    for (std::size_t code = 0; code < values.size(); ++code) {
        const double distance = std::fabs(values[code] - wanted);
        if (distance < least || (distance == least && code % 2 == 0)) {
            least = distance;
            best = code;
        }
    }
    return values[best];
}

// Where the scale itself is a power of two, quotients are exact and doubles decide as floats do.
TEST(Fp4Inputs, AreTheNearestCodesOfTheNearestScale) {
    std::vector<float> scales;
    for (unsigned code = 0; code < 0x7f; ++code)
        scales.push_back(
            static_cast<float>(Float8E4M3::from_bits(static_cast<std::uint8_t>(code))));
    const std::vector<float> magnitudes = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (const float input_scale : {1.0f, 0.0078125f, 4.0f}) {
        for (int trial = 0; trial < 400; ++trial) {
            std::vector<float> in(32), out(32);
            const float size = std::exp2(static_cast<float>(static_cast<int>(random() % 24) - 12));
            for (float& value : in)
                value = size * input_scale * normal(random);
            round_to_fp4(in, input_scale, out);
            for (std::size_t first = 0; first < in.size(); first += 16) {
                float largest = 0;
                for (std::size_t i = first; i < first + 16; ++i)
                    largest = std::max(largest, std::fabs(in[i]));
                const float block =
                    nearest_of(scales, static_cast<double>(largest / (6.0f * input_scale)));
                for (std::size_t i = first; i < first + 16; ++i) {
                    const float quotient =
                        block > 0 ? std::fabs(in[i]) / (block * input_scale) : 0.0f;
                    const float expected =
                        std::copysign(nearest_of(magnitudes, static_cast<double>(quotient)),
                                      in[i]) *
                        block;
                    ASSERT_EQ(out[i], expected) << in[i] << " by " << input_scale;
                    ASSERT_EQ(rounded_to_bf16(out[i]), out[i]);
                }
            }
        }
    }
}

TEST(Fp4Inputs, WhatTheCodesHoldComesBack) {
    std::mt19937 random(2);
    constexpr float magnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    const float input_scale = 0.013f;
    std::vector<float> in(16), expected(16), out(16);
    for (int trial = 0; trial < 200; ++trial) {
        const auto block = static_cast<float>(
            Float8E4M3::from_bits(static_cast<std::uint8_t>(1 + random() % 0x7e)));
        for (std::size_t i = 0; i < in.size(); ++i) {
            const float code = i == 3 ? 6.0f : magnitudes[random() % 8];
            expected[i] = (random() % 2 == 0 ? 1.0f : -1.0f) * code * block;
            in[i] = expected[i] * input_scale;
        }
        round_to_fp4(in, input_scale, out);
        EXPECT_EQ(out, expected);
    }
}

TEST(Fp4Inputs, NothingAndTooMuchStayFinite) {
    std::vector<float> in(32, 0.0f), out(32, 1.0f);
    in[16] = 1e30f;
    in[17] = -1e30f;
    in[18] = 1.0f;
    round_to_fp4(in, 1.0f, out);
    for (std::size_t i = 0; i < 16; ++i)
        EXPECT_EQ(out[i], 0.0f);
    EXPECT_EQ(out[16], 6 * 448.0f);
    EXPECT_EQ(out[17], -6 * 448.0f);
    EXPECT_EQ(out[18], 0.0f);
}

}  // namespace
}  // namespace percheron::ops
