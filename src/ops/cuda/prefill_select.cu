#include <algorithm>

#include "ops/cuda/prefill_gemm.h"
#include "ops/cuda/prefill_select.h"
#include "ops/cuda/shared_products.cuh"
#include "ops/cuda/shared_rings.cuh"
#include "ops/cuda/stored_rows.cuh"

namespace percheron::ops::cuda {
namespace {

constexpr int dim = 128, pool = 4, page_pools = 16;
constexpr int most_heads = 32, group_rows = 8;  // rows that are scored together
constexpr int queries = group_rows * most_heads;
constexpr int tile_pools = 128, depth = 4;
constexpr int group_warps = 4, group_threads = group_warps * 32;
constexpr int consumers = 2;  // groups of warps, with 64 of a tile's pools each
constexpr int threads = (1 + consumers) * group_threads;
constexpr int copying_registers = 72, scoring_registers = 216;
constexpr int query_box_bytes = queries * 128, key_box_bytes = tile_pools * 128;
constexpr int most_run_tiles = 16;  // of a block

struct Shared {
    // Two boxes of 64 columns, rows of 128 bytes with the 128-byte swizzle.
    std::uint8_t query[2 * query_box_bytes];
    std::uint8_t keys[depth][2 * key_box_bytes];
    float weights[group_rows][most_heads];  // of the heads, with both scales
    std::uint64_t full[depth], empty[depth];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Rows next to each other of one sequence, within a group.
struct SameSequence {
    int first, end;  // of the group's rows
    std::uint32_t sequence;
    int candidates;  // of its last row

    __device__ static int candidates_of(const TokenSelection& op, std::uint32_t sequence, int row) {
        const DeviceSequence& s = op.batch.sequences[sequence];
        return static_cast<int>(s.first_position + (op.batch.first_row + row - s.first_row) + 1) /
               pool;
    }
    __device__ static SameSequence from(const TokenSelection& op, int group_row, int first) {
        const int rows = min(op.batch.rows - group_row, group_rows);
        SameSequence same = {first, first + 1, op.batch.sequence_of_row[group_row + first], 0};
        while (same.end < rows && op.batch.sequence_of_row[group_row + same.end] == same.sequence)
            ++same.end;
        same.candidates = candidates_of(op, same.sequence, group_row + same.end - 1);
        return same;
    }
    // Pools [first, end) of the block's run that anybody wants.
    __device__ int run_end(const TokenSelection& op, int run_first, int run_pools) const {
        return candidates <= op.topk / pool ? run_first : min(run_first + run_pools, candidates);
    }
};

__device__ inline std::uint8_t* piece_of(std::uint8_t* boxes, int box_bytes, int row, int piece) {
    return boxes + piece / 8 * box_bytes + row * 128 + (piece % 8 ^ row % 8) * 16;
}

__device__ inline void load_queries(const TokenSelection& op, int group_row, Shared& shared) {
    for (int i = threadIdx.x; i < queries * 16; i += threads) {
        const int query = i / 16, piece = i % 16;
        const int row = group_row + query / most_heads, head = query % most_heads;
        *reinterpret_cast<uint4*>(piece_of(shared.query, query_box_bytes, query, piece)) =
            row < op.batch.rows && head < op.heads
                ? load_16(op.query + static_cast<std::size_t>(row) * op.query_stride + head * dim +
                          piece * 8)
                : make_uint4(0, 0, 0, 0);
    }
    constexpr float dim_scale = 0.08838834764831845f;  // 128^-1/2
    const float scale = dim_scale * rsqrtf(static_cast<float>(op.heads));
    for (int i = threadIdx.x; i < queries; i += threads) {
        const int row = group_row + i / most_heads, head = i % most_heads;
        shared.weights[i / most_heads][head] =
            row < op.batch.rows && head < op.heads
                ? op.head_weight[static_cast<std::size_t>(row) * op.head_weight_stride + head] *
                      scale
                : 0.0f;
    }
}

// A warp's 32 pools of a tile, two at a time; what lies past the last is left as it was.
template <bool is_fp8>
__device__ inline void copy_tile(const TokenSelection& op, const std::uint32_t* pages, int first,
                                 int end, std::uint8_t* keys) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int tile_row = warp * 32 + half * page_pools, base = first + tile_row;
        if (base >= end) break;
        const char* const page = static_cast<const char*>(op.pages.pooled) +
                                 pages[base / page_pools] * op.pages.pooled_page_bytes;
        if constexpr (is_fp8) {
#pragma unroll
            for (int i = 0; i < page_pools; i += 4) {
                // Eight lanes have a key of 128 codes.
                const int row = i + lane / 8, piece = lane % 8;
                const uint4 codes = load_16(page + row * dim + piece * 16);
                const std::uint32_t scale = scale_pair(load_1(page + page_pools * dim + row));
                const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
                for (int part = 0; part < 2; ++part) {
                    const uint2 low = widen_4(words[2 * part]), high = widen_4(words[2 * part + 1]);
                    *reinterpret_cast<uint4*>(
                        piece_of(keys, key_box_bytes, tile_row + row, 2 * piece + part)) =
                        make_uint4(multiply_bf16x2(low.x, scale), multiply_bf16x2(low.y, scale),
                                   multiply_bf16x2(high.x, scale), multiply_bf16x2(high.y, scale));
                }
            }
        } else {
#pragma unroll
            for (int i = 0; i < page_pools; i += 2) {
                const int row = i + lane / 16, piece = lane % 16;
                copy_16_async(piece_of(keys, key_box_bytes, tile_row + row, piece),
                              page + row * dim * 2 + piece * 16);
            }
        }
    }
}

template <bool is_fp8>
__device__ inline void copy_keys(const TokenSelection& op, int group_row, int run_first,
                                 int run_pools, Shared& shared) {
    RingPlace<depth> place;
    std::uint32_t before = 0;
    const int rows = min(op.batch.rows - group_row, group_rows);
    for (int first = 0; first < rows;) {
        const SameSequence same = SameSequence::from(op, group_row, first);
        const int end = same.run_end(op, run_first, run_pools);
        const std::uint32_t* const pages =
            op.batch.pages + op.batch.sequences[same.sequence].first_page;
        for (int tile = run_first; tile < end; tile += tile_pools) {
            wait_for_barrier(address_of(&shared.empty[place.slot]), place.round ^ 1);
            copy_tile<is_fp8>(op, pages, tile, end, shared.keys[place.slot]);
            const std::uint32_t full = address_of(&shared.full[place.slot]);
            if constexpr (is_fp8) {
                arrive_with_stores(full);
            } else {
                end_copy_group();
                wait_for_copies<1>();
                if (before != 0) arrive_with_stores(before);
                before = full;
            }
            place.advance();
        }
        first = same.end;
    }
    if (before != 0) {
        wait_for_copies<0>();
        arrive_with_stores(before);
    }
}

__device__ inline float2 weights_at(const float* p) {
    return *reinterpret_cast<const float2*>(p);
}

__device__ inline void score_keys(const TokenSelection& op, int group_row, int run_first,
                                  int run_pools, Shared& shared) {
    const int group = threadIdx.x / group_threads - 1, thread = threadIdx.x % group_threads;
    const int warp = thread / 32, lane = thread % 32, g = lane / 4, q = lane % 4;
    const std::uint64_t query = swizzled_rows(address_of(shared.query));
    RingPlace<depth> place;
    const int rows = min(op.batch.rows - group_row, group_rows);
    for (int first = 0; first < rows;) {
        const SameSequence same = SameSequence::from(op, group_row, first);
        const int end = same.run_end(op, run_first, run_pools);
        // A lane ends up with rows 2 q and 2 q + 1.
        int candidates[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = 2 * q + r;
            candidates[r] = row >= same.first && row < same.end
                                ? SameSequence::candidates_of(op, same.sequence, group_row + row)
                                : 0;
            if (candidates[r] <= op.topk / pool) candidates[r] = 0;  // takes all, scored or not
        }
        for (int tile = run_first; tile < end; tile += tile_pools) {
            wait_for_barrier(address_of(&shared.full[place.slot]), place.round);
            const std::uint64_t keys =
                swizzled_rows(address_of(shared.keys[place.slot] + group * 64 * 128));
            float dots[queries / 2];
            begin_products();
#pragma unroll
            for (int step = 0; step < dim / 16; ++step)
                multiply_shared_256(dots, keys + step / 4 * (key_box_bytes / 16) + step % 4 * 2,
                                    query + step / 4 * (query_box_bytes / 16) + step % 4 * 2,
                                    step > 0);
            end_products();
            wait_for_products<0>();
            keep(dots);
            if (lane == 0) arrive_at(address_of(&shared.empty[place.slot]));
            place.advance();

            // This lane's heads of every row, for pools g and g + 8.
            float sum[2][group_rows];
#pragma unroll
            for (int row = 0; row < group_rows; ++row) {
                sum[0][row] = sum[1][row] = 0.0f;
#pragma unroll
                for (int t = 0; t < 4; ++t) {
                    const float2 weight = weights_at(&shared.weights[row][8 * t + 2 * q]);
                    const float* const d = dots + 4 * (4 * row + t);
                    sum[0][row] = fmaf(weight.x, fmaxf(d[0], 0.0f), sum[0][row]);
                    sum[0][row] = fmaf(weight.y, fmaxf(d[1], 0.0f), sum[0][row]);
                    sum[1][row] = fmaf(weight.x, fmaxf(d[2], 0.0f), sum[1][row]);
                    sum[1][row] = fmaf(weight.y, fmaxf(d[3], 0.0f), sum[1][row]);
                }
            }
            // Four lanes add theirs up, each for two rows.
            const bool upper = q & 2, odd = q & 1;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float of_half[4], own[2];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float low = sum[half][i], high = sum[half][i + 4];
                    of_half[i] =
                        (upper ? high : low) + __shfl_xor_sync(full_warp, upper ? low : high, 2);
                }
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float low = of_half[i], high = of_half[i + 2];
                    own[i] = (odd ? high : low) + __shfl_xor_sync(full_warp, odd ? low : high, 1);
                }
                const int at = tile + group * 64 + warp * 16 + g + 8 * half;
                float* const to =
                    op.scores + static_cast<std::size_t>(group_row + 2 * q) * op.most_pools + at;
                if (at < min(candidates[0], end)) to[0] = own[0];
                if (at < min(candidates[1], end)) to[op.most_pools] = own[1];
            }
        }
        first = same.end;
    }
}

#endif

template <bool is_fp8>
__global__ void __launch_bounds__(threads, 1)
    score_kernel([[maybe_unused]] const __grid_constant__ TokenSelection op,
                 [[maybe_unused]] int run_pools) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ std::uint8_t unaligned[];
    Shared& shared = *reinterpret_cast<Shared*>(
        unaligned + (1024 - __cvta_generic_to_shared(unaligned) % 1024) % 1024);
    if (threadIdx.x == 0) {
        for (int i = 0; i < depth; ++i) {
            begin_barrier(address_of(&shared.full[i]), group_warps);
            begin_barrier(address_of(&shared.empty[i]), consumers * group_warps);
        }
        show_barriers();
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int group_row = blockIdx.y * group_rows, run_first = blockIdx.x * run_pools;
    // The last row of a group sees the most, unless it is another sequence's.
    bool wanted = false;
    const int rows = min(op.batch.rows - group_row, group_rows);
    for (int first = 0; first < rows;) {
        const SameSequence same = SameSequence::from(op, group_row, first);
        wanted |= same.run_end(op, run_first, run_pools) > run_first;
        first = same.end;
    }
    if (!wanted) return;
    load_queries(op, group_row, shared);
    show_stores();
    __syncthreads();
    if (threadIdx.x < group_threads) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(copying_registers));
        copy_keys<is_fp8>(op, group_row, run_first, run_pools, shared);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(scoring_registers));
        score_keys(op, group_row, run_first, run_pools, shared);
    }
#endif
}

}  // namespace

Status select_prompt_tokens(const TokenSelection& op, const LaunchContext& context) {
    PERCHERON_TRY(check_selection(op));
    if (!has_prefill_kernels())
        return Error(ErrorCode::unsupported, "a prompt's index scores need compute capability 9.0");
    if (op.most_pools > op.topk / pool) {
        // As long a run as leaves every multiprocessor something to do.
        const int groups = (op.batch.rows + group_rows - 1) / group_rows;
        const int tiles = (op.most_pools + tile_pools - 1) / tile_pools;
        const int run_tiles =
            std::clamp(groups * tiles / (4 * context.multiprocessors), 1, most_run_tiles);
        const bool is_fp8 = op.pages.pooled_dtype == DType::f8_e4m3;
        PERCHERON_TRY(launch("launching a prompt's index scores",
                             is_fp8 ? score_kernel<true> : score_kernel<false>,
                             {dim3(static_cast<unsigned>((tiles + run_tiles - 1) / run_tiles),
                                   static_cast<unsigned>(groups)),
                              threads, sizeof(Shared) + 1024},
                             context, op, run_tiles * tile_pools));
    }
    return take_best_pools(op, context);
}

}  // namespace percheron::ops::cuda
