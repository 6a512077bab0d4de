#include "sampling/coupled_noise.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "core/philox.h"

namespace percheron::sampling {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The known answers published with the generator (Random123, kat_vectors).
TEST(Philox, GivesThePublishedAnswers) {
    EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
              (Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
    EXPECT_EQ(philox4x32_10({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
              (Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
    EXPECT_EQ(philox4x32_10({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                            {0xa4093822u, 0x299f31d0u}),
              (Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(CoupledNoise, EveryPartOfItsNameMatters) {
    const double noise = coupled_noise({7, 1}, 20, TokenId(5));
    EXPECT_EQ(noise, coupled_noise({7, 1}, 20, TokenId(5)));
    EXPECT_NE(noise, coupled_noise({8, 1}, 20, TokenId(5)));
    EXPECT_NE(noise, coupled_noise({7 + (std::uint64_t{1} << 32), 1}, 20, TokenId(5)));
    EXPECT_NE(noise, coupled_noise({7, 2}, 20, TokenId(5)));
    EXPECT_NE(noise, coupled_noise({7, 1}, 21, TokenId(5)));
    EXPECT_NE(noise, coupled_noise({7, 1}, 20, TokenId(6)));
}

TEST(CoupledNoise, IsFiniteAndBoundedAtBothEndsOfTheUniform) {
    const NoiseBits lowest{0, 0};
    const NoiseBits highest{~0u, ~0u};
    EXPECT_TRUE(std::isfinite(lowest.noise()));
    EXPECT_TRUE(std::isfinite(highest.noise()));
    EXPECT_LT(lowest.noise(), -3.0);
    EXPECT_GT(highest.noise(), 36.0);
    EXPECT_LE(highest.noise(), highest.bound());
    std::mt19937 random(11);
    for (int leading = 0; leading <= 52; ++leading) {
        for (int repeat = 0; repeat < 200; ++repeat) {
            // Exactly `leading` ones, then a zero, then anything.
            std::uint64_t word = std::uint64_t{random()} << 32 | random();
            if (leading > 0) {
                word = word >> leading | ~std::uint64_t{0} << (64 - leading);
            }
            word &= ~(std::uint64_t{1} << (63 - leading));
            const NoiseBits bits{static_cast<std::uint32_t>(word >> 32),
                                 static_cast<std::uint32_t>(word)};
            ASSERT_LE(bits.noise(), bits.bound()) << leading;
        }
    }
}

// Mean and variance of the Gumbel distribution: Euler's constant and pi^2 / 6.
TEST(CoupledNoise, HasTheMomentsOfTheGumbelDistribution) {
    constexpr int count = 200'000;
    double sum = 0;
    double squares = 0;
    for (int i = 0; i < count; ++i) {
        const double noise =
            coupled_noise({99, 0}, static_cast<Position>(i / 500), TokenId(i % 500));
        sum += noise;
        squares += noise * noise;
    }
    const double mean = sum / count;
    const double variance = squares / count - mean * mean;
    EXPECT_NEAR(mean, 0.5772156649, 5 * 1.2825 / std::sqrt(count));
    EXPECT_NEAR(variance, 1.6449340668, 0.03);
}

}  // namespace
}  // namespace percheron::sampling
