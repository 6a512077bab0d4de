// The kernel of the few-row product.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ops/cuda/expert_units.cuh"
#include "ops/cuda/few_row_launch.h"
#include "ops/cuda/weight_prefetch.cuh"
#include "ops/cuda/weight_stream.cuh"

namespace percheron::ops::cuda {
namespace {

constexpr int warps = 8;
constexpr int threads = warps * 32;

// How many warps a multiprocessor holds and how many bytes of weights they keep under way decide
// how close the reads come to the memory's rate: fp8 wants warps, bf16 bytes, and the 4-bit
// formats, which keep the integer units busy, registers for two blocks and two tiles at a time.
//   n_tiles  groups of 8 rows of x that share a read of the weights
//   m_tiles  tiles of weights, computed together, that share a read of x
//   serial   of tiles computed one after the other before the warps meet
template <WeightFormat format, int n_tiles, int m_tiles, int stage_blocks>
struct Sizes {
    static constexpr int blocks_per_multiprocessor =
        n_tiles >= 4 || (format == WeightFormat::bf16 && m_tiles == 2) ? 1
        : n_tiles == 1 && format != WeightFormat::bf16 && m_tiles == 1 ? 4
                                                                       : 2;
    static constexpr int tile_sums = n_tiles * 128;  // floats
    static constexpr int shared_budget = 224 * 1024 / blocks_per_multiprocessor - 1024;
};

// The segment of a unit; units only grow, so the search goes on from the last one.
__device__ inline int segment_of(const FewRowLaunch& launch, int segment, int unit) {
    while (segment + 1 < launch.segment_count && unit >= launch.segments[segment + 1].first_unit)
        ++segment;
    return segment;
}

template <int slices>
__device__ inline float sum_of_slices(const float* first, int stride) {
    float part[slices];
#pragma unroll
    for (int s = 0; s < slices; ++s)
        part[s] = first[s * stride];
    float result = part[0];
#pragma unroll
    for (int s = 1; s < slices; ++s)
        result += part[s];
    return result;
}

__device__ inline float sum_of_slices(int slices_log2, const float* first, int stride) {
    switch (slices_log2) {
        case 0:
            return first[0];
        case 1:
            return sum_of_slices<2>(first, stride);
        case 2:
            return sum_of_slices<4>(first, stride);
        default:
            return sum_of_slices<8>(first, stride);
    }
}

template <WeightFormat format, int n_tiles, int m_tiles, int serial, int stage_blocks, bool swiglu,
          bool grouped>
__global__ void __launch_bounds__(
    threads, Sizes<format, n_tiles, m_tiles, stage_blocks>::blocks_per_multiprocessor)
    few_row_kernel(const __grid_constant__ FewRowLaunch launch) {
    constexpr int block_size = block_bytes(format);
    constexpr int unit_tiles = m_tiles * serial;  // of a group of warps
    // With gate and up a tile of outputs takes two: its gate's and its up's.
    constexpr int matrices = swiglu ? 2 : 1, out_tiles = unit_tiles / matrices;
    static_assert(!grouped || n_tiles == 1);
    constexpr int warp_sums = unit_tiles * n_tiles * 128;

    extern __shared__ __align__(16) std::uint8_t shared[];
    [[maybe_unused]] __shared__ ListedUnit listed[grouped ? listed_units : 1];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr int stage_bytes = stage_blocks * block_size;
    constexpr int slot_bytes = stage_bytes * m_tiles;
    std::uint8_t* const ring_memory = shared + warp * launch.depth * slot_bytes;
    float* const sums = reinterpret_cast<float*>(shared + warps * launch.depth * slot_bytes);
    std::uint64_t* const barriers =
        reinterpret_cast<std::uint64_t*>(sums + launch.sum_buffers * warps * warp_sums);
    WarpRing ring(ring_memory, barriers + warp * launch.depth, slot_bytes, launch.depth, lane,
                  gridDim.y == 1);

    // This warp's place in every unit: a slice of k, and a group of tiles.
    const int slices = 1 << launch.slices_log2;
    const int groups = warps >> launch.slices_log2;
    const int slice = warp & (slices - 1), group = warp >> launch.slices_log2;
    const int first_block = slice * launch.blocks >> launch.slices_log2;
    const int block_count = ((slice + 1) * launch.blocks >> launch.slices_log2) - first_block;

    int units = launch.units;
    [[maybe_unused]] GroupUnit first_unit = {};
    [[maybe_unused]] int first_expert = 0;
    if constexpr (grouped) {
        // Which experts there are is known only behind the choice.  The first unit's is read beside
        // their number, which may turn out not to reach it.
        if (!launch.choice_is_older) wait_for_previous_kernel();
        first_unit = group_unit(launch, blockIdx.x);
        const int groups_there = *launch.group_count;
        first_expert = launch.groups[min(first_unit.group, launch.most_groups - 1)].expert;
        units *= groups_there;
    }

    // ---- the copying side: up to `depth` stages ahead of the computing side, through all units
    int copy_unit = blockIdx.x, copy_segment = 0, copy_serial = 0, copy_left = 0;
    [[maybe_unused]] int copy_entry = 0;
    const std::uint8_t* copy_from[m_tiles];
    const auto copy_next = [&](int slot, [[maybe_unused]] auto units_are_listed) {
        if (copy_unit >= units) {
            ring.fill_nothing();
            return;
        }
        if (copy_left == 0) {
            int unit_of_matrix = copy_unit;
            [[maybe_unused]] int expert = 0;
            if constexpr (grouped) {
                const GroupUnit own = group_unit(launch, copy_unit);
                if constexpr (!units_are_listed)
                    expert = own.group == first_unit.group ? first_expert
                                                           : launch.groups[own.group].expert;
                unit_of_matrix = own.unit;
            } else {
                copy_segment = segment_of(launch, copy_segment, copy_unit);
            }
            const FewRowSegment& s = launch.segments[copy_segment];
            const int local = (unit_of_matrix - s.first_unit) * groups + group;
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
                const int of_unit = copy_serial * m_tiles + m;
                // Tiles past the end repeat the last one; their results are not stored.
                const int tile = min(local * out_tiles + of_unit / matrices, s.tiles - 1);
                const int which = of_unit % matrices;
                const std::uint8_t* matrix;
                if constexpr (grouped && units_are_listed)
                    matrix = listed[copy_entry % listed_units].weight[which];
                else if constexpr (grouped)
                    matrix = launch.expert_weights[which][expert];
                else
                    matrix = s.weight[which];
                copy_from[m] =
                    matrix +
                    (static_cast<std::size_t>(tile) * launch.blocks + first_block) * block_size;
            }
            copy_left = block_count;
        }
        ring.fill<m_tiles>(slot, copy_from, stage_bytes);
#pragma unroll
        for (int m = 0; m < m_tiles; ++m)
            copy_from[m] += stage_bytes;
        copy_left -= stage_blocks;
        if (copy_left == 0 && ++copy_serial == serial) {
            copy_serial = 0;
            copy_unit += gridDim.x;
            ++copy_entry;
        }
    };
    for (int slot = 0; slot < launch.depth; ++slot)
        copy_next(slot, std::false_type());

    if constexpr (grouped) {
        static_assert(threads == listed_units * listing_threads);
        const int entry = threadIdx.x / listing_threads;
        const int unit = blockIdx.x + entry * gridDim.x;
        if (unit < units)
            list_unit<swiglu>(launch, unit, threadIdx.x % listing_threads, listed[entry]);
    }
    if (!grouped || launch.choice_is_older) wait_for_previous_kernel();
    let_next_kernel_start();
    if constexpr (grouped) __syncthreads();

    // ---- the computing side
    const UnpackConstants constants;
    int segment = 0, parity = 0, slot = 0, phase = 0;
    [[maybe_unused]] int entry = 0;
    const int first_row = blockIdx.y * 8 * n_tiles;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        int unit_of_matrix = unit, rows = launch.rows;
        [[maybe_unused]] const ListedUnit& own = listed[grouped ? entry++ % listed_units : 0];
        if constexpr (grouped) {
            unit_of_matrix = group_unit(launch, unit).unit;
            rows = own.count;
            // Where the list ends, one warp reads on; this unit's barrier publishes the entry.
            const int ahead = entry - 1 + listed_ahead;
            const int unit_ahead = unit + listed_ahead * static_cast<int>(gridDim.x);
            if (ahead >= listed_units && unit_ahead < units && warp == (entry & (warps - 1)) &&
                lane < listing_threads)
                list_unit<swiglu>(launch, unit_ahead, lane, listed[ahead % listed_units]);
        } else {
            segment = segment_of(launch, segment, unit);
        }
        const FewRowSegment& s = launch.segments[segment];
        float* const buffer = sums + parity * warps * warp_sums;
        if (launch.sum_buffers == 1) __syncthreads();
        parity = parity + 1 == launch.sum_buffers ? 0 : parity + 1;

#pragma unroll 1
        for (int in_turn = 0; in_turn < serial; ++in_turn) {
            const int first_tile = ((unit_of_matrix - s.first_unit) * groups + group) * out_tiles +
                                   in_turn * m_tiles / matrices;
            const int input = first_tile / s.tiles_per_input * s.input_step;
            const __nv_bfloat16* x_at[n_tiles];
#pragma unroll
            for (int t = 0; t < n_tiles; ++t) {
                // Rows past the end repeat the last one; their results are not stored.
                const int row =
                    grouped ? own.x_row[lane / 4] : min(first_row + t * 8 + lane / 4, rows - 1);
                x_at[t] = s.x + static_cast<std::size_t>(row) * s.x_stride + input +
                          first_block * block_columns + (lane % 4) * 8;
            }
            const auto load_x = [&](int step, uint4(&x)[n_tiles]) {
#pragma unroll
                for (int t = 0; t < n_tiles; ++t) {
                    x[t] = load_16(x_at[t] + step * 32);
                    if constexpr (format == WeightFormat::w4a16 && !grouped) x[t] = raised(x[t]);
                }
            };
            float sum[m_tiles][n_tiles][4] = {};
            uint4 x_next[n_tiles];
            if constexpr (n_tiles > 1) load_x(0, x_next);

#pragma unroll 1
            for (int left = block_count; left > 0; left -= stage_blocks) {
// With two tiles at a time there are registers for the inputs of all of a stage's blocks.
#pragma unroll(m_tiles == 2 ? stage_blocks : 1)
                for (int j = 0; j < stage_blocks; ++j) {
                    uint4 x[4][n_tiles];
                    if constexpr (n_tiles == 1) {
#pragma unroll
                        for (int step = 0; step < 4; ++step)
                            load_x(step, x[step]);
                    }
                    if (j == 0) ring.wait(slot, phase);
                    // This lane's place in the first tile's block.
                    const std::uint8_t* const block =
                        ring_memory + slot * slot_bytes + lane * 16 + j * block_size;
                    float block_sum[m_tiles][n_tiles][4] = {};
                    auto& target = scales_block_sums(format) ? block_sum : sum;
                    [[maybe_unused]] float bias[n_tiles][4] = {};
                    BlockCodes codes[m_tiles];
#pragma unroll
                    for (int step = 0; step < 4; ++step) {
                        if constexpr (n_tiles > 1) {
                            static_assert(n_tiles == 1 || stage_blocks == 1);
#pragma unroll
                            for (int t = 0; t < n_tiles; ++t)
                                x[step][t] = x_next[t];
                            if (step < 3 || left > 1) load_x(step + 1, x_next);
                        }
                        if constexpr (format == WeightFormat::w4a16) {
#pragma unroll
                            for (int t = 0; t < n_tiles; ++t) {
                                add_bias(bias[t], x[step][t].x, x[step][t].y);
                                add_bias(bias[t], x[step][t].z, x[step][t].w);
                            }
                        }
#pragma unroll
                        for (int m = 0; m < m_tiles; ++m) {
                            std::uint32_t a[2][4];
                            load_step<format>(block + m * stage_bytes, step, lane, constants,
                                              codes[m], a);
#pragma unroll
                            for (int t = 0; t < n_tiles; ++t)
                                multiply_add(target[m][t], a[0], x[step][t].x, x[step][t].y);
#pragma unroll
                            for (int t = 0; t < n_tiles; ++t)
                                multiply_add(target[m][t], a[1], x[step][t].z, x[step][t].w);
                        }
                    }
                    if constexpr (format == WeightFormat::w4a16) {
#pragma unroll
                        for (int m = 0; m < m_tiles; ++m)
                            add(block_sum[m], bias);
                    }
                    if constexpr (scales_block_sums(format)) {
#pragma unroll
                        for (int m = 0; m < m_tiles; ++m)
                            add_scaled(sum[m], block_sum[m],
                                       block_scales<format>(block + m * stage_bytes, lane));
                    }
#pragma unroll
                    for (int t = 0; t < n_tiles; ++t)
                        x_at[t] += block_columns;
                }
                __syncwarp();
                copy_next(slot, std::true_type());
                if (++slot == launch.depth) {
                    slot = 0;
                    phase ^= 1;
                }
            }
#pragma unroll
            for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
                for (int t = 0; t < n_tiles; ++t)
                    *reinterpret_cast<float4*>(buffer + warp * warp_sums +
                                               ((in_turn * m_tiles + m) * n_tiles + t) * 128 +
                                               lane * 4) =
                        make_float4(sum[m][t][0], sum[m][t][1], sum[m][t][2], sum[m][t][3]);
            }
        }

        // ---- the slices' sums, in order
        __syncthreads();
        constexpr int outputs = out_tiles * n_tiles * 128;
        for (int e = threadIdx.x; e < groups * outputs; e += threads) {
            const int of_group = e / outputs, inside = e % outputs;
            const int m = inside / (n_tiles * 128), t = inside / 128 % n_tiles;
            const int of_lane = inside % 128 / 4, i = inside % 4;
            const int local = (unit_of_matrix - s.first_unit) * groups + of_group;
            const int tile = local * out_tiles + m;
            const int out = tile * tile_rows + of_lane / 4 + 8 * (i / 2);
            int row = first_row + t * 8 + (of_lane % 4) * 2 + (i & 1);
            if (out >= s.n || row >= rows) continue;
            float scale = s.scale[0], other_scale = s.scale[1];
            if constexpr (grouped) {
                row = own.pair[row];
                scale = own.scale[0];
                other_scale = own.scale[1];
            }
            if constexpr (format == WeightFormat::w4a16) {
                // Codes of rows g and g + 8 stand for different multiples, and x is raised.
                constexpr float of_row[2] = {0x1p133 / raised_by, 0x1p129 / raised_by};
                scale *= of_row[i / 2];
                other_scale *= of_row[i / 2];
            }
            const float* const first = buffer + (of_group << launch.slices_log2) * warp_sums +
                                       m * (matrices - 1) * n_tiles * 128 + inside;
            const float total = sum_of_slices(launch.slices_log2, first, warp_sums) * scale;
            const std::size_t at = static_cast<std::size_t>(row) * s.y_stride + out;
            if constexpr (swiglu) {
                const float other =
                    sum_of_slices(launch.slices_log2, first + n_tiles * 128, warp_sums) *
                    other_scale;
                const float gate = fminf(total, launch.limit);
                const float up = fminf(fmaxf(other, -launch.limit), launch.limit);
                static_cast<__nv_bfloat16*>(s.y)[at] =
                    __float2bfloat16_rn(gate * sigmoid(gate) * up * launch.y_factor);
            } else if (s.y_is_bf16) {
                static_cast<__nv_bfloat16*>(s.y)[at] = __float2bfloat16_rn(total);
            } else {
                static_cast<float*>(s.y)[at] = total;
            }
        }
    }
    // Neighbouring pieces by different blocks.
    if constexpr (!grouped && n_tiles == 1)
        ask_for(launch.ahead, static_cast<int>(threadIdx.x * gridDim.x + blockIdx.x),
                threads * static_cast<int>(gridDim.x));
}

template <WeightFormat format, int n_tiles, int m_tiles, int serial, int stage_blocks, bool swiglu,
          bool grouped = false>
Status launch_kernel(FewRowLaunch& launch, const LaunchContext& context) {
    using Size = Sizes<format, n_tiles, m_tiles, stage_blocks>;
    int units = 0;
    for (int i = 0; i < launch.segment_count; ++i) {
        FewRowSegment& s = launch.segments[i];
        s.first_unit = units;
        const int per_unit = (warps >> launch.slices_log2) * m_tiles * serial / (swiglu ? 2 : 1);
        units += (s.tiles + per_unit - 1) / per_unit;
    }
    launch.units = units;
    if (units > 1)
        launch.units_reciprocal =
            static_cast<std::uint32_t>(((std::uint64_t{1} << 32) + units - 1) / units);

    constexpr int slot_bytes = stage_blocks * block_bytes(format) * m_tiles;
    const int sums_bytes = warps * m_tiles * serial * Size::tile_sums * 4;
    launch.sum_buffers = n_tiles >= 4 ? 1 : 2;
    const int ring_budget = Size::shared_budget - launch.sum_buffers * sums_bytes -
                            warps * largest_ring_depth * 8 -
                            (grouped ? listed_units * static_cast<int>(sizeof(ListedUnit)) : 0);
    launch.depth = std::min(ring_budget / (warps * slot_bytes), largest_ring_depth);
    if (launch.depth < 2)
        return Error(ErrorCode::internal, "the few-row product's ring does not fit");
    const std::size_t shared_bytes =
        warps * launch.depth * (slot_bytes + 8) + launch.sum_buffers * sums_bytes;

    const int resident = context.multiprocessors * Size::blocks_per_multiprocessor;
    const int row_groups = grouped ? 1 : (launch.rows + 8 * n_tiles - 1) / (8 * n_tiles);
    // How many groups of pairs there are is known on the device; more blocks than units only leave.
    const int most_units = grouped ? resident : std::min(units, resident);
    return cuda::launch(
        "launching the few-row product",
        few_row_kernel<format, n_tiles, m_tiles, serial, stage_blocks, swiglu, grouped>,
        {dim3(most_units, row_groups), threads, shared_bytes}, context, launch);
}

}  // namespace
}  // namespace percheron::ops::cuda
