// Products of the prefill class: y = W x for rows by the hundred.
//
// A vector holds the same place of k of as many outputs as it has lanes, so that an output is one
// lane's chain of fused multiply-adds over k in order: no sums across lanes, which cost a third of
// the time of inputs as short as an expert's.  Weights are dequantised once a step into a panel in
// that order, slices of two vectors of outputs: slice[i * 2 * lanes + output], and then meet every
// row.  Which slice, block of rows or task computes an output does not show in its bits, and one
// row is computed as a thousand are.
//
// The decode class (product_kernels.h) sums in another order; the two never meet (ops/batch.h).
#pragma once

#include "ops/cpu/product_kernels.h"

namespace percheron::ops::cpu {
namespace {

template <class V>
constexpr std::size_t slice_outputs = 2 * V::lanes;

// ---- panels

// Elements [first, first + count) of row n, count at most a group and inside one, in order.
template <class V>
void decode_part(const WeightMatrix& weight, std::size_t n, std::size_t first, std::size_t count,
                 float* out) {
    const std::size_t k = weight.k;
    switch (weight.format) {
        case WeightFormat::f32:
            std::memcpy(out, static_cast<const float*>(weight.data) + n * k + first,
                        count * sizeof(float));
            return;
        case WeightFormat::bf16: {
            const auto* from = static_cast<const std::uint16_t*>(weight.data) + n * k + first;
            for (std::size_t i = 0; i < count; ++i)
                out[i] = widened(from[i]);
            return;
        }
        case WeightFormat::fp8_block: {
            const auto* from = static_cast<const std::uint8_t*>(weight.data) + n * k + first;
            const auto* scales = static_cast<const float*>(weight.scales);
            const auto scale =
                V::set1(scales[n / group * ((k + group - 1) / group) + first / group] * 256.0f);
            constexpr std::size_t step = 2 * V::lanes;
            for (std::size_t i = 0; i < count; i += step) {
                typename V::F pair[2];
                if (count - i >= step) {
                    V::load_e4m3_pair(from + i, pair);
                    V::store(out + i, V::mul(pair[0], scale));
                    V::store(out + i + V::lanes, V::mul(pair[1], scale));
                    continue;
                }
                std::uint8_t padded[step] = {};
                float values[step];
                std::memcpy(padded, from + i, count - i);
                V::load_e4m3_pair(padded, pair);
                V::store(values, V::mul(pair[0], scale));
                V::store(values + V::lanes, V::mul(pair[1], scale));
                std::memcpy(out + i, values, (count - i) * sizeof(float));
            }
            return;
        }
        case WeightFormat::w4a16: {
            const auto* words = static_cast<const std::uint32_t*>(weight.data) + n * (k / 8);
            const float scale = widened(
                static_cast<const std::uint16_t*>(weight.scales)[n * (k / group) + first / group]);
            for (std::size_t i = 0; i < count; ++i) {
                const std::size_t at = first + i;
                const auto nibble = static_cast<int>(words[at / 8] >> (4 * (at % 8)) & 15u);
                out[i] = static_cast<float>(nibble - 8) * scale;
            }
            return;
        }
        case WeightFormat::nvfp4:
            return;  // by whole rows: fill_slice
    }
}

// Rows of `lanes` outputs, `count` elements each, to their places in a slice.
template <class V>
void transpose_into(const float* rows, std::size_t stride, std::size_t count, float* slice) {
    typename V::F block[V::lanes];
    std::size_t i = 0;
    for (; i + V::lanes <= count; i += V::lanes) {
#pragma GCC unroll 16
        for (std::size_t lane = 0; lane < V::lanes; ++lane)
            block[lane] = V::load(rows + lane * stride + i);
        V::transpose(block);
#pragma GCC unroll 16
        for (std::size_t j = 0; j < V::lanes; ++j)
            V::store(slice + (i + j) * slice_outputs<V>, block[j]);
    }
    for (; i < count; ++i)
        for (std::size_t lane = 0; lane < V::lanes; ++lane)
            slice[i * slice_outputs<V> + lane] = rows[lane * stride + i];
}

// 4-bit words are transposed before they are taken apart: one transposition for eight weights.
template <class V>
void fill_nibbles(const WeightMatrix& weight, const std::size_t (&outputs)[V::lanes],
                  float* slice) {
    constexpr std::size_t words_a_group = group / 8;
    const auto* const words = static_cast<const std::uint32_t*>(weight.data);
    const auto* const scales = static_cast<const std::uint16_t*>(weight.scales);
    const auto unit = V::nibble_scale(1.0f);
    for (std::size_t g = 0; g * group < weight.k; ++g) {
        float scale_of[V::lanes];
        for (std::size_t lane = 0; lane < V::lanes; ++lane)
            scale_of[lane] = widened(scales[outputs[lane] * (weight.k / group) + g]);
        const auto scale = V::load(scale_of);
        for (std::size_t word = g * words_a_group; word < (g + 1) * words_a_group;
             word += V::lanes) {
            typename V::F block[V::lanes];
#pragma GCC unroll 16
            for (std::size_t lane = 0; lane < V::lanes; ++lane)
                block[lane] =
                    V::as_floats(V::load_words(words + outputs[lane] * (weight.k / 8) + word));
            V::transpose(block);
            for (std::size_t j = 0; j < V::lanes; ++j) {
                auto here = V::as_words(block[j]);
                float* const to = slice + (word + j) * 8 * slice_outputs<V>;
#pragma GCC unroll 8
                for (std::size_t nibble = 0; nibble < 8; ++nibble) {
                    V::store(to + nibble * slice_outputs<V>, V::mul(V::nibble(here, unit), scale));
                    here = V::next_nibble(here);
                }
            }
        }
    }
}

// Pairs of bf16 are transposed before they are widened.  Returns how far over k whole vectors
// reach.
template <class V>
std::size_t fill_bf16_pairs(const WeightMatrix& weight, const std::size_t (&outputs)[V::lanes],
                            float* slice) {
    constexpr std::size_t step = 2 * V::lanes;
    const auto* const values = static_cast<const std::uint16_t*>(weight.data);
    std::size_t i = 0;
    for (; i + step <= weight.k; i += step) {
        typename V::F block[V::lanes];
#pragma GCC unroll 16
        for (std::size_t lane = 0; lane < V::lanes; ++lane) {
            // Not a load of floats: the bits mean something else until they are widened.
            std::uint32_t pairs[V::lanes];
            std::memcpy(pairs, values + outputs[lane] * weight.k + i, sizeof(pairs));
            block[lane] = V::as_floats(V::load_words(pairs));
        }
        V::transpose(block);
#pragma GCC unroll 16
        for (std::size_t j = 0; j < V::lanes; ++j) {
            float* const to = slice + (i + 2 * j) * slice_outputs<V>;
            V::store(to, V::lower_bf16(block[j]));
            V::store(to + slice_outputs<V>, V::upper_bf16(block[j]));
        }
    }
    return i;
}

// Outputs [first, first + slice_outputs) in panel order; behind `last` the last one again, whose
// sums nobody reads.  `row` is room for a dequantised row.
template <class V>
void fill_slice(const WeightMatrix& weight, std::size_t first, std::size_t last, float* slice,
                float* row) {
    if (weight.format == WeightFormat::nvfp4) {
        for (std::size_t lane = 0; lane < slice_outputs<V>; ++lane) {
            dequantise_row(weight, first + lane < last ? first + lane : last - 1, row);
            for (std::size_t i = 0; i < weight.k; ++i)
                slice[i * slice_outputs<V> + lane] = row[i];
        }
        return;
    }
    for (std::size_t half = 0; half < slice_outputs<V>; half += V::lanes) {
        std::size_t outputs[V::lanes];
        for (std::size_t lane = 0; lane < V::lanes; ++lane)
            outputs[lane] = first + half + lane < last ? first + half + lane : last - 1;
        if (weight.format == WeightFormat::w4a16) {
            fill_nibbles<V>(weight, outputs, slice + half);
            continue;
        }
        std::size_t i = 0;
        if (weight.format == WeightFormat::bf16)
            i = fill_bf16_pairs<V>(weight, outputs, slice + half);
        for (; i < weight.k; i += group) {
            const std::size_t count = weight.k - i < group ? weight.k - i : group;
            float rows[V::lanes * group];
            for (std::size_t lane = 0; lane < V::lanes; ++lane)
                decode_part<V>(weight, outputs[lane], i, count, rows + lane * group);
            transpose_into<V>(rows, group, count, slice + i * slice_outputs<V> + half);
        }
    }
}

// The transposed block's slice: columns [first, first + slice_outputs) of rows [first_row, + count)
// lie in panel order as they are stored.
template <class V>
void fill_transposed_slice(const WeightMatrix& weight, std::size_t first_row, std::size_t count,
                           std::size_t first, std::size_t last, float* slice, float* row) {
    const std::size_t columns = last - first < slice_outputs<V> ? last - first : slice_outputs<V>;
    for (std::size_t i = 0; i < count; ++i) {
        float* const to = slice + i * slice_outputs<V>;
        if (weight.format == WeightFormat::nvfp4) {
            dequantise_row(weight, first_row + i, row);
            std::memcpy(to, row + first, columns * sizeof(float));
        } else {
            for (std::size_t c = 0; c < columns;) {
                const std::size_t in_group = group - (first + c) % group;
                const std::size_t here = columns - c < in_group ? columns - c : in_group;
                decode_part<V>(weight, first_row + i, first + c, here, to + c);
                c += here;
            }
        }
        std::memset(to + columns, 0, (slice_outputs<V> - columns) * sizeof(float));
    }
}

// ---- rows against a slice

template <class V, int R>
void slice_rows(const float* slice, std::size_t k, const float* x, std::size_t stride,
                std::size_t columns, float* out, std::size_t out_stride) {
    using F = typename V::F;
    F sums[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
        sums[r][0] = sums[r][1] = V::zero();
    for (std::size_t i = 0; i < k; ++i) {
        const F first = V::load(slice + i * slice_outputs<V>);
        const F second = V::load(slice + i * slice_outputs<V> + V::lanes);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const F factor = V::set1(x[static_cast<std::size_t>(r) * stride + i]);
            sums[r][0] = V::fma(first, factor, sums[r][0]);
            sums[r][1] = V::fma(second, factor, sums[r][1]);
        }
    }
    if (columns == slice_outputs<V>) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            V::store(out + static_cast<std::size_t>(r) * out_stride, sums[r][0]);
            V::store(out + static_cast<std::size_t>(r) * out_stride + V::lanes, sums[r][1]);
        }
        return;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        float both[slice_outputs<V>];
        V::store(both, sums[r][0]);
        V::store(both + V::lanes, sums[r][1]);
        std::memcpy(out + static_cast<std::size_t>(r) * out_stride, both, columns * sizeof(float));
    }
}

// As many rows as accumulators fit beside the slice's vectors and a factor.
template <class V>
constexpr int most_slice_rows = V::registers >= 32 ? 12 : 6;

template <class V, int R = most_slice_rows<V>>
void slice_up_to(std::size_t rows, const float* slice, std::size_t k, const float* x,
                 std::size_t stride, std::size_t columns, float* out, std::size_t out_stride) {
    if (rows == R) return slice_rows<V, R>(slice, k, x, stride, columns, out, out_stride);
    if constexpr (R > 1) slice_up_to<V, R - 1>(rows, slice, k, x, stride, columns, out, out_stride);
}

// Every row against `slices` slices of k * slice_outputs floats, `outputs` outputs in all.
template <class V>
void panel_rows_product(const float* panel, std::size_t outputs, std::size_t k, const PackedRows& x,
                        float* out, std::size_t out_stride) {
    // Blocks as even as can be: short ones have too few chains to fill the pipeline.
    const std::size_t blocks = (x.rows + most_slice_rows<V> - 1) / most_slice_rows<V>;
    for (std::size_t block = 0; block < blocks; ++block) {
        const std::size_t row = x.rows * block / blocks;
        const std::size_t rows = x.rows * (block + 1) / blocks - row;
        for (std::size_t n = 0; n < outputs; n += slice_outputs<V>) {
            const std::size_t columns =
                outputs - n < slice_outputs<V> ? outputs - n : slice_outputs<V>;
            slice_up_to<V>(rows, panel + n * k, k, x.data + row * x.stride, x.stride, columns,
                           out + row * out_stride + n, out_stride);
        }
    }
}

template <class V>
void product_prefill(const WeightMatrix& weight, std::size_t first, std::size_t last,
                     const PackedRows& x, float* out, std::size_t out_stride, float* scratch) {
    float* const panel = scratch + packed_width(weight.k);
    const std::size_t most = prefill_panel_outputs(weight.k);
    for (std::size_t n = first; n < last; n += most) {
        const std::size_t end = n + most < last ? n + most : last;
        for (std::size_t at = n; at < end; at += slice_outputs<V>)
            fill_slice<V>(weight, at, end, panel + (at - n) * weight.k, scratch);
        panel_rows_product<V>(panel, end - n, weight.k, x, out + (n - first), out_stride);
    }
}

template <class V>
void product_transposed_prefill(const WeightMatrix& weight, std::size_t first_row,
                                std::size_t count, std::size_t first_column,
                                std::size_t last_column, const PackedRows& x, float* out,
                                std::size_t out_stride, float* scratch) {
    float* const panel = scratch + packed_width(weight.k);
    const std::size_t most = prefill_panel_outputs(count);
    for (std::size_t c = first_column; c < last_column; c += most) {
        const std::size_t end = c + most < last_column ? c + most : last_column;
        for (std::size_t at = c; at < end; at += slice_outputs<V>)
            fill_transposed_slice<V>(weight, first_row, count, at, end, panel + (at - c) * count,
                                     scratch);
        panel_rows_product<V>(panel, end - c, count, x, out + (c - first_column), out_stride);
    }
}

}  // namespace
}  // namespace percheron::ops::cpu
