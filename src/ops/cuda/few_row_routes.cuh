// Which of the few-row kernels computes a product.
#pragma once

#include "ops/cuda/few_row_kernel.cuh"
#include "ops/cuda/prefill_gemm.h"
#include "ops/cuda/shared_rows_kernel.cuh"
#include "ops/cuda/sliced_rows_kernel.cuh"
#include "ops/cuda/wide_rows_kernel.cuh"

namespace percheron::ops::cuda {
namespace {

// Blocks of 4-bit weights are small: two a stage, where every slice has an even number of them,
// halve the work between blocks.
constexpr bool small_blocks(WeightFormat format) {
    return format == WeightFormat::w4a16 || format == WeightFormat::nvfp4;
}
bool two_blocks_a_stage(const FewRowLaunch& launch) {
    const int slices = 1 << launch.slices_log2;
    return launch.blocks % (2 * slices) == 0;
}

// How many groups of eight rows share a read of the weights: all of up to 64 rows, but fewer where
// the matrices are so small that most multiprocessors would have nothing to do.
int shared_groups(const FewRowLaunch& launch, bool swiglu, const LaunchContext& context) {
    const int groups = (launch.rows + 7) / 8;
    int tiles = 0;
    for (int i = 0; i < launch.segment_count; ++i)
        tiles += launch.segments[i].tiles;
    int together = groups > 4 ? 8 : groups > 2 ? 4 : groups > 1 ? 2 : 1;
    for (; together > 1; together /= 2) {
        const int tiles_a_block =
            (warps >> launch.slices_log2) * (together >= 4 && !swiglu ? 2 : 1);
        const int blocks =
            (tiles + tiles_a_block - 1) / tiles_a_block * ((groups + together - 1) / together);
        if (2 * blocks > context.multiprocessors) break;
    }
    return together;
}

// Of so many rows on the wide tensor core instruction is no slower.
constexpr int least_wide_rows = 33;

}  // namespace

// More rows share a read of the weights, and more tiles share a read of the rows.  Neither changes
// a bit of the result.
template <WeightFormat format>
Status launch_product(FewRowLaunch& launch, bool swiglu, const LaunchContext& context) {
    if constexpr (format == WeightFormat::bf16) {
        static const bool wide = has_prefill_kernels();
        if (wide && launch.rows >= least_wide_rows) {
            const int groups = swiglu ? 0 : wide_rows_groups(launch, context);
            if (groups > 0) return launch_wide_rows(launch, groups, context);
            const int cluster = sliced_rows_cluster(launch, swiglu, context);
            if (cluster > 0) return launch_sliced_rows(launch, cluster, swiglu, context);
        }
    }
    switch (shared_groups(launch, swiglu, context)) {
        case 8:
            if constexpr (format == WeightFormat::bf16) {
                const int block_warps = swiglu ? 0 : shared_rows_warps(launch, context);
                if (block_warps > 0) return launch_shared_rows(launch, block_warps, context);
            }
            return swiglu ? launch_kernel<format, 8, 2, 1, 1, true>(launch, context)
                          : launch_kernel<format, 8, 2, 1, 1, false>(launch, context);
        case 4:
            return swiglu ? launch_kernel<format, 4, 2, 1, 1, true>(launch, context)
                          : launch_kernel<format, 4, 2, 1, 1, false>(launch, context);
        case 2:
            return swiglu ? launch_kernel<format, 2, 1, 2, 1, true>(launch, context)
                          : launch_kernel<format, 2, 1, 1, 1, false>(launch, context);
        default:
            break;
    }
    if constexpr (small_blocks(format)) {
        if (two_blocks_a_stage(launch))
            return swiglu ? launch_kernel<format, 1, 2, 1, 2, true>(launch, context)
                          : launch_kernel<format, 1, 2, 1, 2, false>(launch, context);
    }
    if constexpr (format == WeightFormat::bf16) {
        if (swiglu) return launch_kernel<format, 1, 2, 1, 1, true>(launch, context);
    }
    return swiglu ? launch_kernel<format, 1, 1, 2, 1, true>(launch, context)
                  : launch_kernel<format, 1, 1, 1, 1, false>(launch, context);
}

template <WeightFormat format>
Status launch_experts(FewRowLaunch& launch, bool swiglu, const LaunchContext& context) {
    if constexpr (small_blocks(format)) {
        if (two_blocks_a_stage(launch))
            return swiglu ? launch_kernel<format, 1, 2, 1, 2, true, true>(launch, context)
                          : launch_kernel<format, 1, 2, 1, 2, false, true>(launch, context);
    }
    if constexpr (format == WeightFormat::bf16) {
        if (swiglu) return launch_kernel<format, 1, 2, 1, 1, true, true>(launch, context);
    }
    return swiglu ? launch_kernel<format, 1, 1, 2, 1, true, true>(launch, context)
                  : launch_kernel<format, 1, 1, 1, 1, false, true>(launch, context);
}

}  // namespace percheron::ops::cuda
