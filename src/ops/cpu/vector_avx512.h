// Sixteen floats: AVX-512 F, BW, VL, DQ.
#pragma once

#include <cstddef>
#include <cstdint>

#include <immintrin.h>

namespace percheron::ops::cpu {
namespace {

struct Avx512 {
    using F = __m512;
    static constexpr std::size_t lanes = 16;
    static constexpr int registers = 32;

    static F zero() { return _mm512_setzero_ps(); }
    static F set1(float value) { return _mm512_set1_ps(value); }
    static F load(const float* from) { return _mm512_loadu_ps(from); }
    static void store(float* to, F value) { _mm512_storeu_ps(to, value); }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F div(F a, F b) { return _mm512_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static F min(F a, F b) { return _mm512_min_ps(a, b); }
    static F max(F a, F b) { return _mm512_max_ps(a, b); }
    static F nearest(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT); }
    // a * 2^n for whole n in [-126, 127].
    static F times_power_of_two(F a, F n) { return _mm512_scalef_ps(a, n); }

    // Lane i meets lane i + 8, then i + 4, i + 2, i + 1.
    static float sum(F a) {
        const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
        const __m128 four =
            _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    // to[0..N) = the sums of N vectors, each in the order of sum().
    static void store_sums4(float* to, const F* v) {
        const F two = fold2(fold4(v, 1));
        const F one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
        const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one)));
    }
    static void store_sums8(float* to, const F* v) {
        const F two = fold2(fold4(v, 2), fold4(v + 1, 2));
        const F one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
        const __m512i firsts = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
        _mm256_storeu_ps(to, _mm512_castps512_ps256(_mm512_permutexvar_ps(firsts, one)));
    }
    static void store_sums16(float* to, const F* v) {
        const F even = fold2(fold4(v, 4), fold4(v + 1, 4));
        const F odd = fold2(fold4(v + 2, 4), fold4(v + 3, 4));
        store(to, _mm512_add_ps(_mm512_shuffle_ps(even, odd, 0x88),
                                _mm512_shuffle_ps(even, odd, 0xdd)));
    }
    static float largest(F a) { return _mm512_reduce_max_ps(a); }

    static F load_bf16(const std::uint16_t* from) {
        const __m512i wide =
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
        return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
    }
    // Rounded to nearest even bf16, still as float.  NaN keeps its upper half, made quiet.
    static F round_bf16(F a) {
        const __m512i bits = _mm512_castps_si512(a);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
        const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
        return _mm512_castsi512_ps(
            _mm512_and_si512(_mm512_mask_mov_epi32(up, nan, quiet), _mm512_set1_epi32(-65536)));
    }
    // e4m3 codes as floats times 2^-8: sign, exponent and mantissa are moved into a half float,
    // whose bias is larger by 8, subnormals included.  Callers scale by 256.  NaN codes (0x7f,
    // 0xff) read as +-480: no checkpoint holds them.
    static F load_e4m3(const std::uint8_t* from) {
        const __m256i wide =
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7),
                                                _mm256_set1_epi16(static_cast<short>(0xbf80))));
    }
    // Twice as many.
    static void load_e4m3_pair(const std::uint8_t* from, F out[2]) {
        const __m512i wide =
            _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
        const __m512i halves = _mm512_and_si512(_mm512_slli_epi16(wide, 7),
                                                _mm512_set1_epi16(static_cast<short>(0xbf80)));
        out[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
        out[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
    }

    // Sixteen 32-bit words of eight 4-bit weights.  The lookup reads the low four bits of a lane
    // and takes the already scaled value, so a weight costs a shift and a permutation.
    using Words = __m512i;
    using Scale = __m512;
    static Words load_words(const std::uint32_t* from) { return _mm512_loadu_si512(from); }
    static Words next_nibble(Words words) { return _mm512_srli_epi32(words, 4); }
    static Scale nibble_scale(float scale) {
        const __m512 values =
            _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
        return _mm512_mul_ps(values, _mm512_set1_ps(scale));
    }
    static F nibble(Words words, Scale scale) { return _mm512_permutexvar_ps(words, scale); }

    // The lower and the upper halves of the lanes as bf16.
    static F lower_bf16(F pairs) { return as_floats(_mm512_slli_epi32(as_words(pairs), 16)); }
    static F upper_bf16(F pairs) {
        return as_floats(_mm512_and_si512(as_words(pairs), _mm512_set1_epi32(-65536)));
    }

    static F as_floats(Words words) { return _mm512_castsi512_ps(words); }
    static Words as_words(F floats) { return _mm512_castps_si512(floats); }

    // Lane j of m[i] becomes lane i of m[j].
    static void transpose(F (&m)[16]) {
        F pairs[16], fours[16];
        const auto join_low = [](F x, F y) {
            return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
        };
        const auto join_high = [](F x, F y) {
            return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
        };
#pragma GCC unroll 8
        for (int i = 0; i < 16; i += 2) {
            pairs[i] = _mm512_unpacklo_ps(m[i], m[i + 1]);
            pairs[i + 1] = _mm512_unpackhi_ps(m[i], m[i + 1]);
        }
        // fours[4 * b + c], 128-bit part p: column 4 * p + c of rows 4 * b to 4 * b + 3.
#pragma GCC unroll 4
        for (int b = 0; b < 16; b += 4) {
            fours[b] = join_low(pairs[b], pairs[b + 2]);
            fours[b + 1] = join_high(pairs[b], pairs[b + 2]);
            fours[b + 2] = join_low(pairs[b + 1], pairs[b + 3]);
            fours[b + 3] = join_high(pairs[b + 1], pairs[b + 3]);
        }
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
            const F even_low = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0x88);
            const F odd_low = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0xdd);
            const F even_high = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0x88);
            const F odd_high = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0xdd);
            m[c] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
            m[8 + c] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
            m[4 + c] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
            m[12 + c] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
        }
    }

    // out[j] lane i = from[4 * i + j]
    static void load_interleaved4(const float* from, F out[4]) {
        const F a = load(from), b = load(from + 16), c = load(from + 32), d = load(from + 48);
        const F ab_low = _mm512_unpacklo_ps(a, b), ab_high = _mm512_unpackhi_ps(a, b);
        const F cd_low = _mm512_unpacklo_ps(c, d), cd_high = _mm512_unpackhi_ps(c, d);
        const auto join_low = [](F x, F y) {
            return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
        };
        const auto join_high = [](F x, F y) {
            return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
        };
        // Lane 4 * l + m holds channel 4 * m + l: put the channels in order.
        const __m512i order =
            _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        out[0] = _mm512_permutexvar_ps(order, join_low(ab_low, cd_low));
        out[1] = _mm512_permutexvar_ps(order, join_high(ab_low, cd_low));
        out[2] = _mm512_permutexvar_ps(order, join_low(ab_high, cd_high));
        out[3] = _mm512_permutexvar_ps(order, join_high(ab_high, cd_high));
    }

  private:
    // 128-bit part j: four sums left of v[j * step].
    static F fold4(const F* v, int step) {
        const F a = v[0], b = v[step], c = v[2 * step], d = v[3 * step];
        const F ab =
            _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
        const F cd =
            _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
        return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88),
                             _mm512_shuffle_f32x4(ab, cd, 0xdd));
    }
    // Two sums left of every four, those of b behind those of a in each 128-bit part.
    static F fold2(F a, F b) {
        const __m512d p = _mm512_castps_pd(a), q = _mm512_castps_pd(b);
        return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
    }
    static F fold2(F four) {
        return _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
    }
};

}  // namespace
}  // namespace percheron::ops::cpu
