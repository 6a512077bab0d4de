// What a prompt's KDA kernels share: how a chunk of a head lies between them, matrices in two
// parts, quick exponentials.
#pragma once

#include <cstdint>

#include "ops/cuda/device.cuh"
#include "ops/cuda/prefill_kda_launch.h"

namespace percheron::ops::cuda {

namespace kda_chunks {

inline constexpr int dim = 128, taps = 4, tokens = kda_chunk_rows, half_dim = dim / 2;
inline constexpr int warps = 8, threads = warps * 32;
inline constexpr int run = 16;  // rows that share what their decays are measured from
inline constexpr float log2_e = 1.4426950408889634f;

// What a chunk of a head leaves for the second kernel.  Matrices of bf16 come as two parts, the
// second what the first has left, each in boxes of 64 columns, whose rows of 128 bytes lie as the
// tensor core reads them (shared_products.cuh): 16-byte pieces swapped by the row's number.
inline constexpr int wide_bytes = tokens * dim * 2;        // one part of [64][128]
inline constexpr int square_bytes = tokens * tokens * 2;   // one part of [64][64]
inline constexpr int value_bytes = tokens * half_dim * 4;  // [64][64] fp32
inline constexpr int r_at = 0;                             // diag(beta) (K * e^G)
inline constexpr int q_at = r_at + 2 * wide_bytes;         // Q * e^G
inline constexpr int k_at = q_at + 2 * wide_bytes;         // K * e^(G_last - G)
inline constexpr int a_at = k_at + 2 * wide_bytes;         // A
inline constexpr int t_at = a_at + 2 * square_bytes;       // (I + L)^-1
inline constexpr int v_at = t_at + 2 * square_bytes;     // diag(beta) V, of half of the values each
inline constexpr int decay_at = v_at + 2 * value_bytes;  // e^G_last
inline constexpr int chunk_bytes = decay_at + dim * 4;

__device__ inline int square_place(int row, int piece) {
    return row * half_dim * 2 + (piece ^ (row & 7)) * 16;
}
__device__ inline int wide_place(int row, int piece) {
    return piece / 8 * square_bytes + square_place(row, piece % 8);
}

__device__ inline float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two values in two parts.
struct Parts {
    std::uint32_t high, low;
};
__device__ inline Parts in_parts(float a, float b) {
    const __nv_bfloat162 high = __floats2bfloat162_rn(a, b);
    const __nv_bfloat162 low = __floats2bfloat162_rn(a - __low2float(high), b - __high2float(high));
    return {*reinterpret_cast<const std::uint32_t*>(&high),
            *reinterpret_cast<const std::uint32_t*>(&low)};
}

// d += a b, all but the product of the second parts.
__device__ inline void multiply_parts(float (&d)[4], const std::uint32_t (&a_high)[4],
                                      const std::uint32_t (&a_low)[4], Parts b0, Parts b1) {
    multiply_add(d, a_low, b0.high, b1.high);
    multiply_add(d, a_high, b0.low, b1.low);
    multiply_add(d, a_high, b0.high, b1.high);
}

// Without the cases that an exact division and exponential care for: their code was most of this
// kernel's, and fetching it most of its time.
__device__ inline float quick_sigmoid(float z) {
    return __fdividef(1.0f, 1.0f + exp2_of(-log2_e * z));
}

__device__ inline float2 pair_at(const float* p) {
    return *reinterpret_cast<const float2*>(p);
}

}  // namespace kda_chunks
}  // namespace percheron::ops::cuda
