// Rows of an fp8 cache on the device (ops/stored_rows.h): codes to bf16 pairs, and a row's scale
// and codes from its values.
#pragma once

#include <cstdint>

#include <cuda_fp8.h>

#include "ops/cuda/device.cuh"

namespace percheron::ops::cuda {

// Four e4m3 codes, none of them NaN, as two bf16 pairs.
__device__ inline uint2 widen_4(std::uint32_t codes) {
    constexpr std::uint32_t two_to_120 = 0x7b807b80u;
    std::uint32_t out[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        // Bytes 2 half and 2 half + 1 into the high bytes of a pair.
        const std::uint32_t pair = __byte_perm(codes, 0, half ? 0x3424 : 0x1404);
        const std::uint32_t small = (pair & 0x80008000u) | ((pair >> 4) & 0x07f007f0u);
        out[half] = multiply_bf16x2(small, two_to_120);
    }
    return make_uint2(out[0], out[1]);
}

// A scale byte as a number, and as a pair of bf16: 2^e, or NaN of 255.
__device__ inline float scale_value(std::uint32_t byte) {
    return __uint_as_float(byte << 23 | (byte == 255u ? 1u << 22 : 0u));
}
__device__ inline std::uint32_t scale_pair(std::uint32_t byte) {
    return (__float_as_uint(scale_value(byte)) >> 16) * 0x00010001u;
}

// The bits of a value's magnitude, which are ordered as magnitudes are; NaN is the largest.
__device__ inline std::uint32_t magnitude_bits(float value) {
    return __float_as_uint(value) & 0x7fffffffu;
}

// The scale byte of a row whose largest magnitude has the bits `most`.
__device__ inline std::uint32_t scale_byte(std::uint32_t most) {
    if (most >= 0x7f800000u) return 255u;
    const int byte = static_cast<int>(most >> 23) - 8 + ((most & 0x7fffffu) > 0x600000u ? 1 : 0);
    return static_cast<std::uint32_t>(min(max(byte, 127 - 117), 127 + 119));
}

// The code of a value in a row of that scale.
__device__ inline std::uint32_t row_code(float value, std::uint32_t scale) {
    if (scale == 255u) return 0u;
    const float inverse = __uint_as_float((254u - scale) << 23);
    return __nv_cvt_float_to_fp8(value * inverse, __NV_SATFINITE, __NV_E4M3);
}

}  // namespace percheron::ops::cuda
