// The few-row product of many rows and few outputs on sm_90a: the same sums as
// few_row_kernel.cuh's, by the tensor core instruction of four warps, whose bits are those of
// mma.sync.
//
// 64 outputs (of gate and up: 32) are a cluster's of two or eight thread blocks.  A block has half
// of the slices or one, four warps each, which keep their part of the rows in shared memory; the
// sums meet through the cluster's shared memory and are added in the order of the slices.  So rows
// are read once for 64 outputs, where few_row_kernel.cuh reads them once for 32 or 16.
#pragma once

#include <cooperative_groups.h>

#include "ops/cuda/few_row_launch.h"
#include "ops/cuda/wide_rows_kernel.cuh"

namespace percheron::ops::cuda {
namespace {

namespace sliced_rows {

constexpr int slices = 8, slices_log2 = 3;
constexpr int group_threads = 128;
constexpr int unit_tiles = 4;
constexpr int rows = wide_rows::rows, row_groups = wide_rows::row_groups;
// A stage is half a block: 64 columns.
constexpr int half_block = wide_rows::half_block, products = wide_rows::products / 2;
constexpr int product_bytes = wide_rows::product_bytes, stage_bytes = products * product_bytes;
constexpr int row_stages = 3, ring_depth = 4;
constexpr int own_pieces = block_columns / 2 / 32 * row_groups / 4;
// A group's sums take the place of its rows.
constexpr int tile_floats = 16 * rows, group_rows_bytes = row_stages * stage_bytes;
static_assert(unit_tiles * tile_floats * 4 <= group_rows_bytes);

template <int cluster_blocks>
struct Sizes {
    static constexpr int groups = slices / cluster_blocks;  // of four warps, a slice each
    static constexpr int threads = groups * group_threads, warps = 4 * groups;
    static constexpr int rows_bytes = groups * group_rows_bytes;
    static constexpr int barriers_at = rows_bytes + warps * ring_depth * half_block;
    static constexpr int shared_bytes = barriers_at + warps * ring_depth * 8;
    static constexpr int blocks_per_multiprocessor = cluster_blocks == 8 ? 4 : 1;
};

}  // namespace sliced_rows

template <int cluster_blocks, bool swiglu>
__global__ void __launch_bounds__(sliced_rows::Sizes<cluster_blocks>::threads,
                                  sliced_rows::Sizes<cluster_blocks>::blocks_per_multiprocessor)
    sliced_rows_kernel([[maybe_unused]] const __grid_constant__ FewRowLaunch launch) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace sliced_rows;
    using shared_rows::Place;
    using shared_rows::place_of;
    using Size = sliced_rows::Sizes<cluster_blocks>;
    constexpr int groups = Size::groups;
    namespace cg = cooperative_groups;
    extern __shared__ __align__(16) std::uint8_t shared[];
    const cg::cluster_group cluster = cg::this_cluster();
    const int rank = static_cast<int>(cluster.block_rank());
    const int unit = blockIdx.x / cluster_blocks;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int group = warp / 4, tile_of_unit = warp % 4;
    const int slice = rank * groups + group;
    const int first_block = slice * launch.blocks >> slices_log2;
    const int stages = 2 * (((slice + 1) * launch.blocks >> slices_log2) - first_block);
    const int first_row = static_cast<int>(blockIdx.y) * rows;
    const FewRowSegment& any = launch.segments[0];

    // Of gate and up two tiles are the gate's and two the up's of the same outputs.
    constexpr int matrices = swiglu ? 2 : 1, out_tiles = unit_tiles / matrices;
    const auto place_of_out = [&](int out_tile) {
        // Tiles past the end repeat the last one; their results are not stored.
        return place_of(launch, min(unit * out_tiles + out_tile, launch.tiles - 1));
    };
    WarpRing ring(shared + Size::rows_bytes + warp * ring_depth * half_block,
                  reinterpret_cast<std::uint64_t*>(shared + Size::barriers_at) + warp * ring_depth,
                  half_block, ring_depth, lane, gridDim.y == 1);
    const std::uint8_t* copy_from[1];
    {
        const Place place = place_of_out(tile_of_unit % out_tiles);
        copy_from[0] =
            launch.segments[place.segment].weight[tile_of_unit / out_tiles] +
            (static_cast<std::size_t>(place.tile) * launch.blocks + first_block) * (2 * half_block);
    }
    int copied = 0;
    const auto copy_next = [&](int slot) {
        if (copied++ >= stages) {
            ring.fill_nothing();
            return;
        }
        ring.fill<1>(slot, copy_from, half_block);
        copy_from[0] += half_block;
    };
    for (int slot = 0; slot < ring_depth; ++slot)
        copy_next(slot);

    // The group's rows, as in wide_rows_kernel.cuh.
    uint4 on_their_way[own_pieces];
    std::uint8_t* const own_rows = shared + group * group_rows_bytes;
    const auto load_rows = [&](int stage) {
        if (stage >= stages) return;
        const __nv_bfloat16* const from =
            any.x + first_block * block_columns + stage * (block_columns / 2) + lane % 4 * 8;
#pragma unroll
        for (int i = 0; i < own_pieces; ++i) {
            const int piece = i * 4 + tile_of_unit;
            const int row = min(first_row + piece % row_groups * 8 + lane / 4, launch.rows - 1);
            on_their_way[i] = load_16(from + static_cast<std::size_t>(row) * any.x_stride +
                                      piece / row_groups * 32);
        }
    };
    const auto store_rows = [&](int stage) {
        if (stage >= stages) return;
        std::uint8_t* const to =
            own_rows + stage % row_stages * stage_bytes + lane / 4 * 16 + lane % 4 * 4;
#pragma unroll
        for (int i = 0; i < own_pieces; ++i)
            wide_rows::store_piece(to, i * 4 + tile_of_unit, on_their_way[i]);
    };
    const auto meet_group = [&] {
        if constexpr (groups == 1)
            __syncthreads();
        else
            asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(group_threads) : "memory");
    };
    wait_for_previous_kernel();
    let_next_kernel_start();
    load_rows(0);
    store_rows(0);
    load_rows(1);

    const auto rows_at = static_cast<std::uint32_t>(__cvta_generic_to_shared(own_rows));
    const UnpackConstants constants;
    int slot = 0, phase = 0;
    float sum[row_groups * 4] = {};
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
        store_rows(stage + 1);
        load_rows(stage + 2);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        meet_group();
        ring.wait(slot, phase);
        std::uint32_t a[products][4];
        wide_rows::load_half(
            shared + Size::rows_bytes + (warp * ring_depth + slot) * half_block + lane * 16, lane,
            constants, a);
        keep(sum);
        keep(a);
        begin_products();
#pragma unroll
        for (int p = 0; p < products; ++p)
            multiply_tile<rows>(
                sum, a[p],
                plain_rows(rows_at + stage % row_stages * stage_bytes + p * product_bytes), 1);
        end_products();
        // The slot has been read: products that have started have their operands.
        __syncwarp();
        copy_next(slot);
        if (++slot == ring_depth) {
            slot = 0;
            phase ^= 1;
        }
        wait_for_products<0>();
        keep(sum);
        keep(a);
    }

    // ---- the slices' sums, in order: a block has its share of the results, four a thread at a
    // time
    meet_group();
    float* const sums = reinterpret_cast<float*>(own_rows);
#pragma unroll
    for (int t = 0; t < row_groups; ++t)
        *reinterpret_cast<float4*>(sums + tile_of_unit * tile_floats + t * 128 + lane * 4) =
            make_float4(sum[4 * t], sum[4 * t + 1], sum[4 * t + 2], sum[4 * t + 3]);
    cluster.sync();
    const auto total_of = [&](int tile, int t, float(&total)[4]) {
#pragma unroll
        for (int s = 0; s < slices; ++s) {
            const float4 part = *reinterpret_cast<const float4*>(
                cluster.map_shared_rank(
                    reinterpret_cast<float*>(shared + s % groups * group_rows_bytes), s / groups) +
                tile * tile_floats + t * 128 + lane * 4);
            total[0] = s == 0 ? part.x : total[0] + part.x;
            total[1] = s == 0 ? part.y : total[1] + part.y;
            total[2] = s == 0 ? part.z : total[2] + part.z;
            total[3] = s == 0 ? part.w : total[3] + part.w;
        }
    };
    constexpr int own_results = out_tiles * row_groups / cluster_blocks;  // in warps' fours
    for (int result = rank * own_results + warp; result < (rank + 1) * own_results;
         result += Size::warps) {
        const int out_tile = result / row_groups, t = result % row_groups;
        if (unit * out_tiles + out_tile >= launch.tiles) break;
        float total[4], other[4] = {};
        total_of(out_tile, t, total);
        if constexpr (swiglu) total_of(out_tile + out_tiles, t, other);
        const Place place = place_of_out(out_tile);
        const FewRowSegment& s = launch.segments[place.segment];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int out = place.tile * tile_rows + lane / 4 + 8 * (i / 2);
            const int row = first_row + t * 8 + lane % 4 * 2 + (i & 1);
            if (out >= s.n || row >= launch.rows) continue;
            const std::size_t at = static_cast<std::size_t>(row) * s.y_stride + out;
            total[i] *= s.scale[0];
            if constexpr (swiglu) {
                const float gate = fminf(total[i], launch.limit);
                const float up = fminf(fmaxf(other[i] * s.scale[1], -launch.limit), launch.limit);
                static_cast<__nv_bfloat16*>(s.y)[at] =
                    __float2bfloat16_rn(gate * sigmoid(gate) * up * launch.y_factor);
            } else if (s.y_is_bf16) {
                static_cast<__nv_bfloat16*>(s.y)[at] = __float2bfloat16_rn(total[i]);
            } else {
                static_cast<float*>(s.y)[at] = total[i];
            }
        }
    }
    cluster.sync();  // nobody leaves while its sums are read
#else
    __trap();
#endif
}

// How many blocks the clusters should have, so that they keep most multiprocessors busy and find
// room at once.  0: matrices that read different rows, have other than eight slices, or are too
// large.
inline int sliced_rows_cluster(FewRowLaunch& launch, bool swiglu, const LaunchContext& context) {
    using namespace sliced_rows;
    if (launch.slices_log2 != slices_log2 || !share_rows(launch)) return 0;
    const int out_tiles = unit_tiles / (swiglu ? 2 : 1);
    const int clusters = (launch.tiles + out_tiles - 1) / out_tiles *
                         ((launch.rows + sliced_rows::rows - 1) / sliced_rows::rows);
    if (3 * clusters >= context.multiprocessors) return 2;
    return 16 * clusters >= context.multiprocessors ? 8 : 0;
}

template <int cluster_blocks>
Status launch_sliced_rows(FewRowLaunch& launch, bool swiglu, const LaunchContext& context) {
    using namespace sliced_rows;
    using Size = sliced_rows::Sizes<cluster_blocks>;
    number_tiles(launch);
    const int out_tiles = unit_tiles / (swiglu ? 2 : 1);
    const int units = (launch.tiles + out_tiles - 1) / out_tiles;
    return cuda::launch(
        "launching the product of many rows in slices",
        swiglu ? sliced_rows_kernel<cluster_blocks, true>
               : sliced_rows_kernel<cluster_blocks, false>,
        {dim3(units * cluster_blocks, (launch.rows + sliced_rows::rows - 1) / sliced_rows::rows),
         Size::threads, Size::shared_bytes, cluster_blocks},
        context, launch);
}

inline Status launch_sliced_rows(FewRowLaunch& launch, int cluster, bool swiglu,
                                 const LaunchContext& context) {
    return cluster == 2 ? launch_sliced_rows<2>(launch, swiglu, context)
                        : launch_sliced_rows<8>(launch, swiglu, context);
}

}  // namespace
}  // namespace percheron::ops::cuda
