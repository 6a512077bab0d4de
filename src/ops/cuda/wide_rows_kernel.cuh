// The few-row product of many rows and many outputs on sm_90a: the same sums as
// few_row_kernel.cuh's, by the tensor core instruction of four warps, whose bits are those of
// mma.sync.
//
// There a thread block has all slices of a few tiles at once, a warp a slice, so that every block
// reads all of x for few weights: of 64 rows twice the bytes of the weights, and what the
// second-level cache gives is what bounds it.  Here a group of four warps has 64 outputs and goes
// through the slices, all groups of a block together, so that they share the rows in shared memory.
// A warp adds the slices' sums up in order as they end, and never meets others for it.
#pragma once

#include <algorithm>

#include "ops/cuda/few_row_launch.h"
#include "ops/cuda/shared_rows_kernel.cuh"
#include "ops/cuda/weight_stream.cuh"
#include "ops/cuda/wide_products.cuh"

namespace percheron::ops::cuda {
namespace {

namespace wide_rows {

constexpr int rows = 64;
constexpr int row_groups = rows / 8;
constexpr int row_stages = 3;
constexpr int products = block_columns / 16;  // of a block
constexpr int product_bytes = rows * 16 * 2;  // of the rows, of a product
constexpr int stage_bytes = products * product_bytes;
constexpr int half_block = block_bytes(WeightFormat::bf16) / 2;  // a slot of the ring
constexpr int row_pieces = block_columns / 32 * row_groups;      // that a warp copies at a time

template <int groups>
struct GroupSizes {
    static constexpr int warps = 4 * groups, threads = warps * 32;
    static constexpr int unit_tiles = warps;
    static constexpr int own_pieces = (row_pieces + warps - 1) / warps;
    static constexpr int ring_depth = std::min(
        (224 * 1024 - row_stages * stage_bytes) / (warps * half_block), largest_ring_depth);
    static constexpr int ring_bytes = warps * ring_depth * half_block;
    static constexpr int barriers_at = row_stages * stage_bytes + ring_bytes;
    static constexpr int shared_bytes = barriers_at + warps * ring_depth * 8;
};

// A lane's part of a piece of the rows, 32 columns of eight rows, to where products expect it;
// `to`: the stage's first byte plus 16 a row and 4 a quarter.
__device__ inline void store_piece(std::uint8_t* to, int piece, uint4 x) {
    std::uint8_t* const first =
        to + piece / row_groups * 2 * product_bytes + piece % row_groups * 256;
    *reinterpret_cast<std::uint32_t*>(first) = x.x;
    *reinterpret_cast<std::uint32_t*>(first + 128) = x.y;
    *reinterpret_cast<std::uint32_t*>(first + product_bytes) = x.z;
    *reinterpret_cast<std::uint32_t*>(first + product_bytes + 128) = x.w;
}

// The operands of half a block's products; `weights`: its first byte plus 16 a lane.
__device__ inline void load_half(const std::uint8_t* weights, int lane,
                                 const UnpackConstants& constants,
                                 std::uint32_t (&a)[products / 2][4]) {
    BlockCodes codes;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        std::uint32_t of_step[2][4];
        load_step<WeightFormat::bf16>(weights, step, lane, constants, codes, of_step);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            a[2 * step][r] = of_step[0][r];
            a[2 * step + 1][r] = of_step[1][r];
        }
    }
}

}  // namespace wide_rows

// A block has a tile a warp at a time; the grid's y goes through groups of 64 rows.
template <int groups>
__global__ void __launch_bounds__(wide_rows::GroupSizes<groups>::threads, 1)
    wide_rows_kernel([[maybe_unused]] const __grid_constant__ FewRowLaunch launch) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace wide_rows;
    using shared_rows::Place;
    using shared_rows::place_of;
    using Size = GroupSizes<groups>;
    constexpr int ring_depth = Size::ring_depth;
    extern __shared__ __align__(16) std::uint8_t shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    std::uint8_t* const ring_memory =
        shared + row_stages * stage_bytes + warp * ring_depth * half_block;
    auto* const barriers = reinterpret_cast<std::uint64_t*>(shared + Size::barriers_at);
    WarpRing ring(ring_memory, barriers + warp * ring_depth, half_block, ring_depth, lane,
                  gridDim.y == 1);
    const int first_row = static_cast<int>(blockIdx.y) * rows;

    // ---- the copying side of the weights
    int copy_unit = blockIdx.x, copy_left = 0;
    const std::uint8_t* copy_from[1];
    const auto copy_next = [&](int slot) {
        if (copy_unit >= launch.units) {
            ring.fill_nothing();
            return;
        }
        if (copy_left == 0) {
            // Tiles past the end repeat the last one; their results are not stored.
            const int tile = min(copy_unit * Size::unit_tiles + warp, launch.tiles - 1);
            const Place place = place_of(launch, tile);
            copy_from[0] = launch.segments[place.segment].weight[0] +
                           static_cast<std::size_t>(place.tile) * launch.blocks * (2 * half_block);
            copy_left = 2 * launch.blocks;
        }
        ring.fill<1>(slot, copy_from, half_block);
        copy_from[0] += half_block;
        if (--copy_left == 0) copy_unit += gridDim.x;
    };
    for (int slot = 0; slot < ring_depth; ++slot)
        copy_next(slot);

    // ---- and of the rows, which all tiles of a unit share: a warp reads 32 columns of eight rows,
    // every lane what it would multiply, and puts them where the products expect them.  Rows past
    // the end repeat the last one; their results are not stored.
    const int units =
        (launch.units - static_cast<int>(blockIdx.x) - 1) / static_cast<int>(gridDim.x) + 1;
    const int all_blocks = units * launch.blocks;
    uint4 on_their_way[Size::own_pieces];
    int rows_unit = blockIdx.x, rows_left = 0, rows_stride = 0;
    const __nv_bfloat16* rows_from = nullptr;
    const auto load_next_rows = [&] {
        if (rows_left == 0) {
            if (rows_unit >= launch.units) return;
            const Place place = place_of(launch, rows_unit * Size::unit_tiles);
            const FewRowSegment& s = launch.segments[place.segment];
            rows_from = s.x + place.tile / s.tiles_per_input * s.input_step + lane % 4 * 8;
            rows_stride = s.x_stride;
            rows_left = launch.blocks;
            rows_unit += gridDim.x;
        }
#pragma unroll
        for (int i = 0; i < Size::own_pieces; ++i) {
            const int piece = i * Size::warps + warp;
            if (row_pieces % Size::warps != 0 && piece >= row_pieces) break;
            const int row = min(first_row + piece % row_groups * 8 + lane / 4, launch.rows - 1);
            on_their_way[i] = load_16(rows_from + static_cast<std::size_t>(row) * rows_stride +
                                      piece / row_groups * 32);
        }
        rows_from += block_columns;
        --rows_left;
    };
    const auto store_rows = [&](int block) {
        if (block >= all_blocks) return;
        std::uint8_t* const to =
            shared + block % row_stages * stage_bytes + lane / 4 * 16 + lane % 4 * 4;
#pragma unroll
        for (int i = 0; i < Size::own_pieces; ++i) {
            const int piece = i * Size::warps + warp;
            if (row_pieces % Size::warps != 0 && piece >= row_pieces) break;
            store_piece(to, piece, on_their_way[i]);
        }
    };
    wait_for_previous_kernel();
    let_next_kernel_start();
    load_next_rows();
    store_rows(0);
    load_next_rows();

    // ---- the computing side
    const auto rows_at = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
    const UnpackConstants constants;
    int slot = 0, phase = 0, of_all = 0;
    for (int unit = blockIdx.x; unit < launch.units; unit += gridDim.x) {
        float sum[row_groups * 4] = {}, before[row_groups * 4];
        int slice = 0, slice_end = launch.blocks >> launch.slices_log2;
#pragma unroll 1
        for (int block = 0; block < launch.blocks; ++block, ++of_all) {
            // Nobody reads the place of the next block's rows any more: it held those of two blocks
            // before this one, whose products ended before the last meeting.
            store_rows(of_all + 1);
            load_next_rows();
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncthreads();
            const std::uint32_t stage = rows_at + of_all % row_stages * stage_bytes;
            std::uint32_t a[2][products / 2][4];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                ring.wait(slot, phase);
                load_half(ring_memory + slot * half_block + lane * 16, lane, constants, a[half]);
                keep(sum);
                keep(a[half]);
                begin_products();
#pragma unroll
                for (int p = 0; p < products / 2; ++p)
                    multiply_tile<rows>(
                        sum, a[half][p],
                        plain_rows(stage + (half * products / 2 + p) * product_bytes), 1);
                end_products();
                // The slot has been read: products that have started have their operands.
                __syncwarp();
                copy_next(slot);
                if (++slot == ring_depth) {
                    slot = 0;
                    phase ^= 1;
                }
            }
            wait_for_products<0>();
            keep(sum);
            keep(a[0]);
            keep(a[1]);
            if (block + 1 == slice_end) {
#pragma unroll
                for (int i = 0; i < row_groups * 4; ++i) {
                    before[i] = slice == 0 ? sum[i] : before[i] + sum[i];
                    sum[i] = 0.0f;
                }
                ++slice;
                slice_end = (slice + 1) * launch.blocks >> launch.slices_log2;
            }
        }
        const int tile = unit * Size::unit_tiles + warp;
        if (tile >= launch.tiles) continue;
        const Place place = place_of(launch, tile);
        const FewRowSegment& s = launch.segments[place.segment];
#pragma unroll
        for (int t = 0; t < row_groups; ++t) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int out = place.tile * tile_rows + lane / 4 + 8 * (i / 2);
                const int row = first_row + t * 8 + lane % 4 * 2 + (i & 1);
                if (out >= s.n || row >= launch.rows) continue;
                const std::size_t at = static_cast<std::size_t>(row) * s.y_stride + out;
                const float total = before[t * 4 + i] * s.scale[0];
                if (s.y_is_bf16)
                    static_cast<__nv_bfloat16*>(s.y)[at] = __float2bfloat16_rn(total);
                else
                    static_cast<float*>(s.y)[at] = total;
            }
        }
    }
#else
    __trap();
#endif
}

// Whether all matrices read the same rows; counts their tiles.
inline bool share_rows(FewRowLaunch& launch) {
    launch.tiles = 0;
    bool same = true;
    for (int i = 0; i < launch.segment_count; ++i) {
        const FewRowSegment& s = launch.segments[i];
        same &= s.x == launch.segments[0].x && s.x_stride == launch.segments[0].x_stride &&
                s.tiles_per_input == s.tiles;
        launch.tiles += s.tiles;
    }
    return same;
}

// Whether every run of so many tiles, counted through all matrices, reads the same rows where the
// matrices and their heads have rows of their own.
inline bool units_share_rows(const FewRowLaunch& launch, int unit_tiles) {
    return std::all_of(launch.segments, launch.segments + launch.segment_count,
                       [&](const FewRowSegment& s) {
                           return s.tiles_per_input % unit_tiles == 0 && s.tiles % unit_tiles == 0;
                       });
}

// A segment's first_unit is its first tile here.
inline void number_tiles(FewRowLaunch& launch) {
    int tiles = 0;
    for (int i = 0; i < launch.segment_count; ++i) {
        launch.segments[i].first_unit = tiles;
        tiles += launch.segments[i].tiles;
    }
}

// How many groups of warps the blocks should have: as evenly as tiles go around, and the more the
// fewer reads of x.  0: units that would read different rows, or too few tiles for half of the
// multiprocessors.
inline int wide_rows_groups(FewRowLaunch& launch, const LaunchContext& context) {
    const bool same = share_rows(launch);
    int best = 0, least = 0;
    for (const int groups : {4, 3, 2}) {
        if (!same && !units_share_rows(launch, 4 * groups)) continue;
        const int units = (launch.tiles + 4 * groups - 1) / (4 * groups);
        if (2 * units < context.multiprocessors) continue;
        const int turns = (units + context.multiprocessors - 1) / context.multiprocessors;
        if (best == 0 || turns * groups < least) {
            best = groups;
            least = turns * groups;
        }
    }
    return best;
}

template <int groups>
Status launch_wide_rows(FewRowLaunch& launch, const LaunchContext& context) {
    using Size = wide_rows::GroupSizes<groups>;
    number_tiles(launch);
    launch.units = (launch.tiles + Size::unit_tiles - 1) / Size::unit_tiles;
    const int row_groups = (launch.rows + wide_rows::rows - 1) / wide_rows::rows;
    return cuda::launch("launching the product of many rows", wide_rows_kernel<groups>,
                        {dim3(std::min(launch.units, context.multiprocessors), row_groups),
                         Size::threads, Size::shared_bytes},
                        context, launch);
}

inline Status launch_wide_rows(FewRowLaunch& launch, int groups, const LaunchContext& context) {
    return groups == 2   ? launch_wide_rows<2>(launch, context)
           : groups == 3 ? launch_wide_rows<3>(launch, context)
                         : launch_wide_rows<4>(launch, context);
}

}  // namespace
}  // namespace percheron::ops::cuda
