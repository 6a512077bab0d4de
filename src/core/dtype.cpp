#include "core/dtype.h"

#include <cmath>
#include <limits>

namespace percheron {

std::string_view name_of(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return "F32";
        case DType::bf16:
            return "BF16";
        case DType::f16:
            return "F16";
        case DType::f8_e4m3:
            return "F8_E4M3";
        case DType::i64:
            return "I64";
        case DType::i32:
            return "I32";
        case DType::u32:
            return "U32";
        case DType::i8:
            return "I8";
        case DType::u8:
            return "U8";
        case DType::boolean:
            return "BOOL";
    }
    return "?";
}

Float8E4M3::Float8E4M3(float value) {
    const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
    const float magnitude = std::fabs(value);
    if (std::isnan(value)) {
        bits = sign | 0x7f;
        return;
    }
    if (magnitude >= 448.0f) {
        bits = sign | 0x7e;
        return;
    }
    // Below 2^-6 the grid is uniform with step 2^-9; above, three mantissa bits.
    int exponent = 0;
    std::frexp(magnitude, &exponent);  // magnitude = m * 2^exponent, m in [0.5, 1)
    exponent = std::max(exponent - 1, -6);
    const float step = std::ldexp(1.0f, exponent - 3);
    const auto units = static_cast<int>(std::nearbyint(magnitude / step));  // 0..16
    // units counts steps of this binade; 16 carries into the next one, which the sum below does.
    const int code = units < 8 ? units : (exponent + 7) * 8 + (units - 8);
    bits = sign | static_cast<std::uint8_t>(code);
}

Float8E4M3::operator float() const {
    const int exponent = (bits >> 3) & 15;
    const int mantissa = bits & 7;
    float magnitude = 0;
    if (exponent == 15 && mantissa == 7) {
        magnitude = std::numeric_limits<float>::quiet_NaN();
    } else if (exponent == 0) {
        magnitude = std::ldexp(static_cast<float>(mantissa), -9);
    } else {
        magnitude = std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    }
    return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

}  // namespace percheron
