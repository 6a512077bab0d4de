// IEEE binary16, as some converters store what they leave unquantised.
#pragma once

#include <bit>
#include <cstdint>

namespace percheron::checkpoint {

// Exact.
constexpr float half_to_float(std::uint16_t bits) {
    const std::uint32_t sign = (bits & 0x8000u) << 16;
    const std::uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) {  // infinite, NaN
        return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    }
    // Below 2^-14 a multiple of 2^-24, else exponent and mantissa moved into a float's fields.
    const std::uint32_t small =
        std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
    const std::uint32_t normal = (magnitude << 13) + (112u << 23);
    return std::bit_cast<float>(sign | (magnitude < 0x400u ? small : normal));
}

// A finite value of magnitude in [2^-14, 65504], or below as a multiple of 2^-24, rounded to the
// nearest binary16, ties to even.
constexpr float rounded_to_half(double value) {
    const double magnitude = value < 0 ? -value : value;
    // One unit in the last place: 2^-10 of the power of two below, at least 2^-24.
    double unit = 0x1p-24;
    while (magnitude >= unit * 2048)
        unit *= 2;
    // Adding and taking away 3 * 2^51 rounds a double to an integer, ties to even.
    const double rounded = (value / unit + 0x1.8p52) - 0x1.8p52;
    return static_cast<float>(rounded * unit);
}

}  // namespace percheron::checkpoint
