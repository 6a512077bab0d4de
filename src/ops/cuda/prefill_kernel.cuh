// The kernel of the prefill class's product.
//
// A block keeps one tile of results at a time, 128 outputs (64 of gate and 64 of up) by a tile of
// rows, and goes through tiles until none is left.  One warp copies stages of x and of the weights
// into a ring in shared memory; two groups of four warps read their weights from there, widen them
// in registers, and multiply them by the stage's rows of x.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ops/cuda/prefill_launch.h"
#include "ops/cuda/shared_rings.cuh"
#include "ops/cuda/weight_stream.cuh"
#include "ops/cuda/wide_products.cuh"

namespace percheron::ops::cuda {
namespace {

constexpr int group_warps = 4, group_threads = group_warps * 32;
constexpr int consumers = 2;  // groups of warps that multiply
constexpr int threads = (1 + consumers) * group_threads;
constexpr int copying_registers = 40, multiplying_registers = 232;
constexpr int group_tiles = group_warps;  // of 16 outputs, one a warp
constexpr int group_outputs = group_tiles * tile_rows;
constexpr int staged_rows = 64;                        // of y, on their way out
constexpr int staged_stride = group_outputs * 2 + 16;  // bytes; no two of 8 rows share banks
// Tiles of rows that are computed beside each other, so that they share reads of the weights.
constexpr int band = 8;

template <WeightFormat format, int tile_columns, bool swiglu>
struct PrefillSizes {
    static constexpr int stage_k = format == WeightFormat::bf16 ? 64 : 128;
    static constexpr int products = stage_k / 16;
    static constexpr int stages_a_block = block_columns / stage_k;
    // Of one tile of weights.
    static constexpr int piece_bytes = block_bytes(format) / stages_a_block;
    static constexpr int x_bytes = tile_columns * stage_k * 2;
    static constexpr int copied_bytes = x_bytes + consumers * group_tiles * piece_bytes;
    static constexpr int stage_bytes = (copied_bytes + 1023) / 1024 * 1024;
    // Gate and up meet: each group sends half of its sums to the other.
    static constexpr int exchanged = swiglu ? tile_columns / 4 : 0;  // floats a thread
    static constexpr int exchange_bytes = consumers * exchanged * group_threads * 4;
    static constexpr int staged_bytes = consumers * staged_rows * staged_stride;
    static constexpr int largest_depth = 8;
    static constexpr int barrier_bytes = 2 * largest_depth * 8;
    static constexpr int depth =
        std::min((227 * 1024 - 1024 - exchange_bytes - staged_bytes - barrier_bytes) / stage_bytes,
                 largest_depth);
    static_assert(depth >= 2);
    // The ring begins at a multiple of 1024.
    static constexpr int shared_bytes =
        1024 + depth * stage_bytes + exchange_bytes + staged_bytes + barrier_bytes;
};

// Where a tile of results lies.
struct PrefillTile {
    int segment;
    int first_tile;  // of 16 outputs
    int x_row, x_column;
    int first, rows;  // of y, or of the pairs' order; how many count
    int expert;
};

template <int tile_columns, bool swiglu>
__device__ inline PrefillTile tile_at(const PrefillLaunch& launch, int unit) {
    PrefillTile tile = {};
    int unit_row;
    if (launch.groups != nullptr) {
        const int group = unit / launch.unit_rows;
        unit_row = unit - group * launch.unit_rows;
        const ExpertGroup pairs = launch.groups[group];
        tile.first = tile.x_row = pairs.first;
        tile.rows = pairs.count;
        tile.expert = pairs.expert;
    } else {
        const int of_band = launch.unit_rows * band, number = unit / of_band;
        const int left = unit - number * of_band;
        const int wide = min(band, launch.row_tiles - number * band);
        unit_row = left / wide;
        tile.first = tile.x_row = (number * band + left - unit_row * wide) * tile_columns;
        tile.rows = min(launch.rows - tile.first, tile_columns);
    }
    while (tile.segment + 1 < launch.segment_count &&
           unit_row >= launch.segments[tile.segment + 1].first_unit_row)
        ++tile.segment;
    const PrefillSegment& s = launch.segments[tile.segment];
    tile.first_tile =
        (unit_row - s.first_unit_row) * (swiglu ? group_tiles : consumers * group_tiles);
    if (s.outputs_per_input > 0)
        tile.x_column = tile.first_tile * tile_rows / s.outputs_per_input * s.input_step;
    return tile;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ inline void copy_bytes(std::uint32_t to, const void* from, int bytes,
                                  std::uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
template <int barrier, int count>
__device__ inline void meet() {
    asm volatile("bar.sync %0, %1;" ::"n"(barrier), "n"(count) : "memory");
}
__device__ inline void meet_group(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(group_threads) : "memory");
}

// Codes of eight w4a16 weights: 128 + code is a bf16, and so is code - 8.
__device__ inline void widen_codes(std::uint32_t word, const UnpackConstants& constants,
                                   std::uint32_t (&a)[4]) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const std::uint32_t code = and_or(word >> (4 * r), constants.low, 0x43004300u);
        asm("fma.rn.bf16x2 %0, %1, %2, %3;"
            : "=r"(a[r])
            : "r"(code), "r"(0x3f803f80u), "r"(0xc308c308u));
    }
}

// The weights of a stage; `slot`: the piece's first byte plus 16 a lane.
template <WeightFormat format, int products>
__device__ inline void load_stage(const std::uint8_t* slot, int lane,
                                  const UnpackConstants& constants, std::uint32_t (&a)[products][4],
                                  float2& scale) {
    if constexpr (format == WeightFormat::w4a16) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            const uint4 word = *reinterpret_cast<const uint4*>(slot + pair * 512);
            widen_codes(word.x, constants, a[4 * pair]);
            widen_codes(word.y, constants, a[4 * pair + 1]);
            widen_codes(word.z, constants, a[4 * pair + 2]);
            widen_codes(word.w, constants, a[4 * pair + 3]);
        }
    } else {
        BlockCodes codes;
#pragma unroll
        for (int step = 0; step < products / 2; ++step) {
            std::uint32_t two[2][4];
            load_step<format>(slot, step, lane, constants, codes, two);
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                a[2 * step][r] = two[0][r];
                a[2 * step + 1][r] = two[1][r];
            }
        }
    }
    if constexpr (scales_block_sums(format)) scale = block_scales<format>(slot, lane);
}

__device__ inline std::uint32_t packed_pair(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// 64 rows of 64 outputs as bf16, by way of `staged`, this group's.  values: what a lane has of 64
// columns of results (wide_products.cuh).
__device__ inline void write_bf16(const float* values, std::uint8_t* staged,
                                  const PrefillSegment& s, int group, int first_output,
                                  std::size_t first_row, int rows) {
    const int thread = threadIdx.x % group_threads, warp = thread / 32, lane = thread % 32;
    const auto home = static_cast<std::uint32_t>(__cvta_generic_to_shared(staged));
#pragma unroll
    for (int j = 0; j < staged_rows / 8; j += 2) {
        const std::uint32_t to = home + (8 * (j + lane / 16) + lane % 8) * staged_stride +
                                 (warp * tile_rows + lane / 8 % 2 * 8) * 2;
        asm volatile(
            "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
            "r"(packed_pair(values[4 * j], values[4 * j + 1])),
            "r"(packed_pair(values[4 * j + 2], values[4 * j + 3])),
            "r"(packed_pair(values[4 * j + 4], values[4 * j + 5])),
            "r"(packed_pair(values[4 * j + 6], values[4 * j + 7]))
            : "memory");
    }
    meet_group(group);
    constexpr int pieces = group_outputs / 8;
#pragma unroll
    for (int i = thread; i < staged_rows * pieces; i += group_threads) {
        const int row = i / pieces, piece = i % pieces;
        const std::uint8_t* const from = staged + row * staged_stride;
        uint4 out;
        if (s.y_rows == PrefillRows::ordered_bf16) {
            const std::uint8_t* const first = from + piece / 4 * 64 + piece % 4 * 4;
            out = make_uint4(*reinterpret_cast<const std::uint32_t*>(first),
                             *reinterpret_cast<const std::uint32_t*>(first + 16),
                             *reinterpret_cast<const std::uint32_t*>(first + 32),
                             *reinterpret_cast<const std::uint32_t*>(first + 48));
        } else {
            out = *reinterpret_cast<const uint4*>(from + piece * 16);
        }
        const int output = first_output + piece * 8;
        if (row < rows && output < s.n)
            *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(s.y) +
                                      (first_row + row) * s.y_stride + output) = out;
    }
    meet_group(group);
}

template <WeightFormat format, int tile_columns, bool swiglu>
__device__ inline void copy_tiles(const PrefillLaunch& launch, int units, std::uint32_t ring,
                                  std::uint32_t full, std::uint32_t empty) {
    using Size = PrefillSizes<format, tile_columns, swiglu>;
    const int lane = threadIdx.x % 32;
    int slot = 0, phase = 0;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const PrefillTile tile = tile_at<tile_columns, swiglu>(launch, unit);
        const PrefillSegment& s = launch.segments[tile.segment];
        // Lanes 0 to 7 have a tile of weights each; one past the end repeats the last.
        const int matrix = swiglu ? lane / group_tiles & 1 : 0;
        const int own = tile.first_tile + (swiglu ? lane % group_tiles : lane & 7);
        const std::uint8_t* const weights = launch.groups != nullptr
                                                ? launch.expert_weights[matrix][tile.expert]
                                                : s.weight[matrix];
        const std::uint8_t* from = weights + static_cast<std::size_t>(min(own, s.tiles - 1)) *
                                                 launch.blocks * block_bytes(format);
        const int stages = launch.blocks * Size::stages_a_block;
        // Of x as many boxes of rows as the tile has rows.
        constexpr int tiles = consumers * group_tiles, column_boxes = Size::stage_k / 64;
        const int row_boxes =
            launch.groups != nullptr ? (tile.rows + grouped_box_rows - 1) / grouped_box_rows : 1;
        const int row_box = (lane - tiles) / column_boxes;
        const int column_box = (lane - tiles) - row_box * column_boxes;
        const int box_bytes = (launch.groups != nullptr ? grouped_box_rows : tile_columns) * 128;
        const int bytes = Size::copied_bytes - Size::x_bytes + row_boxes * column_boxes * box_bytes;
        for (int stage = 0; stage < stages; ++stage) {
            wait_for_barrier(empty + 8 * slot, phase ^ 1);
            const std::uint32_t to = ring + slot * Size::stage_bytes, barrier = full + 8 * slot;
            if (lane == 0) expect_copies(barrier, bytes);
            __syncwarp();
            if (lane < tiles) {
                copy_bytes(to + Size::x_bytes + lane * Size::piece_bytes, from, Size::piece_bytes,
                           barrier);
            } else if (row_box < row_boxes) {
                copy_rows_box(to + column_box * tile_columns * 128 + row_box * box_bytes, s.x,
                              tile.x_column + stage * Size::stage_k + column_box * 64,
                              tile.x_row + row_box * grouped_box_rows, barrier);
            }
            from += Size::piece_bytes;
            if (++slot == Size::depth) {
                slot = 0;
                phase ^= 1;
            }
        }
    }
}

template <WeightFormat format, int tile_columns, bool swiglu>
__device__ inline void multiply_tiles(const PrefillLaunch& launch, int units, std::uint8_t* ring,
                                      float* exchange, std::uint8_t* staged, std::uint32_t full,
                                      std::uint32_t empty) {
    using Size = PrefillSizes<format, tile_columns, swiglu>;
    constexpr int products = Size::products, sums = tile_columns / 2;
    constexpr bool by_block = scales_block_sums(format);
    const int group = threadIdx.x / group_threads - 1;
    const int thread = threadIdx.x % group_threads, warp = thread / 32, lane = thread % 32;
    staged += group * staged_rows * staged_stride;
    const UnpackConstants constants;
    const std::uint8_t* const own_piece =
        ring + Size::x_bytes + (group * group_tiles + warp) * Size::piece_bytes + lane * 16;
    const std::uint64_t x =
        swizzled_rows(static_cast<std::uint32_t>(__cvta_generic_to_shared(ring)));
    int slot = 0, phase = 0;

    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const PrefillTile tile = tile_at<tile_columns, swiglu>(launch, unit);
        const PrefillSegment& s = launch.segments[tile.segment];
        float sum[sums] = {};
        // Weights of this stage and of the next, which are widened while the products run.
        std::uint32_t a[2][products][4];
        float2 scale[2];
        int left = launch.blocks * Size::stages_a_block;
        int before = -1;  // the slot whose products may still run
        wait_for_barrier(full + 8 * slot, phase);
        load_stage<format, products>(own_piece + slot * Size::stage_bytes, lane, constants, a[0],
                                     scale[0]);
        const auto stage = [&](auto now, auto wide, auto& products_sum) {
            constexpr int here = now.value, next = 1 - here, width = wide.value;
            begin_products();
#pragma unroll
            for (int i = 0; i < products; ++i) {
                const std::uint64_t rows =
                    x + (slot * Size::stage_bytes + i / 4 * tile_columns * 128 + i % 4 * 32) / 16;
                multiply_tile<width>(products_sum, a[here][i], rows, !by_block || i > 0);
            }
            end_products();
            if constexpr (!by_block) {
                if (before >= 0) {
                    wait_for_products<1>();
                    keep(a[next]);
                    if (lane == 0) arrive_at(empty + 8 * before);
                }
            }
            const int this_slot = slot;
            if (++slot == Size::depth) {
                slot = 0;
                phase ^= 1;
            }
            --left;
            if (left > 0) {
                wait_for_barrier(full + 8 * slot, phase);
                load_stage<format, products>(own_piece + slot * Size::stage_bytes, lane, constants,
                                             a[next], scale[next]);
            }
            if constexpr (by_block) {
                wait_for_products<0>();
                keep(products_sum);
                keep(a[here]);
                if (lane == 0) arrive_at(empty + 8 * this_slot);
#pragma unroll
                for (int i = 0; i < width / 2; ++i)
                    sum[i] =
                        fmaf(products_sum[i], i % 4 < 2 ? scale[here].x : scale[here].y, sum[i]);
            } else {
                before = this_slot;
            }
        };
        const auto all_stages = [&](auto wide) {
            float products_sum[wide.value / 2] = {};  // of a block, or of all
            while (true) {
                stage(std::integral_constant<int, 0>(), wide, products_sum);
                if (left == 0) break;
                stage(std::integral_constant<int, 1>(), wide, products_sum);
                if (left == 0) break;
            }
            if constexpr (!by_block) {
                wait_for_products<0>();
                keep(products_sum);
                keep(a[0]);
                keep(a[1]);
                if (lane == 0) arrive_at(empty + 8 * before);
#pragma unroll
                for (int i = 0; i < wide.value / 2; ++i)
                    sum[i] = products_sum[i];
            }
        };
        // Experts have few rows often enough; a row's sums are the same in a product of fewer.
        if (tile_columns == 128 && tile.rows <= 32)
            all_stages(std::integral_constant<int, 32>());
        else if (tile_columns == 128 && tile.rows <= 64)
            all_stages(std::integral_constant<int, 64>());
        else
            all_stages(std::integral_constant<int, tile_columns>());

        // ---- results
        if constexpr (format == WeightFormat::nvfp4) {
            const int matrix = swiglu ? group : 0;
            const float factor = launch.groups != nullptr
                                     ? launch.expert_scales[matrix][tile.expert]
                                     : s.scale[matrix];
#pragma unroll
            for (int i = 0; i < sums; ++i)
                sum[i] *= factor;
        }
        if constexpr (swiglu) {
            // The first group finishes the first half of the rows, the second the other.
            constexpr int half = sums / 2;
            static_assert(tile_columns / 2 == staged_rows && half == Size::exchanged);
            float* const mine = exchange + group * half * group_threads + thread;
            const float* const theirs = exchange + (1 - group) * half * group_threads + thread;
            float inside[half];
#pragma unroll
            for (int i = 0; i < half; ++i) {
                mine[i * group_threads] = group == 0 ? sum[half + i] : sum[i];
                inside[i] = group == 0 ? sum[i] : sum[half + i];
            }
            meet<3, consumers * group_threads>();
#pragma unroll
            for (int i = 0; i < half; ++i) {
                const float other = theirs[i * group_threads];
                const float gate = fminf(group == 0 ? inside[i] : other, launch.limit);
                const float up =
                    fminf(fmaxf(group == 0 ? other : inside[i], -launch.limit), launch.limit);
                inside[i] = gate * sigmoid(gate) * up;
            }
            meet<3, consumers * group_threads>();
            write_bf16(inside, staged, s, group, tile.first_tile * tile_rows,
                       static_cast<std::size_t>(tile.first) + group * staged_rows,
                       tile.rows - group * staged_rows);
        } else {
            const int first_output = (tile.first_tile + group * group_tiles) * tile_rows;
            if (s.y_rows != PrefillRows::f32) {
#pragma unroll
                for (int part = 0; part < tile_columns / staged_rows; ++part)
                    write_bf16(sum + part * (staged_rows / 2), staged, s, group, first_output,
                               static_cast<std::size_t>(tile.first) + part * staged_rows,
                               tile.rows - part * staged_rows);
            } else {
                const int output = first_output + warp * tile_rows + lane / 4;
#pragma unroll
                for (int j = 0; j < tile_columns / 8; ++j) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int of_tile = 8 * j + lane % 4 * 2 + e;
                        if (of_tile >= tile.rows) continue;
                        std::size_t row = static_cast<std::size_t>(tile.first) + of_tile;
                        if (launch.groups != nullptr) row = launch.pair_order[row];
                        float* const to = static_cast<float*>(s.y) + row * s.y_stride + output;
                        if (output < s.n) to[0] = sum[4 * j + e];
                        if (output + 8 < s.n) to[8] = sum[4 * j + 2 + e];
                    }
                }
            }
        }
    }
}

#endif

template <WeightFormat format, int tile_columns, bool swiglu>
__global__ void __launch_bounds__(threads, 1)
    prefill_kernel([[maybe_unused]] const __grid_constant__ PrefillLaunch launch) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using Size = PrefillSizes<format, tile_columns, swiglu>;
    extern __shared__ std::uint8_t unaligned[];
    std::uint8_t* const ring =
        unaligned + (1024 - __cvta_generic_to_shared(unaligned) % 1024) % 1024;
    auto* const exchange = reinterpret_cast<float*>(ring + Size::depth * Size::stage_bytes);
    std::uint8_t* const staged = ring + Size::depth * Size::stage_bytes + Size::exchange_bytes;
    const auto full =
        static_cast<std::uint32_t>(__cvta_generic_to_shared(staged + Size::staged_bytes));
    const std::uint32_t empty = full + 8 * Size::largest_depth;
    if (threadIdx.x == 0) {
        for (int i = 0; i < Size::depth; ++i) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full + 8 * i));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(empty + 8 * i),
                         "n"(consumers * group_warps));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int units =
        launch.unit_rows * (launch.groups != nullptr ? *launch.group_count : launch.row_tiles);
    if (threadIdx.x < group_threads) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(copying_registers));
        if (threadIdx.x < 32)
            copy_tiles<format, tile_columns, swiglu>(
                launch, units, static_cast<std::uint32_t>(__cvta_generic_to_shared(ring)), full,
                empty);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(multiplying_registers));
        multiply_tiles<format, tile_columns, swiglu>(launch, units, ring, exchange, staged, full,
                                                     empty);
    }
#endif
}

template <WeightFormat format, int tile_columns, bool swiglu>
Status launch_kernel(const PrefillLaunch& launch, const LaunchContext& context) {
    using Size = PrefillSizes<format, tile_columns, swiglu>;
    // How many groups of pairs there are is known on the device; more blocks than tiles only leave.
    const int blocks = launch.groups != nullptr
                           ? context.multiprocessors
                           : std::min(context.multiprocessors, launch.unit_rows * launch.row_tiles);
    return cuda::launch(
        "launching the product of many rows", prefill_kernel<format, tile_columns, swiglu>,
        {dim3(static_cast<unsigned>(blocks)), threads, Size::shared_bytes}, context, launch);
}

}  // namespace

template <WeightFormat format>
Status launch_prefill(PrefillLaunch& launch, bool swiglu, const LaunchContext& context) {
    if (swiglu) return launch_kernel<format, 128, true>(launch, context);
    constexpr int dense = prefill_tile_rows<format>(false, false);
    if constexpr (dense != 128) {
        if (launch.groups == nullptr) return launch_kernel<format, dense, false>(launch, context);
    }
    return launch_kernel<format, 128, false>(launch, context);
}

}  // namespace percheron::ops::cuda
