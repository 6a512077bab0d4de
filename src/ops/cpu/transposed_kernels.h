// The transposed product: y = W^T x for a block of rows of W, the sum running over them.
//
// The reader of a format hands out the vectors of a row of W: whole<C>(), C of them at once, and
// part(), one with fewer than a vector's columns, padded with zeros.
#pragma once

#include "ops/cpu/product_kernels.h"

namespace percheron::ops::cpu {
namespace {

template <class V>
struct FloatColumns {
    const float* first;  // of the first row and column
    std::size_t k;
    template <int C>
    void whole(std::size_t row, std::size_t column, typename V::F (&value)[C]) const {
#pragma GCC unroll 8
        for (std::size_t c = 0; c < C; ++c)
            value[c] = V::load(first + row * k + column + c * V::lanes);
    }
    typename V::F part(std::size_t row, std::size_t column, std::size_t count) const {
        return load_first<V>(first + row * k + column, count);
    }
};

template <class V>
struct Bf16Columns {
    const std::uint16_t* first;
    std::size_t k;
    template <int C>
    void whole(std::size_t row, std::size_t column, typename V::F (&value)[C]) const {
#pragma GCC unroll 8
        for (std::size_t c = 0; c < C; ++c)
            value[c] = V::load_bf16(first + row * k + column + c * V::lanes);
    }
    typename V::F part(std::size_t row, std::size_t column, std::size_t count) const {
        std::uint16_t padded[V::lanes] = {};
        std::memcpy(padded, first + row * k + column, count * sizeof(std::uint16_t));
        return V::load_bf16(padded);
    }
};

// Codes without their scales, as Fp8Tile.
template <class V>
struct Fp8Columns {
    const std::uint8_t* first;
    std::size_t k;
    template <int C>
    void whole(std::size_t row, std::size_t column, typename V::F (&value)[C]) const {
        static_assert(C % 2 == 0);
#pragma GCC unroll 8
        for (std::size_t c = 0; c < C; c += 2)
            V::load_e4m3_pair(first + row * k + column + c * V::lanes, value + c);
    }
    typename V::F part(std::size_t row, std::size_t column, std::size_t count) const {
        std::uint8_t padded[16] = {};
        std::memcpy(padded, first + row * k + column, count);
        return V::load_e4m3(padded);
    }
};

// Columns [column, column + C vectors), of which `columns` exist, for R rows of x.
template <class V, int C, int R, class Columns>
void transposed_columns(std::size_t count, const PackedRows& x, std::size_t row, std::size_t column,
                        std::size_t columns, const Columns& weight, float* out,
                        std::size_t out_stride) {
    using F = typename V::F;
    F sums[C][R];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
            sums[c][r] = V::zero();
    const float* const rows = x.data + row * x.stride;
    const auto add = [&](std::size_t i, const F(&value)[C]) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const F factor = V::set1(rows[static_cast<std::size_t>(r) * x.stride + i]);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c)
                sums[c][r] = V::fma(factor, value[c], sums[c][r]);
        }
    };
    F value[C];
    if (columns >= C * V::lanes) {
        for (std::size_t i = 0; i < count; ++i) {
            weight.whole(i, column, value);
            add(i, value);
        }
    } else {
        for (std::size_t i = 0; i < count; ++i) {
            for (std::size_t c = 0; c < C; ++c) {
                const std::size_t at = c * V::lanes;
                const std::size_t left = columns > at ? columns - at : 0;
                value[c] = weight.part(i, left != 0 ? column + at : column,
                                       left < V::lanes ? left : V::lanes);
            }
            add(i, value);
        }
    }
    for (std::size_t r = 0; r < R; ++r) {
        float* const to = out + (row + r) * out_stride + column;
        for (std::size_t c = 0; c < C; ++c) {
            const std::size_t at = c * V::lanes;
            if (at >= columns) break;
            if (columns - at >= V::lanes)
                V::store(to + at, sums[c][r]);
            else
                store_first<V>(to + at, sums[c][r], columns - at);
        }
    }
}

template <class V, class Columns>
void transposed_walk(std::size_t count, std::size_t columns, const PackedRows& x,
                     const Columns& weight, float* out, std::size_t out_stride) {
    const auto rows = [&]<int C, int R>(std::size_t row) {
        constexpr std::size_t block = C * V::lanes;
        for (std::size_t column = 0; column < columns; column += block) {
            const std::size_t here = columns - column < block ? columns - column : block;
            transposed_columns<V, C, R>(count, x, row, column, here, weight, out, out_stride);
        }
    };
    // A weight is dequantised once for all the rows of a tile.
    std::size_t row = 0;
    if constexpr (V::registers >= 32)
        for (; row + 8 <= x.rows; row += 8)
            rows.template operator()<2, 8>(row);
    for (; row + 4 <= x.rows; row += 4)
        rows.template operator()<2, 4>(row);
    for (; row < x.rows; ++row)
        rows.template operator()<4, 1>(row);
}

// Columns inside one block of 128: the scales go into the inputs, as in product_fp8.
template <class V>
void transposed_fp8(const WeightMatrix& weight, std::size_t first_row, std::size_t count,
                    std::size_t first_column, std::size_t columns, const PackedRows& x, float* out,
                    std::size_t out_stride, float* scaled) {
    const std::size_t blocks = (weight.k + group - 1) / group;
    const auto* const scales = static_cast<const float*>(weight.scales) + first_column / group;
    const auto* const codes =
        static_cast<const std::uint8_t*>(weight.data) + first_row * weight.k + first_column;
    // As many inputs at once as the scratch holds.
    const std::size_t room = panel_floats(weight.k) / count;
    const std::size_t at_once = room < 1 ? 1 : room < 64 ? room : 64;
    for (std::size_t row = 0; row < x.rows; row += at_once) {
        const std::size_t rows = x.rows - row < at_once ? x.rows - row : at_once;
        for (std::size_t r = 0; r < rows; ++r) {
            const float* const from = x.data + (row + r) * x.stride;
            float* const to = scaled + r * count;
            for (std::size_t i = 0; i < count;) {
                const std::size_t block = (first_row + i) / group;
                const std::size_t left = (block + 1) * group - (first_row + i);
                const std::size_t end = left < count - i ? i + left : count;
                // 256: load_e4m3 hands out codes times 2^-8.
                const auto scale = V::set1(scales[block * blocks] * 256.0f);
                for_each_vector<V>(end - i, [&](std::size_t at, auto load, auto store) {
                    store(to + i + at, V::mul(load(from + i + at), scale));
                });
                i = end;
            }
        }
        transposed_walk<V>(count, columns, {scaled, count, rows}, Fp8Columns<V>{codes, weight.k},
                           out + row * out_stride, out_stride);
    }
}

template <class V>
void product_transposed(const WeightMatrix& weight, std::size_t first_row, std::size_t count,
                        std::size_t first_column, std::size_t last_column, const PackedRows& x,
                        float* out, std::size_t out_stride, float* panel) {
    const std::size_t k = weight.k;
    const std::size_t columns = last_column - first_column;
    switch (weight.format) {
        case WeightFormat::f32: {
            const float* const rows = static_cast<const float*>(weight.data) + first_row * k;
            return transposed_walk<V>(count, columns, x, FloatColumns<V>{rows + first_column, k},
                                      out, out_stride);
        }
        case WeightFormat::bf16: {
            const auto* const rows = static_cast<const std::uint16_t*>(weight.data) + first_row * k;
            return transposed_walk<V>(count, columns, x, Bf16Columns<V>{rows + first_column, k},
                                      out, out_stride);
        }
        case WeightFormat::fp8_block:
            // A column block meets one scale a block of rows only if it lies in one block itself.
            if (first_column / group != (last_column - 1) / group || count > panel_floats(k)) break;
            return transposed_fp8<V>(weight, first_row, count, first_column, columns, x, out,
                                     out_stride, panel);
        default:
            break;
    }
    // The other formats: a few dequantised rows at a time, the sums kept in `out` between them.
    const std::size_t width = packed_width(k);
    for (std::size_t r = 0; r < x.rows; ++r)
        std::memset(out + r * out_stride, 0, columns * sizeof(float));
    for (std::size_t done = 0; done < count; done += panel_rows(k)) {
        const std::size_t here = count - done < panel_rows(k) ? count - done : panel_rows(k);
        fill_panel_plainly(weight, first_row + done, first_row + done + here, panel);
        for (std::size_t r = 0; r < x.rows; ++r) {
            const float* factors = x.data + r * x.stride + done;
            float* sums = out + r * out_stride;
            for_each_vector<V>(columns, [&](std::size_t i, auto load, auto store) {
                auto sum = load(sums + i);
                for (std::size_t row = 0; row < here; ++row)
                    sum = V::fma(V::set1(factors[row]),
                                 load(panel + row * width + first_column + i), sum);
                store(sums + i, sum);
            });
        }
    }
}

}  // namespace
}  // namespace percheron::ops::cpu
