#include "core/dtype.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace percheron {
namespace {

TEST(BFloat16, RoundsToTheNearestAndTiesToEven) {
    std::mt19937 random(1);
    std::uniform_int_distribution<std::uint32_t> words;
    for (int trial = 0; trial < 100000; ++trial) {
        const float value = std::bit_cast<float>(words(random));
        if (!std::isfinite(value)) continue;
        const auto below = std::bit_cast<std::uint32_t>(value) & 0xffff0000u;
        const double low = std::bit_cast<float>(below);
        const double high = std::bit_cast<float>(below + 0x10000u);
        const float rounded = rounded_to_bf16(value);
        if (!std::isfinite(high)) continue;
        const double to_low = std::fabs(value - low);
        const double to_high = std::fabs(high - value);
        if (to_low != to_high) {
            EXPECT_EQ(rounded, to_low < to_high ? low : high);
        } else {
            EXPECT_EQ(BFloat16(value).bits % 2, 0) << value;
        }
    }
    EXPECT_TRUE(std::isnan(rounded_to_bf16(std::nanf(""))));
}

TEST(Float8E4M3, EveryCodeSurvivesARoundTrip) {
    for (int code = 0; code < 256; ++code) {
        const auto value =
            static_cast<float>(Float8E4M3::from_bits(static_cast<std::uint8_t>(code)));
        if (std::isnan(value)) {
            EXPECT_EQ(code & 0x7f, 0x7f);
            continue;
        }
        EXPECT_EQ(Float8E4M3(value).bits, code) << value;
    }
}

TEST(Float8E4M3, RoundsToTheNearestCode) {
    std::mt19937 random(2);
    std::uniform_real_distribution<float> exponents(-12.0f, 9.0f);
    for (int trial = 0; trial < 20000; ++trial) {
        const float value = std::exp2(exponents(random)) * (trial % 2 == 0 ? 1.0f : -1.0f);
        const auto chosen = static_cast<float>(Float8E4M3(value));
        for (int code = 0; code < 256; ++code) {
            const auto other =
                static_cast<float>(Float8E4M3::from_bits(static_cast<std::uint8_t>(code)));
            if (std::isnan(other)) continue;
            ASSERT_LE(std::fabs(chosen - value), std::fabs(other - value)) << value;
        }
    }
}

// Every float that lies between two codes, or next to such a middle, goes the right way; the middle
// itself to the even code.
TEST(Float8E4M3, TiesGoToTheEvenCode) {
    for (int code = 0; code < 0x7e; ++code) {
        const auto value = [](int bits) {
            return static_cast<float>(Float8E4M3::from_bits(static_cast<std::uint8_t>(bits)));
        };
        const float middle = (value(code) + value(code + 1)) / 2;
        for (const int sign : {0, 0x80}) {
            const auto rounded = [sign](float x) {
                return Float8E4M3(sign == 0 ? x : -x).bits - sign;
            };
            EXPECT_EQ(rounded(middle), code + code % 2) << middle;
            EXPECT_EQ(rounded(std::nextafter(middle, 0.0f)), code) << middle;
            EXPECT_EQ(rounded(std::nextafter(middle, 500.0f)), code + 1) << middle;
        }
    }
}

TEST(Float8E4M3, EndsOfTheRange) {
    EXPECT_EQ(Float8E4M3(449.0f).bits, 0x7e);
    EXPECT_EQ(Float8E4M3(-1e30f).bits, 0xfe);
    EXPECT_EQ(Float8E4M3(INFINITY).bits, 0x7e);
    EXPECT_EQ(Float8E4M3(0.0f).bits, 0);
    EXPECT_EQ(Float8E4M3(-0.0f).bits, 0x80);
    EXPECT_EQ(Float8E4M3(0x1p-149f).bits, 0);
    EXPECT_EQ(Float8E4M3(std::nanf("")).bits & 0x7f, 0x7f);
}

}  // namespace
}  // namespace percheron
