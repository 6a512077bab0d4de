// A row of a cache page as it is stored: a latent, or a pooled index key.
//
// f32, bf16:  every value by itself, rounded to nearest even.
// f8_e4m3:    codes and one scale 2^e of the row; value i is code_i 2^e, which bf16 holds exactly.
//
//   a      = the largest |x_i|
//   e      = the smallest whole number with a <= 448 * 2^e, kept within [-117, 119]
//   code_i = x_i 2^-e rounded to the nearest e4m3, ties to even; magnitudes above 448 (only where
//            e is kept at 119) become 448
//   scale  = the byte e + 127 (E8M0: a power of two)
//
// A row with a value that is not finite has the scale 255, E8M0's NaN, and codes of 0: it is NaN
// throughout, as a dot product with it is anyway.  No code is ever e4m3's NaN.
//
// So a value is off by at most 2^-4 of itself, or by 2^-10 2^e if it is below 2^-6 2^e (which is
// less than a / 14,000), whatever the row's size; no scale is calibrated and none of a checkpoint
// is wanted.  The stored bytes are a function of the row's values alone: neither batch, chunk, page
// nor neighbour has a part in them, which is what lets a page be shared, rolled back, and kept on
// disk.
//
// A page's share: [rows][width] values, behind them (fp8) [rows] scales.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "percheron/types.h"

#include "core/dtype.h"
#include "ops/stored_values.h"

namespace percheron::ops {

inline constexpr int least_row_exponent = -117;
inline constexpr int largest_row_exponent = 119;
inline constexpr int row_scale_bias = 127;

constexpr bool has_row_scales(DType dtype) {
    return dtype == DType::f8_e4m3;
}

// Of `rows` rows of `width` values, their scales included.
constexpr Bytes stored_rows_bytes(DType dtype, std::size_t rows, std::size_t width) {
    return rows * (width * size_of(dtype) + (has_row_scales(dtype) ? 1 : 0));
}

struct StoredRow {
    void* values = nullptr;
    std::uint8_t* scale = nullptr;  // null where a dtype has none
};

// Row `index` of a page's share that begins at `share` and has `rows` rows.
inline StoredRow stored_row(void* share, DType dtype, std::size_t rows, std::size_t width,
                            std::size_t index) {
    auto* const first = static_cast<std::byte*>(share);
    StoredRow row;
    row.values = first + index * width * size_of(dtype);
    if (has_row_scales(dtype)) {
        row.scale = reinterpret_cast<std::uint8_t*>(first + rows * width) + index;
    }
    return row;
}

// 2^e of a scale byte; NaN of 255, as E8M0 has it.
constexpr float row_scale(std::uint8_t byte) {
    if (byte == 255) return std::numeric_limits<float>::quiet_NaN();
    return std::bit_cast<float>(byte == 0 ? 1u << 22 : static_cast<std::uint32_t>(byte) << 23);
}

// e of a row whose largest magnitude is `most`.
constexpr int row_exponent(float most) {
    // 448 = 1.75 * 2^8: a mantissa above 1.75 needs one more.  Subnormals have a field of 0.
    const auto bits = std::bit_cast<std::uint32_t>(most);
    const int exponent = static_cast<int>(bits >> 23) - 127 - 8;
    return std::clamp(exponent + ((bits & 0x7fffffu) > 0x600000u ? 1 : 0), least_row_exponent,
                      largest_row_exponent);
}

inline void store_row(const StoredRow& row, DType dtype, std::span<const float> values) {
    if (!has_row_scales(dtype)) {
        for (std::size_t i = 0; i < values.size(); ++i) {
            store_rounded(row.values, dtype, i, values[i]);
        }
        return;
    }
    // Magnitudes are ordered as their bits are; infinity and NaN are the largest.
    constexpr std::uint32_t infinite = 0x7f800000u;
    std::uint32_t most = 0;
    for (const float value : values) {
        most = std::max(most, std::bit_cast<std::uint32_t>(value) & 0x7fffffffu);
    }
    auto* const codes = static_cast<Float8E4M3*>(row.values);
    if (most >= infinite) {
        std::fill_n(codes, values.size(), Float8E4M3::from_bits(0));
        *row.scale = 255;
        return;
    }
    const int exponent = row_exponent(std::bit_cast<float>(most));
    const float inverse =
        std::bit_cast<float>(static_cast<std::uint32_t>(row_scale_bias - exponent) << 23);
    for (std::size_t i = 0; i < values.size(); ++i) {
        codes[i] = Float8E4M3(values[i] * inverse);
    }
    *row.scale = static_cast<std::uint8_t>(exponent + row_scale_bias);
}

// Value i of a row.
inline float load_stored(const StoredRow& row, DType dtype, std::size_t i) {
    const float value = load_stored(row.values, dtype, i);
    return row.scale == nullptr ? value : value * row_scale(*row.scale);
}

}  // namespace percheron::ops
