// y = W x straight from stored weights, for a few rows and for many.
//
// One output is one dot product: the lanes of one accumulator run over k in steps of a vector, and
// the lanes are summed at the end, always in this order.  Around that stands a tile of several
// outputs and several rows, only to load and dequantise a weight once for all rows and to have
// enough independent chains; which tile computes an output does not show in its bits.
//
// Few rows dequantise in registers.  Many rows dequantise a panel of outputs into floats first
// (the same values in the same order) and then meet the panel.
//
// A 4-bit weight is its exact dequantised float, as dequantise_row makes it: the lookup table is
// scaled before the product.  The scale of an 8-bit block serves 128 outputs, so it is multiplied
// into the inputs once for all of them; code times scaled input instead of scaled code times input
// is the same up to one rounding of a float, and saves a multiplication a vector of weights.
#pragma once

#include "ops/cpu/math_kernels.h"

namespace percheron::ops::cpu {
namespace {

constexpr std::size_t group = 128;

// ---- tiles: W outputs of one format.  run() walks over places [begin, end) of k in vectors, begin
// a multiple of 128, end one too or k itself, and hands the dequantised vectors of all outputs to
// use(i, values), i their place in the packed input.
//
// On the way it asks for the same place of the outputs that are `ahead` further.  A row is often a
// page or less, where the processor's own prefetchers begin anew, and a tile of many rows of inputs
// computes for so long that it would read nothing meanwhile.

constexpr std::size_t cache_line = 64;

// Into the second cache; behind the end of the weights nothing happens.
inline void ask_for(const void* from, std::size_t bytes) {
    __builtin_prefetch(static_cast<const char*>(from) + bytes, 0, 2);
}

template <class V, int W>
struct FloatTile {
    const float* rows[W];
    void open(const WeightMatrix& weight, int w, std::size_t n) {
        rows[w] = static_cast<const float*>(weight.data) + n * weight.k;
    }
    template <class Use>
    void run(std::size_t begin, std::size_t end, std::size_t /*ahead*/, Use&& use) const {
        std::size_t i = begin;
        for (; i + V::lanes <= end; i += V::lanes) {
            typename V::F values[W];
#pragma GCC unroll 8
            for (int w = 0; w < W; ++w)
                values[w] = V::load(rows[w] + i);
            use(i, values);
        }
        if (i < end) {
            typename V::F values[W];
            for (int w = 0; w < W; ++w)
                values[w] = load_first<V>(rows[w] + i, end - i);
            use(i, values);
        }
    }
};

template <class V, int W>
struct Bf16Tile {
    const std::uint16_t* rows[W];
    std::size_t row_bytes = 0;
    void open(const WeightMatrix& weight, int w, std::size_t n) {
        rows[w] = static_cast<const std::uint16_t*>(weight.data) + n * weight.k;
        row_bytes = weight.k * sizeof(std::uint16_t);
    }
    template <class Use>
    void run(std::size_t begin, std::size_t end, std::size_t ahead, Use&& use) const {
        constexpr std::size_t of_line = cache_line / sizeof(std::uint16_t);
        const auto vector = [this, &use](std::size_t i) {
            typename V::F values[W];
#pragma GCC unroll 8
            for (int w = 0; w < W; ++w)
                values[w] = V::load_bf16(rows[w] + i);
            use(i, values);
        };
        std::size_t i = begin;
        for (; i + of_line <= end; i += of_line) {
#pragma GCC unroll 8
            for (int w = 0; w < W; ++w)
                ask_for(rows[w] + i, ahead * row_bytes);
#pragma GCC unroll 2
            for (std::size_t j = 0; j < of_line; j += V::lanes)
                vector(i + j);
        }
        for (; i + V::lanes <= end; i += V::lanes)
            vector(i);
        if (i < end) {
            typename V::F values[W];
            for (int w = 0; w < W; ++w) {
                std::uint16_t padded[V::lanes] = {};
                std::memcpy(padded, rows[w] + i, (end - i) * sizeof(std::uint16_t));
                values[w] = V::load_bf16(padded);
            }
            use(i, values);
        }
    }
};

// FP8 codes without their scales, which are multiplied into the inputs (product_fp8).
template <class V, int W>
struct Fp8Tile {
    const std::uint8_t* rows[W];
    std::size_t row_bytes = 0;
    void open(const WeightMatrix& weight, int w, std::size_t n) {
        rows[w] = static_cast<const std::uint8_t*>(weight.data) + n * weight.k;
        row_bytes = weight.k;
    }
    template <class Use>
    void run(std::size_t begin, std::size_t end, std::size_t ahead, Use&& use) const {
        using F = typename V::F;
        constexpr std::size_t step = 2 * V::lanes;
        const auto vectors = [this, &use](std::size_t i) {
            F first[W], second[W];
#pragma GCC unroll 8
            for (int w = 0; w < W; ++w) {
                F pair[2];
                V::load_e4m3_pair(rows[w] + i, pair);
                first[w] = pair[0];
                second[w] = pair[1];
            }
            use(i, first);
            use(i + V::lanes, second);
        };
        std::size_t i = begin;
        for (; i + cache_line <= end; i += cache_line) {
#pragma GCC unroll 8
            for (int w = 0; w < W; ++w)
                ask_for(rows[w] + i, ahead * row_bytes);
#pragma GCC unroll 2
            for (std::size_t j = 0; j < cache_line; j += step)
                vectors(i + j);
        }
        for (; i + step <= end; i += step)
            vectors(i);
        if (i < end) {
            F first[W], second[W];
            for (int w = 0; w < W; ++w) {
                std::uint8_t padded[step] = {};
                F pair[2];
                std::memcpy(padded, rows[w] + i, end - i);
                V::load_e4m3_pair(padded, pair);
                first[w] = pair[0];
                second[w] = pair[1];
            }
            use(i, first);
            if (end - i > V::lanes) use(i + V::lanes, second);
        }
    }
};

// W4A16: per group of 128 one scale and sixteen words of eight weights.  The input is packed as
// PackedLayout::nibbles, so nibble j of a vector of words meets the j-th next input vector.
template <class V, int W>
struct NibbleTile {
    const std::uint32_t* rows[W];
    const std::uint16_t* scales[W];
    std::size_t row_bytes = 0;
    void open(const WeightMatrix& weight, int w, std::size_t n) {
        row_bytes = weight.k / 2;
        rows[w] = static_cast<const std::uint32_t*>(weight.data) + n * (weight.k / 8);
        scales[w] = static_cast<const std::uint16_t*>(weight.scales) + n * (weight.k / group);
    }
    template <class Use>
    void run(std::size_t begin, std::size_t end, std::size_t ahead, Use&& use) const {
        for (std::size_t g = begin / group; g * group < end; ++g) {
            typename V::Scale scale[W];
#pragma GCC unroll 8
            for (int w = 0; w < W; ++w)
                scale[w] = V::nibble_scale(widened(scales[w][g]));
            for (std::size_t word = 0; word < 16; word += V::lanes) {
                const std::size_t i = g * group + word * 8;
                const std::size_t at = g * 16 + word;
                if (word == 0) {
                    // A group is a line.
#pragma GCC unroll 8
                    for (int w = 0; w < W; ++w)
                        ask_for(rows[w] + at, ahead * row_bytes);
                }
                typename V::Words words[W];
#pragma GCC unroll 8
                for (int w = 0; w < W; ++w)
                    words[w] = V::load_words(rows[w] + at);
#pragma GCC unroll 8
                for (std::size_t nibble = 0; nibble < 8; ++nibble) {
                    typename V::F values[W];
#pragma GCC unroll 8
                    for (int w = 0; w < W; ++w) {
                        values[w] = V::nibble(words[w], scale[w]);
                        words[w] = V::next_nibble(words[w]);
                    }
                    use(i + nibble * V::lanes, values);
                }
            }
        }
    }
};

// ---- few rows

// Outputs of a tile for R rows: as many chains as registers hold beside the weights' own needs.
template <class V>
constexpr int tile_outputs(int rows) {
    constexpr int many[9] = {0, 8, 6, 4, 4, 3, 3, 2, 2};
    constexpr int few[9] = {0, 4, 3, 2, 2, 1, 1, 1, 1};
    return V::registers >= 32 ? many[rows] : few[rows];
}

// to[0..N) = the sums of N vectors, as many at once as the vector type adds up together: that takes
// a third of the shuffles of one after the other.
template <class V, int N>
void store_sums(float* to, const typename V::F* sums) {
    using F = typename V::F;
    if constexpr (V::lanes >= 16 && N > 12) {
        if constexpr (N >= 16) {
            V::store_sums16(to, sums);
            if constexpr (N > 16) store_sums<V, N - 16>(to + 16, sums + 16);
        } else {
            F padded[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; ++i)
                padded[i] = i < N ? sums[i] : V::zero();
            float all[16];
            V::store_sums16(all, padded);
            std::memcpy(to, all, N * sizeof(float));
        }
    } else if constexpr (V::lanes >= 8 && N >= 8) {
        V::store_sums8(to, sums);
        if constexpr (N > 8) store_sums<V, N - 8>(to + 8, sums + 8);
    } else if constexpr (N >= 4) {
        V::store_sums4(to, sums);
        if constexpr (N > 4) store_sums<V, N - 4>(to + 4, sums + 4);
    } else {
        for (int i = 0; i < N; ++i)
            to[i] = V::sum(sums[i]);
    }
}

// Rows side by side: the vectors of R rows at one place of k follow each other, so that one pointer
// reaches all of them.
template <class V, int R>
constexpr std::size_t beside(std::size_t row, std::size_t i) {
    return i * R + row * V::lanes;
}

// Inputs of R rows that one pass over k may read and still find in the first cache for the next
// outputs; longer rows are met in pieces of half as much.
constexpr std::size_t input_floats_at_hand = 8192;

// With `Beside`, x is R rows side by side, otherwise rows `stride` apart.
template <class V, template <class, int> class Tile, int W, int R, bool Beside, bool Fetch>
void product_rows(const WeightMatrix& weight, std::size_t first, std::size_t last, const float* x,
                  std::size_t stride, float* out, std::size_t out_stride, FetchAhead* ahead) {
    using F = typename V::F;
    // Bytes fetched with one input of a tile.
    [[maybe_unused]] static constexpr std::size_t fetched = Fetch ? FetchAhead::line / V::lanes : 0;
    // Outputs whose sums wait while a piece of k is met: the sums go on from there, so that pieces
    // do not show in the bits.
    constexpr std::size_t most_at_once = 32 / W * W;
    constexpr std::size_t piece = input_floats_at_hand / 2 / R / group * group;
    const bool in_pieces = R > 1 && weight.k * R > input_floats_at_hand;
    const std::size_t at_once = in_pieces ? most_at_once : W;
    const std::size_t k_step = in_pieces ? piece : weight.k;
    F waiting[most_at_once * R];

    const auto compute = [&](std::size_t n, std::size_t k_begin, std::size_t k_end, F* kept) {
        // At the end the last output is computed several times and stored once.
        Tile<V, W> tile;
#pragma GCC unroll 8
        for (int w = 0; w < W; ++w)
            tile.open(weight, w, n + w < last ? n + w : last - 1);
        F sums[R][W];
        if (k_begin == 0) {
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
                for (int w = 0; w < W; ++w)
                    sums[r][w] = V::zero();
        } else {
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
                for (int w = 0; w < W; ++w)
                    sums[r][w] = kept[r * W + w];
        }
        const std::byte* const fetch = Fetch ? ahead->at() - k_begin * fetched : nullptr;
        tile.run(
            k_begin, k_end, at_once, [&sums, x, stride, fetch](std::size_t i, const F(&values)[W]) {
                if constexpr (Fetch) __builtin_prefetch(fetch + i * fetched, 0, 2);
#pragma GCC unroll 8
                for (std::size_t r = 0; r < R; ++r) {
                    const F input = V::load(x + (Beside ? beside<V, R>(r, i) : r * stride + i));
#pragma GCC unroll 8
                    for (int w = 0; w < W; ++w)
                        sums[r][w] = V::fma(values[w], input, sums[r][w]);
                }
            });
        if constexpr (Fetch) ahead->advance((k_end - k_begin) * fetched);
        if (k_end < weight.k) {
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
                for (int w = 0; w < W; ++w)
                    kept[r * W + w] = sums[r][w];
            return;
        }
        if constexpr (W % 4 == 0) {
            if (n + W <= last) {
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r)
                    store_sums<V, W>(out + static_cast<std::size_t>(r) * out_stride + (n - first),
                                     sums[r]);
                return;
            }
        }
        float totals[R * W];
        store_sums<V, R * W>(totals, sums[0]);
        float* const to = out + (n - first);
        if (n + W <= last) {
#pragma GCC unroll 8
            for (std::size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
                for (std::size_t w = 0; w < W; ++w)
                    to[r * out_stride + w] = totals[r * W + w];
            return;
        }
        for (std::size_t r = 0; r < R; ++r)
            for (std::size_t w = 0; w < last - n; ++w)
                to[r * out_stride + w] = totals[r * W + w];
    };

    for (std::size_t n = first; n < last; n += at_once) {
        const std::size_t end = n + at_once < last ? n + at_once : last;
        for (std::size_t k = 0; k < weight.k; k += k_step) {
            const std::size_t k_end = k + k_step < weight.k ? k + k_step : weight.k;
            for (std::size_t at = n; at < end; at += W)
                compute(at, k, k_end, waiting + (at - n) * R);
        }
    }
}

template <class V, template <class, int> class Tile, bool Beside = false>
void product_up_to_8(std::size_t rows, const WeightMatrix& weight, std::size_t first,
                     std::size_t last, const float* x, std::size_t stride, float* out,
                     std::size_t out_stride, FetchAhead* ahead = nullptr) {
    const auto with = [&]<int R>() {
        constexpr int W = tile_outputs<V>(R);
        // Only FP8 fetches: the matrices before a recurrence are FP8 where memory is scarce.
        if constexpr (Beside) {
            if (ahead != nullptr && !ahead->done())
                return product_rows<V, Tile, W, R, Beside, true>(weight, first, last, x, stride,
                                                                 out, out_stride, ahead);
        }
        product_rows<V, Tile, W, R, Beside, false>(weight, first, last, x, stride, out, out_stride,
                                                   ahead);
    };
    switch (rows) {
        case 1:
            return with.template operator()<1>();
        case 2:
            return with.template operator()<2>();
        case 3:
            return with.template operator()<3>();
        case 4:
            return with.template operator()<4>();
        case 5:
            return with.template operator()<5>();
        case 6:
            return with.template operator()<6>();
        case 7:
            return with.template operator()<7>();
        default:
            return with.template operator()<8>();
    }
}

// ---- many rows

// Outputs [first, last) dequantised in the order of the packed input, rows packed_width(k) apart
// and zero behind k.
template <class V, template <class, int> class Tile>
void fill_panel(const WeightMatrix& weight, std::size_t first, std::size_t last, float* panel) {
    constexpr std::size_t rows_ahead = 8;
    const std::size_t width = packed_width(weight.k);
    for (std::size_t n = first; n < last; ++n) {
        float* row = panel + (n - first) * width;
        if (width != weight.k) std::memset(row, 0, width * sizeof(float));
        Tile<V, 1> tile;
        tile.open(weight, 0, n);
        tile.run(0, weight.k, rows_ahead, [row](std::size_t i, const typename V::F(&value)[1]) {
            V::store(row + i, value[0]);
        });
    }
}

void fill_panel_plainly(const WeightMatrix& weight, std::size_t first, std::size_t last,
                        float* panel) {
    const std::size_t width = packed_width(weight.k);
    for (std::size_t n = first; n < last; ++n) {
        float* row = panel + (n - first) * width;
        dequantise_row(weight, n, row);
        std::memset(row + weight.k, 0, (width - weight.k) * sizeof(float));
    }
}

inline WeightMatrix panel_matrix(const float* panel, std::size_t n, std::size_t width) {
    WeightMatrix matrix;
    matrix.format = WeightFormat::f32;
    matrix.n = n;
    matrix.k = width;
    matrix.data = panel;
    return matrix;
}

// Every row against a panel of floats.
template <class V>
void product_with_panel(const WeightMatrix& panel, const PackedRows& x, float* out,
                        std::size_t out_stride) {
    constexpr int R = 4;
    constexpr int W = V::registers >= 32 ? 6 : 3;
    std::size_t row = 0;
    for (; row + R <= x.rows; row += R)
        product_rows<V, FloatTile, W, R, false, false>(panel, 0, panel.n, x.data + row * x.stride,
                                                       x.stride, out + row * out_stride, out_stride,
                                                       nullptr);
    if (row < x.rows)
        product_up_to_8<V, FloatTile>(x.rows - row, panel, 0, panel.n, x.data + row * x.stride,
                                      x.stride, out + row * out_stride, out_stride);
}

template <class V, template <class, int> class Tile>
void product_of_format(const WeightMatrix& weight, std::size_t first, std::size_t last,
                       const PackedRows& x, float* out, std::size_t out_stride, float* panel) {
    if (x.rows <= 8) {
        product_up_to_8<V, Tile>(x.rows, weight, first, last, x.data, x.stride, out, out_stride);
        return;
    }
    const std::size_t width = packed_width(weight.k);
    for (std::size_t n = first; n < last; n += panel_rows(weight.k)) {
        const std::size_t end = n + panel_rows(weight.k) < last ? n + panel_rows(weight.k) : last;
        if (x.rows <= most_rows_in_registers) {
            const std::size_t half = (x.rows + 1) / 2;
            product_up_to_8<V, Tile>(half, weight, n, end, x.data, x.stride, out + (n - first),
                                     out_stride);
            product_up_to_8<V, Tile>(x.rows - half, weight, n, end, x.data + half * x.stride,
                                     x.stride, out + half * out_stride + (n - first), out_stride);
        } else {
            fill_panel<V, Tile>(weight, n, end, panel);
            product_with_panel<V>(panel_matrix(panel, end - n, width), x, out + (n - first),
                                  out_stride);
        }
    }
}

// x[r] times the scales of the weights' block row, rows `width` apart.
template <class V>
void scale_rows(const float* scales, const PackedRows& x, std::size_t first, std::size_t count,
                std::size_t width, float* out) {
    for (std::size_t r = 0; r < count; ++r) {
        const float* const from = x.data + (first + r) * x.stride;
        float* const to = out + r * width;
        for (std::size_t g = 0; g * group < width; ++g) {
            // 256: load_e4m3 hands out codes times 2^-8.
            const auto scale = V::set1(scales[g] * 256.0f);
            for (std::size_t i = g * group; i < (g + 1) * group; i += V::lanes)
                V::store(to + i, V::mul(V::load(from + i), scale));
        }
    }
}

// The same for up to eight rows side by side.
template <class V>
void scale_beside(const float* scales, const PackedRows& x, std::size_t first, std::size_t count,
                  std::size_t width, float* out) {
    for (std::size_t r = 0; r < count; ++r) {
        const float* const from = x.data + (first + r) * x.stride;
        float* to = out + r * V::lanes;
        for (std::size_t g = 0; g * group < width; ++g) {
            const auto scale = V::set1(scales[g] * 256.0f);
            for (std::size_t i = g * group; i < (g + 1) * group; i += V::lanes) {
                V::store(to, V::mul(V::load(from + i), scale));
                to += count * V::lanes;
            }
        }
    }
}

// FP8 outputs of one block of 128 for up to most_rows_in_registers rows.
template <class V>
void product_fp8_block(const WeightMatrix& weight, const float* scales, std::size_t first,
                       std::size_t last, const PackedRows& x, float* out, std::size_t out_stride,
                       float* scaled, FetchAhead* ahead) {
    const std::size_t width = packed_width(weight.k);
    const std::size_t half = x.rows <= 8 ? x.rows : (x.rows + 1) / 2;
    scale_beside<V>(scales, x, 0, half, width, scaled);
    scale_beside<V>(scales, x, half, x.rows - half, width, scaled + half * width);
    // Two halves read the same weights: few outputs at a time.
    const std::size_t block = half == x.rows ? last - first : panel_rows(weight.k);
    for (std::size_t n = first; n < last; n += block) {
        const std::size_t end = n + block < last ? n + block : last;
        for (std::size_t row = 0; row < x.rows; row += half) {
            const std::size_t rows = x.rows - row < half ? x.rows - row : half;
            product_up_to_8<V, Fp8Tile, true>(rows, weight, n, end, scaled + row * width, 0,
                                              out + row * out_stride + (n - first), out_stride,
                                              ahead);
        }
    }
}

template <class V>
void product_fp8(const WeightMatrix& weight, std::size_t first, std::size_t last,
                 const PackedRows& x, float* out, std::size_t out_stride, float* scratch,
                 FetchAhead* ahead) {
    const std::size_t width = packed_width(weight.k);
    float* const scaled = scratch;
    float* const panel = scratch + most_rows_in_registers * width;
    const auto* const scales = static_cast<const float*>(weight.scales);
    for (std::size_t n = first; n < last;) {
        const std::size_t block_end =
            (n / group + 1) * group < last ? (n / group + 1) * group : last;
        const float* const block_scales = scales + n / group * (width / group);
        if (x.rows <= most_rows_in_registers) {
            product_fp8_block<V>(weight, block_scales, n, block_end, x, out + (n - first),
                                 out_stride, scaled, ahead);
            n = block_end;
            continue;
        }
        const std::size_t end =
            n + panel_rows(weight.k) < block_end ? n + panel_rows(weight.k) : block_end;
        fill_panel<V, Fp8Tile>(weight, n, end, panel);
        const WeightMatrix floats = panel_matrix(panel, end - n, width);
        for (std::size_t row = 0; row < x.rows; row += most_rows_in_registers) {
            const std::size_t rows =
                x.rows - row < most_rows_in_registers ? x.rows - row : most_rows_in_registers;
            scale_rows<V>(block_scales, x, row, rows, width, scaled);
            product_with_panel<V>(floats, {scaled, width, rows},
                                  out + row * out_stride + (n - first), out_stride);
        }
        n = end;
    }
}

template <class V>
void product(const WeightMatrix& weight, std::size_t first, std::size_t last, const PackedRows& x,
             float* out, std::size_t out_stride, float* panel, FetchAhead* ahead) {
    switch (weight.format) {
        case WeightFormat::f32:
            return product_of_format<V, FloatTile>(weight, first, last, x, out, out_stride, panel);
        case WeightFormat::bf16:
            return product_of_format<V, Bf16Tile>(weight, first, last, x, out, out_stride, panel);
        case WeightFormat::fp8_block:
            return product_fp8<V>(weight, first, last, x, out, out_stride, panel, ahead);
        case WeightFormat::w4a16:
            return product_of_format<V, NibbleTile>(weight, first, last, x, out, out_stride, panel);
        case WeightFormat::nvfp4:
            for (std::size_t n = first; n < last; n += panel_rows(weight.k)) {
                const std::size_t end =
                    n + panel_rows(weight.k) < last ? n + panel_rows(weight.k) : last;
                fill_panel_plainly(weight, n, end, panel);
                product_with_panel<V>(panel_matrix(panel, end - n, packed_width(weight.k)), x,
                                      out + (n - first), out_stride);
            }
            return;
    }
}

// ---- inputs

template <class V>
void pack_row(PackedLayout layout, bool round, const float* in, std::size_t k, float* out) {
    const std::size_t width = packed_width(k);
    for_each_vector<V>(k, [&](std::size_t i, auto load, auto store) {
        const auto x = load(in + i);
        store(out + i, round ? V::round_bf16(x) : x);
    });
    std::memset(out + k, 0, (width - k) * sizeof(float));
    if (layout == PackedLayout::natural) return;
    for (std::size_t g = 0; g < width; g += group) {
        // A row of a block is a word's eight inputs and, with long vectors, the next word's too.
        float natural[group + V::lanes] = {};
        std::memcpy(natural, out + g, group * sizeof(float));
        float* to = out + g;
        for (std::size_t word = 0; word < 16; word += V::lanes) {
            for (std::size_t first = 0; first < 8; first += V::lanes) {
                typename V::F block[V::lanes];
#pragma GCC unroll 16
                for (std::size_t lane = 0; lane < V::lanes; ++lane)
                    block[lane] = V::load(natural + (word + lane) * 8 + first);
                V::transpose(block);
                constexpr std::size_t nibbles = V::lanes < 8 ? V::lanes : 8;
#pragma GCC unroll 8
                for (std::size_t j = 0; j < nibbles; ++j)
                    V::store(to + (first + j) * V::lanes, block[j]);
            }
            to += 8 * V::lanes;
        }
    }
}

}  // namespace
}  // namespace percheron::ops::cpu
