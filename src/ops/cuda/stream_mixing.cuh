// What the turns of the hyper-connections share: the mixing matrix from its logits, and sums.
#pragma once

#include "ops/cuda/device.cuh"

namespace percheron::ops::cuda {

inline constexpr int mixed_streams = 4;
inline constexpr int mixed_gates = (2 + mixed_streams) * mixed_streams;

// Of a number that is neither tiny nor huge.
__device__ inline float reciprocal(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// The doubly stochastic mixing matrix from its logits, in place: rows are sources.
__device__ inline void mix_streams(float (&c)[mixed_streams][mixed_streams], int iterations,
                                   float eps) {
    constexpr int streams = mixed_streams;
#pragma unroll
    for (int a = 0; a < streams; ++a) {
        const float most = fmaxf(fmaxf(c[a][0], c[a][1]), fmaxf(c[a][2], c[a][3]));
        float sum = 0.0f;
#pragma unroll
        for (int b = 0; b < streams; ++b) {
            c[a][b] = expf(c[a][b] - most);
            sum += c[a][b];
        }
#pragma unroll
        for (int b = 0; b < streams; ++b)
            c[a][b] = __fdividef(c[a][b], sum) + eps;
    }
#pragma unroll 1
    for (int i = 0; i < iterations; ++i) {
        if (i > 0) {
#pragma unroll
            for (int a = 0; a < streams; ++a) {
                const float scale = reciprocal((c[a][0] + c[a][1]) + (c[a][2] + c[a][3] + eps));
#pragma unroll
                for (int b = 0; b < streams; ++b)
                    c[a][b] *= scale;
            }
        }
#pragma unroll
        for (int b = 0; b < streams; ++b) {
            const float scale = reciprocal((c[0][b] + c[1][b]) + (c[2][b] + c[3][b] + eps));
#pragma unroll
            for (int a = 0; a < streams; ++a)
                c[a][b] *= scale;
        }
    }
}

__device__ inline float4 scaled_sum(float4 sum, float scale, float4 value) {
    return make_float4(fmaf(scale, value.x, sum.x), fmaf(scale, value.y, sum.y),
                       fmaf(scale, value.z, sum.z), fmaf(scale, value.w, sum.w));
}

}  // namespace percheron::ops::cuda
