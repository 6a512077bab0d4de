// Eight floats: AVX2, FMA, F16C.
#pragma once

#include <cstddef>
#include <cstdint>

#include <immintrin.h>

namespace percheron::ops::cpu {
namespace {

struct Avx2 {
    using F = __m256;
    static constexpr std::size_t lanes = 8;
    static constexpr int registers = 16;

    static F zero() { return _mm256_setzero_ps(); }
    static F set1(float value) { return _mm256_set1_ps(value); }
    static F load(const float* from) { return _mm256_loadu_ps(from); }
    static void store(float* to, F value) { _mm256_storeu_ps(to, value); }
    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F div(F a, F b) { return _mm256_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static F min(F a, F b) { return _mm256_min_ps(a, b); }
    static F max(F a, F b) { return _mm256_max_ps(a, b); }
    static F nearest(F a) {
        return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    static F times_power_of_two(F a, F n) {
        const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)));
    }

    static float sum(F a) {
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    // to[0..N) = the sums of N vectors, each in the order of sum().
    static void store_sums4(float* to, const F* v) {
        const F two = fold2(fold4(v[0], v[1]), fold4(v[2], v[3]));
        const F one = _mm256_add_ps(two, _mm256_movehdup_ps(two));
        const __m128 low = _mm256_castps256_ps128(one), high = _mm256_extractf128_ps(one, 1);
        // low: a . c .   high: b . d .
        _mm_storeu_ps(to, _mm_unpacklo_ps(_mm_permute_ps(low, 0x08), _mm_permute_ps(high, 0x08)));
    }
    static void store_sums8(float* to, const F* v) {
        const F low = fold2(fold4(v[0], v[4]), fold4(v[1], v[5]));
        const F high = fold2(fold4(v[2], v[6]), fold4(v[3], v[7]));
        store(to, _mm256_add_ps(_mm256_shuffle_ps(low, high, 0x88),
                                _mm256_shuffle_ps(low, high, 0xdd)));
    }
    static float largest(F a) {
        const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
    }

    static F load_bf16(const std::uint16_t* from) {
        const __m256i wide =
            _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    }
    static F round_bf16(F a) {
        const __m256i bits = _mm256_castps_si256(a);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        const __m256 nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
        const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
        const __m256i kept = _mm256_blendv_epi8(up, quiet, _mm256_castps_si256(nan));
        return _mm256_castsi256_ps(_mm256_and_si256(kept, _mm256_set1_epi32(-65536)));
    }
    // As in vector_avx512.h: times 2^-8, through a half float.
    static F load_e4m3(const std::uint8_t* from) {
        const __m128i wide =
            _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
        return _mm256_cvtph_ps(
            _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<short>(0xbf80))));
    }
    static void load_e4m3_pair(const std::uint8_t* from, F out[2]) {
        const __m256i wide =
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(wide, 7),
                                                _mm256_set1_epi16(static_cast<short>(0xbf80)));
        out[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
        out[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
    }

    // nibble * scale - 8 * scale in one rounding is (nibble - 8) * scale rounded once.
    using Words = __m256i;
    struct Scale {
        F scale, eight;
    };
    static Words load_words(const std::uint32_t* from) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    }
    static Words next_nibble(Words words) { return _mm256_srli_epi32(words, 4); }
    static Scale nibble_scale(float scale) { return {set1(scale), set1(8 * scale)}; }
    static F nibble(Words words, Scale scale) {
        const F value = _mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32(15)));
        return _mm256_fmsub_ps(value, scale.scale, scale.eight);
    }

    static F lower_bf16(F pairs) { return as_floats(_mm256_slli_epi32(as_words(pairs), 16)); }
    static F upper_bf16(F pairs) {
        return as_floats(_mm256_and_si256(as_words(pairs), _mm256_set1_epi32(-65536)));
    }

    static F as_floats(Words words) { return _mm256_castsi256_ps(words); }
    static Words as_words(F floats) { return _mm256_castps_si256(floats); }

    // Lane j of m[i] becomes lane i of m[j].
    static void transpose(F (&m)[8]) {
        F pairs[8], fours[8];
        for (int i = 0; i < 8; i += 2) {
            pairs[i] = _mm256_unpacklo_ps(m[i], m[i + 1]);
            pairs[i + 1] = _mm256_unpackhi_ps(m[i], m[i + 1]);
        }
        // fours[4 * b + c], half p: column 4 * p + c of rows 4 * b to 4 * b + 3.
        for (int b = 0; b < 8; b += 4) {
            fours[b] = _mm256_shuffle_ps(pairs[b], pairs[b + 2], 0x44);
            fours[b + 1] = _mm256_shuffle_ps(pairs[b], pairs[b + 2], 0xee);
            fours[b + 2] = _mm256_shuffle_ps(pairs[b + 1], pairs[b + 3], 0x44);
            fours[b + 3] = _mm256_shuffle_ps(pairs[b + 1], pairs[b + 3], 0xee);
        }
        for (int c = 0; c < 4; ++c) {
            m[c] = _mm256_permute2f128_ps(fours[c], fours[4 + c], 0x20);
            m[4 + c] = _mm256_permute2f128_ps(fours[c], fours[4 + c], 0x31);
        }
    }

    static void load_interleaved4(const float* from, F out[4]) {
        const F a = load(from), b = load(from + 8), c = load(from + 16), d = load(from + 24);
        const F ab_low = _mm256_unpacklo_ps(a, b), ab_high = _mm256_unpackhi_ps(a, b);
        const F cd_low = _mm256_unpacklo_ps(c, d), cd_high = _mm256_unpackhi_ps(c, d);
        const auto join = [](F x, F y, bool high) {
            const __m256d p = _mm256_castps_pd(x), q = _mm256_castps_pd(y);
            return _mm256_castpd_ps(high ? _mm256_unpackhi_pd(p, q) : _mm256_unpacklo_pd(p, q));
        };
        // Lane 4 * l + m holds channel 2 * m + l.
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        out[0] = _mm256_permutevar8x32_ps(join(ab_low, cd_low, false), order);
        out[1] = _mm256_permutevar8x32_ps(join(ab_low, cd_low, true), order);
        out[2] = _mm256_permutevar8x32_ps(join(ab_high, cd_high, false), order);
        out[3] = _mm256_permutevar8x32_ps(join(ab_high, cd_high, true), order);
    }

  private:
    // Four sums left of a in the lower half, of b in the upper.
    static F fold4(F a, F b) {
        return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20),
                             _mm256_permute2f128_ps(a, b, 0x31));
    }
    // Two sums left of every four, those of b behind those of a in each half.
    static F fold2(F a, F b) {
        return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    }
};

}  // namespace
}  // namespace percheron::ops::cpu
