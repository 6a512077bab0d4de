// Small vector functions that the kernels of every level share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ops/cpu/kernels.h"

namespace percheron::ops::cpu {
namespace {

// The first `count` < lanes elements, the other lanes zero.
template <class V>
typename V::F load_first(const float* from, std::size_t count) {
    float padded[V::lanes] = {};
    std::memcpy(padded, from, count * sizeof(float));
    return V::load(padded);
}

template <class V>
void store_first(float* to, typename V::F value, std::size_t count) {
    float lanes[V::lanes];
    V::store(lanes, value);
    std::memcpy(to, lanes, count * sizeof(float));
}

// Calls body(i, load, store) for every vector of [0, n); at the ragged end load pads with zeros and
// store writes only what exists, so an element's bits do not depend on where it lies.
template <class V, class Body>
void for_each_vector(std::size_t n, Body&& body) {
    std::size_t i = 0;
    for (; i + V::lanes <= n; i += V::lanes)
        body(
            i, [](const float* from) { return V::load(from); },
            [](float* to, typename V::F value) { V::store(to, value); });
    if (i < n) {
        const std::size_t rest = n - i;
        body(
            i, [rest](const float* from) { return load_first<V>(from, rest); },
            [rest](float* to, typename V::F value) { store_first<V>(to, value, rest); });
    }
}

// e^x to about one unit in the last place; below -87 the smallest normal number.
template <class V>
typename V::F exponential(typename V::F x) {
    using F = typename V::F;
    x = V::min(V::max(x, V::set1(-87.0f)), V::set1(88.0f));
    const F n = V::nearest(V::mul(x, V::set1(1.44269504088896341f)));
    F r = V::fma(n, V::set1(-0.693359375f), x);
    r = V::fma(n, V::set1(2.12194440e-4f), r);
    F p = V::set1(1.9875691500e-4f);
    p = V::fma(p, r, V::set1(1.3981999507e-3f));
    p = V::fma(p, r, V::set1(8.3334519073e-3f));
    p = V::fma(p, r, V::set1(4.1665795894e-2f));
    p = V::fma(p, r, V::set1(1.6666665459e-1f));
    p = V::fma(p, r, V::set1(5.0000001201e-1f));
    p = V::fma(p, V::mul(r, r), V::add(r, V::set1(1.0f)));
    return V::times_power_of_two(p, n);
}

template <class V>
typename V::F logistic(typename V::F x) {
    const auto one = V::set1(1.0f);
    return V::div(one, V::add(one, exponential<V>(V::sub(V::zero(), x))));
}

// Sums of products in four chains, joined in a fixed order.
template <class V, class Term>
float chained_sum(std::size_t n, Term&& term) {
    using F = typename V::F;
    F chain[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    std::size_t i = 0;
    for (; i + 4 * V::lanes <= n; i += 4 * V::lanes)
        for (std::size_t c = 0; c < 4; ++c)
            chain[c] = term(i + c * V::lanes, V::lanes, chain[c]);
    for (std::size_t c = 0; i < n; i += V::lanes, ++c)
        chain[c] = term(i, n - i < V::lanes ? n - i : V::lanes, chain[c]);
    return V::sum(V::add(V::add(chain[0], chain[1]), V::add(chain[2], chain[3])));
}

template <class V>
typename V::F load_up_to(const float* from, std::size_t count) {
    return count == V::lanes ? V::load(from) : load_first<V>(from, count);
}

template <class V>
float sum_of_squares(const float* in, std::size_t n) {
    return chained_sum<V>(n, [in](std::size_t i, std::size_t count, typename V::F sum) {
        const auto x = load_up_to<V>(in + i, count);
        return V::fma(x, x, sum);
    });
}

inline float square_root(float value) {
    return __builtin_sqrtf(value);
}

// One element of a stored bf16 as float (core/dtype.h has the same, but its functions must not be
// compiled with this file's flags).
inline float widened(std::uint16_t bits) {
    const std::uint32_t word = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &word, sizeof(value));
    return value;
}

}  // namespace
}  // namespace percheron::ops::cpu
