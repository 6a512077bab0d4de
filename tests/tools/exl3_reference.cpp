// The decoder of the exllamav3 package, compiled for a CPU: scripts/check-exl3 compiles this file
// with the package's own exllamav3_ext/quant/exl3_dq.cuh, which is device code, and calls it from
// Python. Here is only what that header expects of CUDA, and a loop over tiles.
#include <cstdint>
#include <cstring>

#define USE_ROCM  // the plain forms of what is inline PTX otherwise
#define __device__
#define __forceinline__ inline

struct half {
    _Float16 value;
};
struct half2 {
    half x, y;
};
union half2_uint32 {
    uint32_t as_uint32;
    half2 as_half2;
    half2_uint32(uint32_t bits) : as_uint32(bits) {}
};
union half_uint16 {
    uint16_t as_uint16;
    half as_half;
    half_uint16(uint16_t bits) : as_uint16(bits) {}
};
using __half = half;
struct FragB {
    half2 pair[2];
    half2& operator[](int i) { return pair[i]; }
};

// Sums and products of binary16 are exact in double; the conversion rounds once.
inline half __hadd(half a, half b) {
    return {static_cast<_Float16>(static_cast<double>(a.value) + static_cast<double>(b.value))};
}
inline half __hfma(half a, half b, half c) {
    return {static_cast<_Float16>(static_cast<double>(a.value) * static_cast<double>(b.value) +
                                  static_cast<double>(c.value))};
}
inline half2 __hadd2(half2 a, half2 b) {
    return {__hadd(a.x, b.x), __hadd(a.y, b.y)};
}
inline half2 __hfma2(half2 a, half2 b, half2 c) {
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
inline half2 __half2half2(half a) {
    return {a, a};
}
inline half2 __halves2half2(half a, half b) {
    return {a, b};
}
inline half2 __lows2half2(half2 a, half2 b) {
    return {a.x, b.x};
}
inline half2 __highs2half2(half2 a, half2 b) {
    return {a.y, b.y};
}
inline half __low2half(half2 a) {
    return a.x;
}
inline half __high2half(half2 a) {
    return a.y;
}
inline float __half2float(half a) {
    return static_cast<float>(a.value);
}
inline half __ushort_as_half(uint16_t bits) {
    return half_uint16(bits).as_half;
}
inline uint32_t __dp4a(uint32_t a, uint32_t b, uint32_t sum) {
    for (int i = 0; i < 32; i += 8)
        sum += (a >> i & 255) * (b >> i & 255);
    return sum;
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}

uint32_t bfe64(uint32_t low, uint32_t high, int offset, int length);  // of a form it does not use
#define FSHF_IMM(result, low, high, shift) (result) = exl3_shf_r_wrap(low, high, shift)
#define BFE16_IMM(result, word, shift) (result) = exl3_bfe_u32_16(word, shift)
#include "quant/exl3_dq.cuh"

namespace {

template <int bits, int codebook, bool half_bits>
void decode(const uint32_t* tiles, long count, float* values) {
    constexpr int words = 8 * bits + (half_bits ? 4 : 0);
    for (long tile = 0; tile < count; ++tile) {
        for (int lane = 0; lane < 32; ++lane) {
            FragB first, second;
            dq_dispatch<bits, codebook, half_bits>(tiles + tile * words, lane * 8, first, second);
            const half2 pairs[4] = {first[0], first[1], second[0], second[1]};
            for (const half2 pair : pairs) {
                *values++ = __half2float(pair.x);
                *values++ = __half2float(pair.y);
            }
        }
    }
}

template <int codebook>
bool decode_bits(int twice, const uint32_t* tiles, long count, float* values) {
    switch (twice) {
        case 2:
            decode<1, codebook, false>(tiles, count, values);
            return true;
        case 4:
            decode<2, codebook, false>(tiles, count, values);
            return true;
        case 6:
            decode<3, codebook, false>(tiles, count, values);
            return true;
        case 8:
            decode<4, codebook, false>(tiles, count, values);
            return true;
        case 10:
            decode<5, codebook, false>(tiles, count, values);
            return true;
        case 12:
            decode<6, codebook, false>(tiles, count, values);
            return true;
        case 14:
            decode<7, codebook, false>(tiles, count, values);
            return true;
        case 16:
            decode<8, codebook, false>(tiles, count, values);
            return true;
        case 3:
            decode<1, codebook, true>(tiles, count, values);
            return true;
        case 5:
            decode<2, codebook, true>(tiles, count, values);
            return true;
        case 7:
            decode<3, codebook, true>(tiles, count, values);
            return true;
        default:
            return false;
    }
}

}  // namespace

// 256 values a tile, in the order of their codes; `twice` the bits of a code, codebook 0 to 2.
extern "C" bool exl3_decode(int twice, int codebook, const uint32_t* tiles, long count,
                            float* values) {
    switch (codebook) {
        case 0:
            return decode_bits<0>(twice, tiles, count, values);
        case 1:
            return decode_bits<1>(twice, tiles, count, values);
        case 2:
            return decode_bits<2>(twice, tiles, count, values);
        default:
            return false;
    }
}
