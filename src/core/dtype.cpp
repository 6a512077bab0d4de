#include "core/dtype.h"

#include <cmath>

namespace percheron {

namespace {

struct NamedType {
    DType dtype;
    std::string_view name;
};

constexpr NamedType named_types[] = {
    {DType::f64, "F64"},         {DType::f32, "F32"},         {DType::bf16, "BF16"},
    {DType::f16, "F16"},         {DType::f8_e4m3, "F8_E4M3"}, {DType::f8_e5m2, "F8_E5M2"},
    {DType::f8_e8m0, "F8_E8M0"}, {DType::i64, "I64"},         {DType::u64, "U64"},
    {DType::i32, "I32"},         {DType::u32, "U32"},         {DType::i16, "I16"},
    {DType::u16, "U16"},         {DType::i8, "I8"},           {DType::u8, "U8"},
    {DType::boolean, "BOOL"},
};

}  // namespace

std::string_view name_of(DType dtype) {
    for (const NamedType& type : named_types) {
        if (type.dtype == dtype) return type.name;
    }
    return "?";
}

bool dtype_from_name(std::string_view name, DType& dtype) {
    for (const NamedType& type : named_types) {
        if (type.name == name) {
            dtype = type.dtype;
            return true;
        }
    }
    return false;
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

}  // namespace percheron
