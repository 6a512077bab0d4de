// What walks over a sequence: the KDA recurrence, latent attention and index scores.
#pragma once

#include "ops/cpu/math_kernels.h"

namespace percheron::ops::cpu {
namespace {

// The recurrence reads and writes the state once a token.  With D = diag(e^g):
//
//   a = (D S)^T k;  delta = beta (v - a);  o = (D S)^T q + (k . q) delta;  S <- D S + k delta^T
//
// so one pass over S gives a and (D S)^T q, and the update of token t is done on the way through
// the pass of token t + 1 (`Pending`), or in a last pass of its own.  Both ways multiply by the
// decay and add k delta^T with the same two operations.  The products with D S read S itself: the
// decay goes into k and q, once for all columns.
template <class V>
void kda_factors(const KdaStepHead& head, std::size_t token, float* decay, float* key,
                 float* query) {
    const float* const log = head.decay + token * head.decay_stride;
    const float* const k = head.key + token * head.key_stride;
    const float* const q = head.query + token * head.query_stride;
    for_each_vector<V>(head.dim, [&](std::size_t i, auto load, auto store) {
        const auto e = exponential<V>(load(log + i));
        store(decay + i, e);
        store(key + i, V::mul(e, load(k + i)));
        store(query + i, V::mul(e, load(q + i)));
    });
}

template <class V, int C>
struct KdaSlab {
    using F = typename V::F;

    const KdaStepHead& head;
    std::size_t column;  // first column of this slab
    F delta[C];

    float* row(std::size_t i) const { return head.state + i * head.state_stride + column; }

    // e^g of the token before, and e^g k and e^g q of this one.
    template <bool Pending, bool Output>
    void pass(std::size_t token, const float* last_decay, const float* decayed_key,
              const float* decayed_query) {
        const float* const key = head.key + token * head.key_stride;
        const float* const query = Output ? head.query + token * head.query_stride : nullptr;
        const float* const last_key = Pending ? key - head.key_stride : nullptr;
        F read[C], out[C];
        for (int c = 0; c < C; ++c)
            read[c] = out[c] = V::zero();
        for (std::size_t i = 0; i < head.dim; ++i) {
            float* const from = row(i);
            const F k = V::set1(decayed_key[i]);
            const F q = Output ? V::set1(decayed_query[i]) : V::zero();
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                float* const at = from + static_cast<std::size_t>(c) * V::lanes;
                F s = V::load(at);
                if constexpr (Pending) {
                    s = V::fma(V::set1(last_key[i]), delta[c], V::mul(V::set1(last_decay[i]), s));
                    V::store(at, s);
                }
                read[c] = V::fma(k, s, read[c]);
                if constexpr (Output) out[c] = V::fma(q, s, out[c]);
            }
        }
        const F beta = V::set1(head.beta[token * head.beta_stride]);
        const float* const value = head.value + token * head.value_stride + column;
        F kq = V::zero();
        if constexpr (Output) {
            kq = V::set1(chained_sum<V>(head.dim, [key, query](std::size_t i, std::size_t count,
                                                               F sum) {
                return V::fma(load_up_to<V>(key + i, count), load_up_to<V>(query + i, count), sum);
            }));
        }
        for (int c = 0; c < C; ++c) {
            const std::size_t at = static_cast<std::size_t>(c) * V::lanes;
            delta[c] = V::mul(beta, V::sub(V::load(value + at), read[c]));
            if constexpr (Output)
                V::store(head.output + token * head.output_stride + column + at,
                         V::fma(kq, delta[c], out[c]));
        }
    }

    void finish(std::size_t token, const float* decay) {
        const float* const key = head.key + token * head.key_stride;
        for (std::size_t i = 0; i < head.dim; ++i) {
            float* const from = row(i);
            const F e = V::set1(decay[i]);
            const F k = V::set1(key[i]);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                float* const at = from + static_cast<std::size_t>(c) * V::lanes;
                V::store(at, V::fma(k, delta[c], V::mul(e, V::load(at))));
            }
        }
    }

    void run() {
        float* const factors[2] = {head.scratch, head.scratch + head.dim};
        float* const key = head.scratch + 2 * head.dim;
        float* const query = head.scratch + 3 * head.dim;
        for (std::size_t token = 0; token < head.tokens; ++token) {
            float* const decay = factors[token % 2];
            const float* const last = factors[(token + 1) % 2];
            kda_factors<V>(head, token, decay, key, query);
            if (token == 0)
                head.output != nullptr ? pass<false, true>(token, last, key, query)
                                       : pass<false, false>(token, last, key, query);
            else
                head.output != nullptr ? pass<true, true>(token, last, key, query)
                                       : pass<true, false>(token, last, key, query);
        }
        if (head.tokens != 0) finish(head.tokens - 1, factors[(head.tokens - 1) % 2]);
    }
};

// Any number of columns one by one, with the same operations as a lane of a slab.
template <class V>
void kda_ragged_columns(const KdaStepHead& head, std::size_t column) {
    using F = typename V::F;
    const std::size_t count = head.columns - column;
    float* const decay = head.scratch;
    float* const decayed_key = head.scratch + 2 * head.dim;
    float* const decayed_query = head.scratch + 3 * head.dim;
    for (std::size_t token = 0; token < head.tokens; ++token) {
        kda_factors<V>(head, token, decay, decayed_key, decayed_query);
        const float* const key = head.key + token * head.key_stride;
        const float* const query = head.query + token * head.query_stride;
        F read = V::zero(), out = V::zero();
        for (std::size_t i = 0; i < head.dim; ++i) {
            const F s = load_first<V>(head.state + i * head.state_stride + column, count);
            read = V::fma(V::set1(decayed_key[i]), s, read);
            if (head.output != nullptr) out = V::fma(V::set1(decayed_query[i]), s, out);
        }
        const F value = load_first<V>(head.value + token * head.value_stride + column, count);
        const F delta = V::mul(V::set1(head.beta[token * head.beta_stride]), V::sub(value, read));
        if (head.output != nullptr) {
            const float kq =
                chained_sum<V>(head.dim, [key, query](std::size_t i, std::size_t n, F sum) {
                    return V::fma(load_up_to<V>(key + i, n), load_up_to<V>(query + i, n), sum);
                });
            store_first<V>(head.output + token * head.output_stride + column,
                           V::fma(V::set1(kq), delta, out), count);
        }
        for (std::size_t i = 0; i < head.dim; ++i) {
            float* const at = head.state + i * head.state_stride + column;
            const F s = V::mul(V::set1(decay[i]), load_first<V>(at, count));
            store_first<V>(at, V::fma(V::set1(key[i]), delta, s), count);
        }
    }
}

template <class V>
void kda_step(const KdaStepHead& head) {
    std::size_t column = 0;
    const auto slabs = [&]<int C>() {
        for (; column + C * V::lanes <= head.columns; column += C * V::lanes)
            KdaSlab<V, C>{head, column, {}}.run();
    };
    slabs.template operator()<4>();
    slabs.template operator()<2>();
    slabs.template operator()<1>();
    if (column < head.columns) kda_ragged_columns<V>(head, column);
}

// ---- stored rows of a cache: bf16, float or e4m3

// at() hands out the stored values divided by `unit`, and by their row's scale where the type has
// one: whoever reads them multiplies what they make of a row, by powers of two.

template <class V>
struct StoredFloats {
    static constexpr bool is_scaled = false;
    static typename V::F at(const void* data, std::size_t i, std::size_t count) {
        return load_up_to<V>(static_cast<const float*>(data) + i, count);
    }
};

template <class V>
struct StoredBf16 {
    static constexpr bool is_scaled = false;
    static typename V::F at(const void* data, std::size_t i, std::size_t count) {
        const std::uint16_t* from = static_cast<const std::uint16_t*>(data) + i;
        if (count == V::lanes) return V::load_bf16(from);
        std::uint16_t padded[V::lanes] = {};
        std::memcpy(padded, from, count * sizeof(std::uint16_t));
        return V::load_bf16(padded);
    }
};

template <class V>
struct StoredE4m3 {
    static constexpr bool is_scaled = true;
    static constexpr float unit = 256.0f;
    static typename V::F at(const void* data, std::size_t i, std::size_t count) {
        const std::uint8_t* from = static_cast<const std::uint8_t*>(data) + i;
        std::uint8_t padded[16] = {};
        if (count < V::lanes) {
            std::memcpy(padded, from, count);
            from = padded;
        }
        return V::load_e4m3(from);
    }
};

// Calls body<Stored>() for the reader of a dtype.
template <class V, class Body>
void with_stored(DType dtype, Body&& body) {
    switch (dtype) {
        case DType::f32:
            return body.template operator()<StoredFloats<V>>();
        case DType::f8_e4m3:
            return body.template operator()<StoredE4m3<V>>();
        default:
            return body.template operator()<StoredBf16<V>>();
    }
}

// Scores of H query vectors against one stored row of `dim`; queries are padded with zeros.
template <class V, class Stored, int H>
void dots(const float* queries, std::size_t stride, const void* key, std::size_t dim,
          float (&out)[H]) {
    using F = typename V::F;
    F sums[H];
    for (int h = 0; h < H; ++h)
        sums[h] = V::zero();
    std::size_t i = 0;
    for (; i + V::lanes <= dim; i += V::lanes) {
        const F k = Stored::at(key, i, V::lanes);
#pragma GCC unroll 4
        for (int h = 0; h < H; ++h)
            sums[h] =
                V::fma(V::load(queries + static_cast<std::size_t>(h) * stride + i), k, sums[h]);
    }
    if (i < dim) {
        const F k = Stored::at(key, i, dim - i);
        for (int h = 0; h < H; ++h)
            sums[h] =
                V::fma(load_first<V>(queries + static_cast<std::size_t>(h) * stride + i, dim - i),
                       k, sums[h]);
    }
    for (int h = 0; h < H; ++h)
        out[h] = V::sum(sums[h]);
}

// One split of at most 256 latents for H heads: scores become e^(score - maximum), the sum of them
// and the unnormalised read are returned.
template <class V, class Stored, int H>
void attend_split(const AttendHeads& a, const float* absorbed, std::size_t first, std::size_t count,
                  float* weights, float* read, float (&maximum)[H], float (&total)[H]) {
    using F = typename V::F;
    constexpr std::size_t split = 256;
    for (std::size_t i = 0; i < count; ++i) {
        float scores[H];
        dots<V, Stored, H>(absorbed, a.absorbed_stride, a.tokens[first + i], a.latent, scores);
        for (int h = 0; h < H; ++h) {
            if constexpr (Stored::is_scaled) scores[h] *= a.token_scales[first + i] * Stored::unit;
            weights[static_cast<std::size_t>(h) * split + i] = scores[h] * a.scale;
        }
    }
    for (int h = 0; h < H; ++h) {
        float* const w = weights + static_cast<std::size_t>(h) * split;
        float best = w[0];
        for (std::size_t i = 1; i < count; ++i)
            best = w[i] > best ? w[i] : best;
        const F high = V::set1(best);
        for_each_vector<V>(count, [&](std::size_t i, auto load, auto store) {
            store(w + i, exponential<V>(V::sub(load(w + i), high)));
        });
        maximum[h] = best;
        total[h] = chained_sum<V>(count, [w](std::size_t i, std::size_t n, F sum) {
            return V::add(sum, load_up_to<V>(w + i, n));
        });
    }
    constexpr std::size_t C = 4;
    const std::size_t width = packed_width(a.latent);
    for (std::size_t column = 0; column < a.latent; column += C * V::lanes) {
        F sums[H][C];
        for (int h = 0; h < H; ++h)
            for (std::size_t c = 0; c < C; ++c)
                sums[h][c] = V::zero();
        for (std::size_t i = 0; i < count; ++i) {
            F latent[C];
#pragma GCC unroll 4
            for (std::size_t c = 0; c < C; ++c) {
                const std::size_t at = column + c * V::lanes;
                latent[c] = at + V::lanes <= a.latent
                                ? Stored::at(a.tokens[first + i], at, V::lanes)
                            : at < a.latent ? Stored::at(a.tokens[first + i], at, a.latent - at)
                                            : V::zero();
            }
#pragma GCC unroll 4
            for (int h = 0; h < H; ++h) {
                float weight = weights[static_cast<std::size_t>(h) * split + i];
                if constexpr (Stored::is_scaled) weight *= a.token_scales[first + i] * Stored::unit;
                const F w = V::set1(weight);
#pragma GCC unroll 4
                for (std::size_t c = 0; c < C; ++c)
                    sums[h][c] = V::fma(w, latent[c], sums[h][c]);
            }
        }
        for (int h = 0; h < H; ++h)
            for (std::size_t c = 0; c < C && column + c * V::lanes < width; ++c)
                V::store(read + static_cast<std::size_t>(h) * width + column + c * V::lanes,
                         sums[h][c]);
    }
}

template <class V, class Stored, int H>
void attend_heads(const AttendHeads& a, std::size_t first_head) {
    using F = typename V::F;
    constexpr std::size_t split = 256;
    const std::size_t width = packed_width(a.latent);
    const float* const absorbed = a.absorbed + first_head * a.absorbed_stride;
    float* const weights = a.scratch;
    float* const part = a.scratch + attend_heads_at_once * split;
    float maximum[H] = {}, total[H] = {};
    for (std::size_t first = 0; first < a.count; first += split) {
        const std::size_t count = a.count - first < split ? a.count - first : split;
        float part_maximum[H], part_total[H];
        attend_split<V, Stored, H>(a, absorbed, first, count, weights, part, part_maximum,
                                   part_total);
        for (int h = 0; h < H; ++h) {
            float* const read = a.read + (first_head + static_cast<std::size_t>(h)) * a.read_stride;
            const float* const from = part + static_cast<std::size_t>(h) * width;
            if (first == 0) {
                std::memcpy(read, from, a.latent * sizeof(float));
                maximum[h] = part_maximum[h];
                total[h] = part_total[h];
                continue;
            }
            const float both = maximum[h] > part_maximum[h] ? maximum[h] : part_maximum[h];
            float shifts[V::lanes] = {};
            shifts[0] = maximum[h] - both;
            shifts[1] = part_maximum[h] - both;
            V::store(shifts, exponential<V>(V::load(shifts)));
            const F old = V::set1(shifts[0]), fresh = V::set1(shifts[1]);
            for_each_vector<V>(a.latent, [&](std::size_t i, auto load, auto store) {
                store(read + i, V::fma(load(from + i), fresh, V::mul(load(read + i), old)));
            });
            total[h] = total[h] * shifts[0] + part_total[h] * shifts[1];
            maximum[h] = both;
        }
    }
    for (int h = 0; h < H; ++h) {
        float* const read = a.read + (first_head + static_cast<std::size_t>(h)) * a.read_stride;
        const F scale = V::set1(1.0f / total[h]);
        for_each_vector<V>(a.latent, [&](std::size_t i, auto load, auto store) {
            store(read + i, V::mul(load(read + i), scale));
        });
    }
}

template <class V>
void attend(const AttendHeads& a) {
    with_stored<V>(a.latent_dtype, [&]<class Stored>() {
        std::size_t head = 0;
        for (; head + 4 <= a.heads; head += 4)
            attend_heads<V, Stored, 4>(a, head);
        for (; head + 2 <= a.heads; head += 2)
            attend_heads<V, Stored, 2>(a, head);
        for (; head < a.heads; ++head)
            attend_heads<V, Stored, 1>(a, head);
    });
}

template <class V>
void pool_keys(const float* const* keys, const float* const* gates, const float* ape,
               std::size_t pool, std::size_t dim, std::size_t first, std::size_t count,
               float* out) {
    using F = typename V::F;
    for_each_vector<V>(count, [&](std::size_t i, auto load, auto store) {
        const std::size_t c = first + i;
        const auto gate = [&](std::size_t j) {
            return V::add(load(gates[j] + c), load(ape + j * dim + c));
        };
        F largest = gate(0);
        for (std::size_t j = 1; j < pool; ++j)
            largest = V::max(largest, gate(j));
        F sum = V::zero(), pooled = V::zero();
        for (std::size_t j = 0; j < pool; ++j) {
            const F weight = exponential<V>(V::sub(gate(j), largest));
            sum = V::add(sum, weight);
            pooled = V::fma(weight, load(keys[j] + c), pooled);
        }
        store(out + i, V::div(pooled, sum));
    });
}

template <class V>
void index_scores(const float* query, const float* weights, std::size_t heads, std::size_t dim,
                  float scale, const void* keys, const float* key_scales, DType key_dtype,
                  std::size_t count, float* scores) {
    const std::size_t stride = packed_width(dim);
    with_stored<V>(key_dtype, [&]<class Stored>() {
        for (std::size_t p = 0; p < count; ++p) {
            const void* const key = static_cast<const char*>(keys) + p * dim * size_of(key_dtype);
            float key_scale = 1;
            if constexpr (Stored::is_scaled) key_scale = key_scales[p] * Stored::unit;
            float score = 0;
            std::size_t h = 0;
            const auto add = [&](float dot, std::size_t head) {
                if constexpr (Stored::is_scaled) dot *= key_scale;
                const float scaled = dot * scale;
                score += weights[head] * (scaled > 0 ? scaled : 0.0f);
            };
            for (; h + 4 <= heads; h += 4) {
                float out[4];
                dots<V, Stored, 4>(query + h * stride, stride, key, dim, out);
                for (std::size_t j = 0; j < 4; ++j)
                    add(out[j], h + j);
            }
            for (; h < heads; ++h) {
                float out[1];
                dots<V, Stored, 1>(query + h * stride, stride, key, dim, out);
                add(out[0], h);
            }
            scores[p] = score;
        }
    });
}

}  // namespace
}  // namespace percheron::ops::cpu
