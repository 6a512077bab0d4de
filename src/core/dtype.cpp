#include "core/dtype.h"

#include <bit>
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
    const auto word = std::bit_cast<std::uint32_t>(magnitude);
    if (magnitude < 0x1p-6f) {
        // The grid is uniform with step 2^-9, which is the last place of 2^14.
        constexpr float last_place = 0x1p14f;
        bits =
            sign | static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(magnitude + last_place) -
                                             std::bit_cast<std::uint32_t>(last_place));
        return;
    }
    // Three mantissa bits stay of 23; a carry runs into the exponent, whose bias becomes 7.
    const std::uint32_t rounded = word + 0x7ffffu + ((word >> 20) & 1u);
    bits = sign | static_cast<std::uint8_t>((rounded >> 20) - (120u << 3));
}

}  // namespace percheron
