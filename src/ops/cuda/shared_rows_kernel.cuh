// The few-row product of many rows and many outputs where there is no wide_rows_kernel.cuh: the
// same sums as few_row_kernel.cuh's, with the rows in shared memory.
//
// There a thread block has all slices of a few tiles at once, a warp a slice, so that every block
// reads all of x for few weights: of 64 rows twice the bytes of the weights, and the second-level
// cache is what bounds it.  Here the warps of a block go through the slices together, each with
// tiles of its own, and share the rows.  A warp adds the slices' sums up in order as they end, and
// never meets others for it.
#pragma once

#include <algorithm>

#include "ops/cuda/few_row_launch.h"
#include "ops/cuda/weight_stream.cuh"

namespace percheron::ops::cuda {
namespace {

namespace shared_rows {

constexpr int n_tiles = 8;     // groups of 8 rows
constexpr int warp_tiles = 2;  // of weights
constexpr int row_stages = 4;  // blocks of the rows
constexpr int half_block = block_bytes(WeightFormat::bf16) / 2;
constexpr int slot_bytes = warp_tiles * half_block;
constexpr int row_pieces = 4 * n_tiles;           // of a warp's copies, of a block of 128 columns
constexpr int rows_bytes = row_pieces * 32 * 16;  // of 64 rows

// Of blocks of so many warps.
template <int block_warps>
struct BlockSizes {
    static constexpr int threads = block_warps * 32;
    static constexpr int unit_tiles = block_warps * warp_tiles;
    // Half blocks of both tiles, of every warp.
    static constexpr int ring_depth = std::min(40 / block_warps, largest_ring_depth);
    static constexpr int ring_bytes = block_warps * ring_depth * slot_bytes;
    static constexpr int barriers_at = ring_bytes + row_stages * rows_bytes;
    static constexpr int shared_bytes = barriers_at + block_warps * ring_depth * 8;
};

// Of all tiles of the launch, one after another; a segment's first_unit is its first tile here.
struct Place {
    int segment = 0, tile = 0;
};

__device__ inline Place place_of(const FewRowLaunch& launch, int tile) {
    Place place;
    while (place.segment + 1 < launch.segment_count &&
           tile >= launch.segments[place.segment + 1].first_unit)
        ++place.segment;
    place.tile = tile - launch.segments[place.segment].first_unit;
    return place;
}

}  // namespace shared_rows

// A block has two tiles a warp at a time; the grid's y goes through groups of 64 rows.
template <int block_warps>
__global__ void __launch_bounds__(shared_rows::BlockSizes<block_warps>::threads, 1)
    shared_rows_kernel(const __grid_constant__ FewRowLaunch launch) {
    using namespace shared_rows;
    using Size = BlockSizes<block_warps>;
    constexpr int ring_depth = Size::ring_depth;
    extern __shared__ __align__(16) std::uint8_t shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    std::uint8_t* const ring_memory = shared + warp * ring_depth * slot_bytes;
    std::uint8_t* const rows_memory = shared + Size::ring_bytes;
    auto* const barriers = reinterpret_cast<std::uint64_t*>(shared + Size::barriers_at);
    WarpRing ring(ring_memory, barriers + warp * ring_depth, slot_bytes, ring_depth, lane,
                  gridDim.y == 1);
    const int first_row = static_cast<int>(blockIdx.y) * 8 * n_tiles;
    const FewRowSegment& any = launch.segments[0];

    // ---- the copying side of the weights
    int copy_unit = blockIdx.x, copy_left = 0;
    const std::uint8_t* copy_from[warp_tiles];
    const auto copy_next = [&](int slot) {
        if (copy_unit >= launch.units) {
            ring.fill_nothing();
            return;
        }
        if (copy_left == 0) {
#pragma unroll
            for (int m = 0; m < warp_tiles; ++m) {
                // Tiles past the end repeat the last one; their results are not stored.
                const int tile =
                    min((copy_unit * block_warps + warp) * warp_tiles + m, launch.tiles - 1);
                const Place place = place_of(launch, tile);
                copy_from[m] =
                    launch.segments[place.segment].weight[0] +
                    static_cast<std::size_t>(place.tile) * launch.blocks * (2 * half_block);
            }
            copy_left = 2 * launch.blocks;
        }
        ring.fill<warp_tiles>(slot, copy_from, half_block);
#pragma unroll
        for (int m = 0; m < warp_tiles; ++m)
            copy_from[m] += half_block;
        if (--copy_left == 0) copy_unit += gridDim.x;
    };
    for (int slot = 0; slot < ring_depth; ++slot)
        copy_next(slot);

    // ---- and of the rows, which are the same for every unit: pieces of eight rows, every lane
    // what a lane multiplies.  Rows past the end repeat the last one; their results are not stored.
    const int units =
        (launch.units - static_cast<int>(blockIdx.x) - 1) / static_cast<int>(gridDim.x) + 1;
    int rows_left = units * launch.blocks, rows_block = 0, rows_stage = 0;
    const auto copy_next_rows = [&] {
        if (rows_left > 0) {
            std::uint8_t* const to = rows_memory + rows_stage * rows_bytes + lane * 16;
            const __nv_bfloat16* const from = any.x + rows_block * block_columns + lane % 4 * 8;
#pragma unroll
            for (int first = 0; first < row_pieces; first += block_warps) {
                const int piece = first + warp;
                if (row_pieces % block_warps != 0 && piece >= row_pieces) break;
                const int row = min(first_row + piece % n_tiles * 8 + lane / 4, launch.rows - 1);
                copy_16_async(
                    to + piece * 512,
                    from + static_cast<std::size_t>(row) * any.x_stride + piece / n_tiles * 32);
            }
            --rows_left;
            if (++rows_block == launch.blocks) rows_block = 0;
            rows_stage = (rows_stage + 1) % row_stages;
        }
        end_copy_group();
    };
    wait_for_previous_kernel();
    let_next_kernel_start();
#pragma unroll 1
    for (int ahead = 0; ahead < row_stages - 1; ++ahead)
        copy_next_rows();

    // ---- the computing side
    int slot = 0, phase = 0, stage = 0;
    for (int unit = blockIdx.x; unit < launch.units; unit += gridDim.x) {
        float sum[warp_tiles][n_tiles][4] = {}, before[warp_tiles][n_tiles][4];
        int slice = 0, slice_end = launch.blocks >> launch.slices_log2;
#pragma unroll 1
        for (int block = 0; block < launch.blocks; ++block) {
            wait_for_copies<row_stages - 2>();
            __syncthreads();  // everybody's rows are there, and those before have been read
            copy_next_rows();
            const auto* const rows =
                reinterpret_cast<const uint4*>(rows_memory + stage * rows_bytes) + lane;
            uint4 next[n_tiles];
#pragma unroll
            for (int t = 0; t < n_tiles; ++t)
                next[t] = rows[t * 32];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                ring.wait(slot, phase);
                const std::uint8_t* const weights = ring_memory + slot * slot_bytes + lane * 16;
                const UnpackConstants constants;
                BlockCodes codes;
#pragma unroll
                for (int of_half = 0; of_half < 2; ++of_half) {
                    const int step = 2 * half + of_half;
                    uint4 x[n_tiles];
#pragma unroll
                    for (int t = 0; t < n_tiles; ++t) {
                        x[t] = next[t];
                        if (step < 3) next[t] = rows[((step + 1) * n_tiles + t) * 32];
                    }
#pragma unroll
                    for (int m = 0; m < warp_tiles; ++m) {
                        std::uint32_t a[2][4];
                        load_step<WeightFormat::bf16>(weights + m * half_block, of_half, lane,
                                                      constants, codes, a);
#pragma unroll
                        for (int t = 0; t < n_tiles; ++t)
                            multiply_add(sum[m][t], a[0], x[t].x, x[t].y);
#pragma unroll
                        for (int t = 0; t < n_tiles; ++t)
                            multiply_add(sum[m][t], a[1], x[t].z, x[t].w);
                    }
                }
                __syncwarp();
                copy_next(slot);
                if (++slot == ring_depth) {
                    slot = 0;
                    phase ^= 1;
                }
            }
            stage = (stage + 1) % row_stages;
            if (block + 1 == slice_end) {
#pragma unroll
                for (int m = 0; m < warp_tiles; ++m) {
#pragma unroll
                    for (int t = 0; t < n_tiles; ++t) {
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            before[m][t][i] =
                                slice == 0 ? sum[m][t][i] : before[m][t][i] + sum[m][t][i];
                            sum[m][t][i] = 0.0f;
                        }
                    }
                }
                ++slice;
                slice_end = (slice + 1) * launch.blocks >> launch.slices_log2;
            }
        }
#pragma unroll
        for (int m = 0; m < warp_tiles; ++m) {
            const int tile = (unit * block_warps + warp) * warp_tiles + m;
            if (tile >= launch.tiles) continue;
            const Place place = place_of(launch, tile);
            const FewRowSegment& s = launch.segments[place.segment];
#pragma unroll
            for (int t = 0; t < n_tiles; ++t) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int out = place.tile * tile_rows + lane / 4 + 8 * (i / 2);
                    const int row = first_row + t * 8 + lane % 4 * 2 + (i & 1);
                    if (out >= s.n || row >= launch.rows) continue;
                    const std::size_t at = static_cast<std::size_t>(row) * s.y_stride + out;
                    const float total = before[m][t][i] * s.scale[0];
                    if (s.y_is_bf16)
                        static_cast<__nv_bfloat16*>(s.y)[at] = __float2bfloat16_rn(total);
                    else
                        static_cast<float*>(s.y)[at] = total;
                }
            }
        }
    }
}

// How many warps the blocks should have; 0: the matrices read different rows, or have too few tiles
// to go around or more than one unit for every multiprocessor, where the other kernel is faster.
inline int shared_rows_warps(FewRowLaunch& launch, const LaunchContext& context) {
    launch.tiles = 0;
    for (int i = 0; i < launch.segment_count; ++i) {
        const FewRowSegment& s = launch.segments[i];
        if (s.x != launch.segments[0].x || s.x_stride != launch.segments[0].x_stride ||
            s.tiles_per_input != s.tiles)
            return 0;
        launch.tiles += s.tiles;
    }
    for (const int warps : {5, 6}) {
        const int unit = warps * shared_rows::warp_tiles;
        const int units = (launch.tiles + unit - 1) / unit;
        if (units <= context.multiprocessors)
            return 3 * units >= 2 * context.multiprocessors ? warps : 0;
    }
    return 0;
}

template <int block_warps>
Status launch_shared_rows(FewRowLaunch& launch, const LaunchContext& context) {
    using Size = shared_rows::BlockSizes<block_warps>;
    int tiles = 0;
    for (int i = 0; i < launch.segment_count; ++i) {
        launch.segments[i].first_unit = tiles;
        tiles += launch.segments[i].tiles;
    }
    launch.units = (tiles + Size::unit_tiles - 1) / Size::unit_tiles;
    const int row_groups =
        (launch.rows + 8 * shared_rows::n_tiles - 1) / (8 * shared_rows::n_tiles);
    return cuda::launch("launching the product of shared rows", shared_rows_kernel<block_warps>,
                        {dim3(std::min(launch.units, context.multiprocessors), row_groups),
                         Size::threads, Size::shared_bytes},
                        context, launch);
}

inline Status launch_shared_rows(FewRowLaunch& launch, int warps, const LaunchContext& context) {
    return warps == 5 ? launch_shared_rows<5>(launch, context)
                      : launch_shared_rows<6>(launch, context);
}

}  // namespace
}  // namespace percheron::ops::cuda
