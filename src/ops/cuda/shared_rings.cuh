// Rings in shared memory that one group of warps fills and others read: barriers that count bytes
// and arrivals, and tensor copies that arrive at them (sm_90a).
#pragma once

#include <cstdint>

#include <cuda.h>
#include <cuda_runtime.h>

#include "ops/cuda/device.cuh"

namespace percheron::ops::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ inline std::uint32_t address_of(const void* shared) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

__device__ inline void begin_barrier(std::uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Behind the first of them, before anybody meets at one.
__device__ inline void show_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void arrive_at(std::uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void expect_copies(std::uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// What this thread has stored is seen by the tensor core and the copies of the others.
__device__ inline void show_stores() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// A warp arrives once, all of its stores being there.
__device__ inline void arrive_with_stores(std::uint32_t barrier) {
    show_stores();
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive_at(barrier);
}

// A box of rows, from column and row on.
__device__ inline void copy_rows_box(std::uint32_t to, const CUtensorMap& map, int column, int row,
                                     std::uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(&map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}

// A place in a ring of `depth`, and which time around it is.
template <int depth>
struct RingPlace {
    int slot = 0, round = 0;

    __device__ void advance() {
        if (++slot == depth) {
            slot = 0;
            round ^= 1;
        }
    }
};

#endif

}  // namespace percheron::ops::cuda
