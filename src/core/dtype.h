// Element types of stored tensors, and the two small floats of this project with their exact
// conversions.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace percheron {

// Every type a safetensors file may name; the network computes from f32, bf16, f8_e4m3 and packed
// integers only.
enum class DType : std::uint8_t {
    f64,
    f32,
    bf16,
    f16,
    f8_e4m3,
    f8_e5m2,
    f8_e8m0,
    i64,
    u64,
    i32,
    u32,
    i16,
    u16,
    i8,
    u8,
    boolean
};

constexpr std::size_t size_of(DType dtype) {
    switch (dtype) {
        case DType::f64:
        case DType::i64:
        case DType::u64:
            return 8;
        case DType::f32:
        case DType::i32:
        case DType::u32:
            return 4;
        case DType::bf16:
        case DType::f16:
        case DType::i16:
        case DType::u16:
            return 2;
        default:
            return 1;
    }
}

// The name safetensors uses, and its inverse (false: no such type; `dtype` is then untouched).
std::string_view name_of(DType dtype);
bool dtype_from_name(std::string_view name, DType& dtype);

// bfloat16: the upper half of an IEEE binary32.  Conversion from float rounds to nearest even and
// keeps NaN a (quiet) NaN.
struct BFloat16 {
    std::uint16_t bits = 0;

    BFloat16() = default;
    constexpr explicit BFloat16(float value) : bits(round(value)) {}
    static constexpr BFloat16 from_bits(std::uint16_t bits) {
        BFloat16 result;
        result.bits = bits;
        return result;
    }
    constexpr explicit operator float() const {
        return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }

  private:
    static constexpr std::uint16_t round(float value) {
        const auto word = std::bit_cast<std::uint32_t>(value);
        if ((word & 0x7fffffffu) > 0x7f800000u)
            return static_cast<std::uint16_t>((word >> 16) | 64u);
        return static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
    }
};
static_assert(sizeof(BFloat16) == 2);

// A float rounded to bfloat16 and widened again.
constexpr float rounded_to_bf16(float value) {
    return static_cast<float>(BFloat16(value));
}

// float8 e4m3 (finite variant: no infinity, 0x7f and 0xff are NaN).  Bias 7, maximum 448.
struct Float8E4M3 {
    std::uint8_t bits = 0;

    Float8E4M3() = default;
    // Rounds to nearest even; magnitudes above 448 saturate; NaN stays NaN.
    explicit Float8E4M3(float value);
    static constexpr Float8E4M3 from_bits(std::uint8_t bits) {
        Float8E4M3 result;
        result.bits = bits;
        return result;
    }
    constexpr explicit operator float() const {
        const std::uint32_t sign = (bits & 0x80u) << 24;
        const std::uint32_t magnitude = bits & 0x7fu;
        if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
        // Below 2^-6 a multiple of 2^-9, else exponent and mantissa moved into a float's fields.
        const std::uint32_t small =
            std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-9f);
        const std::uint32_t normal = (magnitude << 20) + (120u << 23);
        return std::bit_cast<float>(sign | (magnitude < 8 ? small : normal));
    }
};
static_assert(sizeof(Float8E4M3) == 1);

inline constexpr float largest_e4m3 = 448.0f;
inline constexpr float largest_e2m1 = 6.0f;

// The whole number nearest to a value below 2^22, ties to even: adding 1.5 * 2^23 leaves it in the
// low bits of the sum.  Branch-free, so that loops over it become vector code.
inline float nearest_whole(float value) {
    constexpr float magic = 12582912.0f;
    return (value + magic) - magic;
}

// The E2M1 value (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives) nearest to `quotient`, ties to
// the even code.
inline float nearest_e2m1(float quotient) {
    const float magnitude = std::min(std::fabs(quotient), 6.0f);
    // Steps of 1/2 below 2, of 1 below 4, of 2 above.
    const float step = magnitude < 2.0f ? 0.5f : magnitude < 4.0f ? 1.0f : 2.0f;
    const float inverse = magnitude < 2.0f ? 2.0f : magnitude < 4.0f ? 1.0f : 0.5f;
    return std::copysign(nearest_whole(magnitude * inverse) * step, quotient);
}

}  // namespace percheron
