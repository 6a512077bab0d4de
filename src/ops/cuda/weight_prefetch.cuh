// The device's side of weight_prefetch.h, for kernels that have threads to spare.
#pragma once

#include "ops/cuda/device.cuh"
#include "ops/cuda/packed_matrix.h"

namespace percheron::ops::cuda {

// Has the `piece`-th of every `every`-th block on its way to the second-level cache, if there is
// one.
__device__ inline void prefetch_block([[maybe_unused]] const std::uint8_t* data,
                                      [[maybe_unused]] int bytes, int blocks, int piece,
                                      int every) {
    const int block = piece * every;
    if (block >= blocks) return;
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                     data + static_cast<std::size_t>(block) * bytes),
                 "r"(bytes)
                 : "memory");
#endif
}

__device__ inline void prefetch_block(const PackedMatrix& matrix, int piece, int every) {
    const int tiles = (matrix.n + tile_rows - 1) / tile_rows;
    const int blocks = (matrix.k + block_columns - 1) / block_columns;
    prefetch_block(matrix.data, block_bytes(matrix.format), tiles * blocks, piece, every);
}

}  // namespace percheron::ops::cuda
