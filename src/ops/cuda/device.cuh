// Small pieces of device code that every kernel of this backend uses: asynchronous copies, the
// tensor core instruction, programmatic dependent launch.
//
// Discipline of dependent launches.  A kernel first prefetches what no kernel of the same step
// writes (weights, and state of earlier steps), then calls wait_for_previous_kernel(), then
// let_next_kernel_start().  In this order the kernel before the previous one has finished when a
// kernel starts, so only the previous kernel's results may not be touched before the wait.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "ops/cuda/few_row_gemm.h"

namespace percheron::ops::cuda {

inline constexpr unsigned full_warp = 0xffffffffu;

__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Has `bytes` on their way from memory to the second-level cache, one line a thread: for what is
// read once behind wait_for_previous_kernel() and written by nobody.
__device__ inline void prefetch(const void* first, int bytes, int thread, int threads) {
    for (int at = thread * 128; at < bytes; at += threads * 128)
        if (at >= 0)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(first) + at));
}

// 16 bytes from global to shared memory, past the first-level cache.
__device__ inline void copy_16_async(void* shared, const void* global) {
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(address), "l"(global)
                 : "memory");
}

__device__ inline void end_copy_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `pending` of the newest copy groups of this thread are still under way.
template <int pending>
__device__ inline void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Waits until the `phase`-th (mod 2) phase of an mbarrier in shared memory is complete.
__device__ inline void wait_for_barrier([[maybe_unused]] std::uint32_t barrier,
                                        [[maybe_unused]] int phase) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "waiting_%=:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra.uni finished_%=;\n"
        "bra.uni waiting_%=;\n"
        "finished_%=:\n"
        "}" ::"r"(barrier),
        "r"(phase)
        : "memory");
#endif
}

// Loads of 16, 8, 2 and 1 bytes that may see what the previous kernel wrote (never the non-coherent
// path, which a kernel started early could serve from stale lines).
__device__ inline uint4 load_16(const void* global) {
    uint4 value;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(global)
                 : "memory");
    return value;
}

__device__ inline uint2 load_8(const void* global) {
    uint2 value;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(value.x), "=r"(value.y)
                 : "l"(global)
                 : "memory");
    return value;
}
__device__ inline std::uint32_t load_2(const void* global) {
    std::uint32_t value;
    asm volatile("{ .reg .b16 half; ld.global.b16 half, [%1]; cvt.u32.u16 %0, half; }"
                 : "=r"(value)
                 : "l"(global)
                 : "memory");
    return value;
}
__device__ inline std::uint32_t load_1(const void* global) {
    std::uint32_t value;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
    return value;
}

// d += a b of one 16x8x16 tile: a 16x16 row-major, b 16x8 column-major, both bf16; sums in fp32.
__device__ inline void multiply_add(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
    std::uint32_t result;
    // fma with -0: the plain product, available from sm_80 on.
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(0x80008000u));
    return result;
}

__device__ inline std::uint32_t add_bf16x2(std::uint32_t a, std::uint32_t b) {
    std::uint32_t result;
    // fma with one: the plain sum.
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(0x3f803f80u), "r"(b));
    return result;
}

__device__ inline float bf16_low(std::uint32_t pair) {
    return __uint_as_float(pair << 16);
}
__device__ inline float bf16_high(std::uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

__device__ inline float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

// Four 8x8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void load_matrices(std::uint32_t (&r)[4], const void* shared) {
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* shared) {
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// Four columns of what a row's experts gave.
__device__ inline float4 sum_of_pairs(const ExpertPairs& pairs, std::size_t row, int hidden,
                                      int column) {
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int j = 0; j < pairs.chosen; ++j) {
        const std::size_t pair = row * pairs.chosen + j;
        const float weight = pairs.weights[pair];
        const float4 v = *reinterpret_cast<const float4*>(pairs.output + pair * hidden + column);
        total.x = fmaf(weight, v.x, total.x);
        total.y = fmaf(weight, v.y, total.y);
        total.z = fmaf(weight, v.z, total.z);
        total.w = fmaf(weight, v.w, total.w);
    }
    return total;
}

// Sum over the lanes of a warp, in a fixed order; every lane gets it.
__device__ inline float warp_sum(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(full_warp, value, offset);
    return value;
}

// Sum over the threads of a block of `warps` warps, in a fixed order; every thread gets it.  All of
// them call it, with a `sums` that nobody reads or writes any more.
template <int warps>
__device__ inline float block_sum(float value, float (&sums)[warps]) {
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    float all = 0.0f;
#pragma unroll
    for (int warp = 0; warp < warps; ++warp)
        all += sums[warp];
    return all;
}

}  // namespace percheron::ops::cuda
