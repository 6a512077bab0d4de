// Norms, gates and activations of one row, the short convolution, and the mHC streams of one row.
#pragma once

#include "ops/cpu/math_kernels.h"

namespace percheron::ops::cpu {
namespace {

template <class V>
void rms_norm(const float* in, const float* weight, float eps, std::size_t n, float* out) {
    const float mean = sum_of_squares<V>(in, n) / static_cast<float>(n);
    const auto scale = V::set1(1.0f / square_root(mean + eps));
    for_each_vector<V>(n, [&](std::size_t i, auto load, auto store) {
        store(out + i, V::mul(V::mul(load(in + i), scale), load(weight + i)));
    });
}

template <class V>
void layer_norm(const float* in, const float* weight, const float* bias, float eps, std::size_t n,
                float* out) {
    using F = typename V::F;
    const float mean =
        chained_sum<V>(n, [in](std::size_t i, std::size_t count,
                               F sum) { return V::add(sum, load_up_to<V>(in + i, count)); }) /
        static_cast<float>(n);
    // The padding of the last vector must not look like values at distance `mean`.
    const float spread = chained_sum<V>(n, [in, mean](std::size_t i, std::size_t count, F sum) {
        float padded[V::lanes];
        for (std::size_t lane = 0; lane < V::lanes; ++lane)
            padded[lane] = lane < count ? in[i + lane] : mean;
        const F away = V::sub(V::load(padded), V::set1(mean));
        return V::fma(away, away, sum);
    });
    const auto scale = V::set1(1.0f / square_root(spread / static_cast<float>(n) + eps));
    const auto centre = V::set1(mean);
    for_each_vector<V>(n, [&](std::size_t i, auto load, auto store) {
        const F normal = V::mul(V::sub(load(in + i), centre), scale);
        store(out + i, V::fma(normal, load(weight + i), load(bias + i)));
    });
}

template <class V>
void swiglu(const float* gate, const float* up, float limit, std::size_t n, float* out) {
    const auto high = V::set1(limit), low = V::set1(-limit);
    for_each_vector<V>(n, [&](std::size_t i, auto load, auto store) {
        const auto g = V::min(load(gate + i), high);
        const auto u = V::max(V::min(load(up + i), high), low);
        store(out + i, V::mul(V::mul(g, logistic<V>(g)), u));
    });
}

template <class V>
float exponentials(float* values, std::size_t n) {
    float largest = values[0];
    std::size_t i = 0;
    if (n >= V::lanes) {
        auto wide = V::load(values);
        for (i = V::lanes; i + V::lanes <= n; i += V::lanes)
            wide = V::max(wide, V::load(values + i));
        float lanes[V::lanes];
        V::store(lanes, wide);
        for (const float lane : lanes)
            if (lane > largest) largest = lane;
    }
    for (; i < n; ++i)
        if (values[i] > largest) largest = values[i];
    const auto top = V::set1(largest);
    for_each_vector<V>(n, [&](std::size_t at, auto load, auto store) {
        store(values + at, exponential<V>(V::sub(load(values + at), top)));
    });
    return chained_sum<V>(n, [values](std::size_t at, std::size_t count, typename V::F sum) {
        return V::add(load_up_to<V>(values + at, count), sum);
    });
}

template <class V>
void l2_norm(const float* in, float scale, std::size_t n, float* out) {
    const auto factor = V::set1(scale / square_root(sum_of_squares<V>(in, n) + 1e-6f));
    for_each_vector<V>(n, [&](std::size_t i, auto load, auto store) {
        store(out + i, V::mul(load(in + i), factor));
    });
}

template <class V>
void log_decay(const float* in, const float* bias, float rate, float lower_bound, std::size_t n,
               float* out) {
    const auto speed = V::set1(rate), bound = V::set1(lower_bound);
    for_each_vector<V>(n, [&](std::size_t i, auto load, auto store) {
        const auto a = V::add(load(in + i), load(bias + i));
        store(out + i, V::mul(bound, logistic<V>(V::mul(speed, a))));
    });
}

template <class V>
void sigmoid(const float* in, std::size_t n, float* out) {
    for_each_vector<V>(n, [&](std::size_t i, auto load, auto store) {
        store(out + i, logistic<V>(load(in + i)));
    });
}

template <class V>
void gated_norm(const float* in, const float* gate, const float* weight, float eps, std::size_t n,
                float* out) {
    const float mean = sum_of_squares<V>(in, n) / static_cast<float>(n);
    const auto scale = V::set1(1.0f / square_root(mean + eps));
    for_each_vector<V>(n, [&](std::size_t i, auto load, auto store) {
        const auto normal = V::mul(V::mul(load(in + i), scale), load(weight + i));
        store(out + i, V::mul(normal, logistic<V>(load(gate + i))));
    });
}

template <class V>
void short_conv(const float* const* history, const float* weight, std::size_t taps, std::size_t n,
                float* out) {
    using F = typename V::F;
    const auto silu = [](F z) { return V::mul(z, logistic<V>(z)); };
    std::size_t i = 0;
    if (taps == 4) {
        for (; i + V::lanes <= n; i += V::lanes) {
            F w[4];
            V::load_interleaved4(weight + 4 * i, w);
            F z = V::mul(w[0], V::load(history[0] + i));
            for (int j = 1; j < 4; ++j)
                z = V::fma(w[j], V::load(history[j] + i), z);
            V::store(out + i, silu(z));
        }
    }
    for (; i < n; i += V::lanes) {
        const std::size_t count = n - i < V::lanes ? n - i : V::lanes;
        F z = V::zero();
        for (std::size_t j = 0; j < taps; ++j) {
            float w[V::lanes] = {};
            for (std::size_t lane = 0; lane < count; ++lane)
                w[lane] = weight[(i + lane) * taps + j];
            const F x = load_up_to<V>(history[j] + i, count);
            z = j == 0 ? V::mul(V::load(w), x) : V::fma(V::load(w), x, z);
        }
        store_first<V>(out + i, silu(z), count);
    }
}

template <class V>
void weighted_sum(const float* const* rows, const float* weights, std::size_t count,
                  const float* last, std::size_t n, float* out) {
    for_each_vector<V>(n, [&](std::size_t i, auto load, auto store) {
        auto sum = V::zero();
        for (std::size_t j = 0; j < count; ++j)
            sum = V::fma(V::set1(weights[j]), load(rows[j] + i), sum);
        store(out + i, V::add(sum, load(last + i)));
    });
}

// Four floats and the positions of a shuffle, on every architecture that GCC and Clang know.
using Four = float __attribute__((vector_size(16)));

inline void transpose(Four (&m)[4]) {
    const Four ab_low = __builtin_shufflevector(m[0], m[1], 0, 4, 1, 5);
    const Four ab_high = __builtin_shufflevector(m[0], m[1], 2, 6, 3, 7);
    const Four cd_low = __builtin_shufflevector(m[2], m[3], 0, 4, 1, 5);
    const Four cd_high = __builtin_shufflevector(m[2], m[3], 2, 6, 3, 7);
    m[0] = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    m[1] = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    m[2] = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    m[3] = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

inline void scale_columns(Four (&m)[4], float eps) {
    const Four factor = 1.0f / ((m[0] + m[1]) + (m[2] + m[3]) + eps);
    for (Four& row : m)
        row *= factor;
}

// The 4 x 4 matrices C of ops/mhc.h of K rows: columns, then rows and columns in turn.  Rows are
// scaled as the columns of the transpose; one reciprocal a sum instead of four divisions.  Each
// matrix is one long chain of operations, so several at once take little longer than one.
template <std::size_t K>
void balance4(const MhcRow* rows) {
    const std::size_t iterations = rows[0].iterations;
    const float eps = rows[0].eps;
    Four m[K][4];
    for (std::size_t row = 0; row < K; ++row)
        std::memcpy(m[row], rows[row].comb, sizeof(m[row]));
    const auto scale = [&m, eps] {
#pragma GCC unroll 4
        for (std::size_t row = 0; row < K; ++row)
            scale_columns(m[row], eps);
    };
    const auto turn = [&m] {
#pragma GCC unroll 4
        for (std::size_t row = 0; row < K; ++row)
            transpose(m[row]);
    };
    scale();
    for (std::size_t i = 1; i < iterations; ++i) {
        turn();
        scale();
        turn();
        scale();
    }
    for (std::size_t row = 0; row < K; ++row)
        std::memcpy(rows[row].comb, m[row], sizeof(m[row]));
}

inline void balance(float* comb, std::size_t n, std::size_t iterations, float eps) {
    const auto scale_line = [&](std::size_t first, std::size_t step) {
        float sum = 0;
        for (std::size_t i = 0; i < n; ++i)
            sum += comb[first + i * step];
        for (std::size_t i = 0; i < n; ++i)
            comb[first + i * step] /= sum + eps;
    };
    for (std::size_t i = 0; i < iterations; ++i) {
        if (i != 0)
            for (std::size_t a = 0; a < n; ++a)
                scale_line(a * n, 1);
        for (std::size_t b = 0; b < n; ++b)
            scale_line(b, n);
    }
}

// All of a row's gates, comb not yet balanced.
template <class V>
void mhc_gates_of(const MhcRow& row) {
    const std::size_t S = row.streams;
    float values[most_streams * (2 + most_streams) + V::lanes] = {};
    const float r = 1.0f / square_root(row.mean_square + row.rms_eps);
    for (std::size_t i = 0; i < (2 + S) * S; ++i)
        values[i] = row.scale[i < S ? 0 : i < 2 * S ? 1 : 2] * (r * row.m[i]) + row.base[i];
    float* const comb = values + 2 * S;
    for (std::size_t a = 0; a < S; ++a) {
        float best = comb[a * S];
        for (std::size_t b = 1; b < S; ++b)
            best = comb[a * S + b] > best ? comb[a * S + b] : best;
        for (std::size_t b = 0; b < S; ++b)
            comb[a * S + b] -= best;
    }
    float gates[2 * most_streams];
    sigmoid<V>(values, 2 * S, gates);
    for (std::size_t i = 0; i < S; ++i) {
        row.pre[i] = gates[i] + row.eps;
        row.post[i] = 2.0f * gates[S + i];
    }
    for_each_vector<V>(S * S, [comb](std::size_t i, auto load, auto store) {
        store(comb + i, exponential<V>(load(comb + i)));
    });
    for (std::size_t a = 0; a < S; ++a) {
        float sum = 0;
        for (std::size_t b = 0; b < S; ++b)
            sum += comb[a * S + b];
        for (std::size_t b = 0; b < S; ++b)
            row.comb[a * S + b] = comb[a * S + b] / sum + row.eps;
    }
}

template <class V>
void mhc_gates(std::span<const MhcRow> rows) {
    for (const MhcRow& row : rows)
        mhc_gates_of<V>(row);
    const MhcRow* const first = rows.data();
    std::size_t row = 0;
    if (!rows.empty() && first->streams == 4) {
        for (; row + 4 <= rows.size(); row += 4)
            balance4<4>(first + row);
        for (; row < rows.size(); ++row)
            balance4<1>(first + row);
    }
    for (; row < rows.size(); ++row)
        balance(first[row].comb, first[row].streams, first[row].iterations, first[row].eps);
}

// Gates are spread over vectors once; the loops over four streams unroll.
template <class V, std::size_t S>
void mhc_update_of(const float* y, const float* post, const float* comb, std::size_t n,
                   float* state) {
    using F = typename V::F;
    F in_gate[S], mix[S][S];
    for (std::size_t j = 0; j < S; ++j) {
        in_gate[j] = V::set1(post[j]);
        for (std::size_t a = 0; a < S; ++a)
            mix[a][j] = V::set1(comb[a * S + j]);
    }
    for_each_vector<V>(n, [&](std::size_t i, auto load, auto store) {
        F before[S];
#pragma GCC unroll 8
        for (std::size_t a = 0; a < S; ++a)
            before[a] = load(state + a * n + i);
        const F in = load(y + i);
#pragma GCC unroll 8
        for (std::size_t j = 0; j < S; ++j) {
            F sum = V::mul(in_gate[j], in);
#pragma GCC unroll 8
            for (std::size_t a = 0; a < S; ++a)
                sum = V::fma(mix[a][j], before[a], sum);
            store(state + j * n + i, sum);
        }
    });
}

template <class V, std::size_t S>
void mhc_mix_of(const float* state, const float* pre, std::size_t n, float* out) {
    typename V::F gate[S];
    for (std::size_t a = 0; a < S; ++a)
        gate[a] = V::set1(pre[a]);
    for_each_vector<V>(n, [&](std::size_t i, auto load, auto store) {
        auto sum = V::mul(gate[0], load(state + i));
#pragma GCC unroll 8
        for (std::size_t a = 1; a < S; ++a)
            sum = V::fma(gate[a], load(state + a * n + i), sum);
        store(out + i, sum);
    });
}

// body<S>() for a number of streams in [1, most_streams].
template <std::size_t S = most_streams, class Body>
void with_streams(std::size_t streams, Body&& body) {
    if (streams == S) return body.template operator()<S>();
    if constexpr (S > 1) with_streams<S - 1>(streams, body);
}

template <class V>
void mhc_update(const float* y, const float* post, const float* comb, std::size_t streams,
                std::size_t n, float* state) {
    with_streams(streams, [&]<std::size_t S>() { mhc_update_of<V, S>(y, post, comb, n, state); });
}

template <class V>
void mhc_mix(const float* state, const float* pre, std::size_t streams, std::size_t n, float* out) {
    with_streams(streams, [&]<std::size_t S>() { mhc_mix_of<V, S>(state, pre, n, out); });
}

}  // namespace
}  // namespace percheron::ops::cpu
