// The device's side of weight_prefetch.h.
#pragma once

#include "ops/cuda/weight_prefetch.h"

namespace percheron::ops::cuda {

// Thread `thread` of `threads` asks for its share.
__device__ inline void ask_for([[maybe_unused]] const WeightsAhead& ahead,
                               [[maybe_unused]] int thread, [[maybe_unused]] int threads) {
#if __CUDA_ARCH__ >= 900
#pragma unroll 1
    for (int i = 0; i < ahead.count; ++i) {
        const PackedMatrix& matrix = ahead.matrices[i];
        const int bytes = block_bytes(matrix.format);
        const int tiles = (matrix.n + tile_rows - 1) / tile_rows;
        const int blocks = tiles * ((matrix.k + block_columns - 1) / block_columns);
        for (int block = thread * ahead.every; block < blocks; block += threads * ahead.every)
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                             matrix.data + static_cast<std::size_t>(block) * bytes),
                         "r"(bytes)
                         : "memory");
    }
#endif
}

}  // namespace percheron::ops::cuda
