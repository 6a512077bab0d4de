// The noise that makes a token a function of its request and place, not of how it was computed.
//
//   g(seed, choice, p, v) = -ln(-ln u),   u = (k + 1/2) 2^-52 in (0, 1)
//   k = the upper 52 bits of words 0 and 1 of Philox4x32-10 with
//       key     (seed low, seed high)
//       counter (v, p, choice, 0)
//
// argmax over v of (logit + g) is a draw from softmax(logits).  Whoever proposes tokens draws with
// the same g at the same p over its own candidates: where its distribution is near the model's, so
// is its choice, at any temperature.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "percheron/types.h"

#include "core/philox.h"

namespace percheron::sampling {

// The noise of one choice of one request.
struct NoiseStream {
    std::uint64_t seed = 0;
    std::uint32_t choice = 0;
};

// The uniform bits behind g at (p, v); split off because most candidates can be ruled out by them.
struct NoiseBits {
    std::uint32_t high = 0;
    std::uint32_t low = 0;

    std::uint64_t uniform_bits() const { return (std::uint64_t{high} << 32 | low) >> 12; }
    double noise() const {
        const double uniform = (static_cast<double>(uniform_bits()) + 0.5) * 0x1p-52;
        return -std::log(-std::log(uniform));
    }
    // noise() <= bound(): with c leading ones of 52, 1 - u >= 2^-(c+1), and -ln(1 - x) >= x.  A
    // hair is added for the rounding of noise() itself.
    double bound() const {
        const int leading_ones = std::min(52, std::countl_one(std::uint64_t{high} << 32 | low));
        return (leading_ones + 1) * std::numbers::ln2 + 1e-9;
    }
};

inline NoiseBits noise_bits(NoiseStream stream, Position position, TokenId token) {
    const std::array<std::uint32_t, 4> words = philox4x32_10(
        {static_cast<std::uint32_t>(to_int(token)), position, stream.choice, 0},
        {static_cast<std::uint32_t>(stream.seed), static_cast<std::uint32_t>(stream.seed >> 32)});
    return {words[0], words[1]};
}

// g(seed, choice, p, v)
inline double coupled_noise(NoiseStream stream, Position position, TokenId token) {
    return noise_bits(stream, position, token).noise();
}

}  // namespace percheron::sampling
