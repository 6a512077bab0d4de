#include <algorithm>

#include "ops/batch.h"
#include "ops/cuda/latent_attention.h"
#include "ops/cuda/prefill_attention.h"
#include "ops/cuda/prefill_gemm.h"
#include "ops/cuda/prefill_launch.h"
#include "ops/cuda/shared_products.cuh"
#include "ops/cuda/shared_rings.cuh"
#include "ops/cuda/stored_rows.cuh"

namespace percheron::ops::cuda {
namespace {

constexpr int latent = attention_latent;
constexpr int tile_heads = 64;
constexpr int chunk_tokens = 48, depth = 3;
constexpr int group_warps = 4, group_threads = group_warps * 32;
constexpr int threads = 4 * group_threads;
constexpr int copying_registers = 80, scoring_registers = 96, reading_registers = 168;
constexpr int boxes = latent / 64;  // of 64 columns
constexpr int query_box_bytes = tile_heads * 128;
constexpr int chunk_box_bytes = chunk_tokens * 128;
constexpr int warp_tokens = chunk_tokens / group_warps;
constexpr int score_tiles = chunk_tokens / 8;

struct Shared {
    // Boxes of 128-byte rows with the 128-byte swizzle.
    std::uint8_t query[boxes * query_box_bytes];
    std::uint8_t chunks[depth][boxes * chunk_box_bytes];
    std::uint8_t weights[2][tile_heads * 128];
    float keep[2][tile_heads];     // what the chunk leaves of what was read before
    float inverse[2][tile_heads];  // of the weights' sum, with a row's last chunk
    std::uint64_t query_full, query_empty;
    std::uint64_t full[depth], empty[depth];
    std::uint64_t weights_full[2], weights_empty[2];
};

// What a launch hands to the kernel.
struct AttentionLaunch {
    CUtensorMap query;  // [rows * heads][512], boxes of 64 columns and 64 rows
    PromptAttention op;
    int head_tiles;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A row's heads, 64 of them.
struct Work {
    int row, first_head, chunks, count;

    __device__ static Work at(const AttentionLaunch& launch, int index) {
        Work work;
        work.row = index / launch.head_tiles;
        work.first_head = (index - work.row * launch.head_tiles) * tile_heads;
        work.count = static_cast<int>(launch.op.counts[work.row]);
        work.chunks = (work.count + chunk_tokens - 1) / chunk_tokens;
        return work;
    }
};

// Where one token's latent lies.
struct TokenPlace {
    std::size_t at;
    std::uint32_t scale;  // of fp8, as a pair
};

// A lane's token of a warp's twelve.
template <bool is_fp8>
__device__ inline TokenPlace place_of_token(const PromptAttention& op, const Work& work,
                                            int token) {
    TokenPlace place = {0, 0};
    if (token >= work.count) return place;
    const std::uint32_t position =
        op.positions[static_cast<std::size_t>(work.row) * op.positions_stride + token];
    const DeviceSequence& sequence = op.batch.sequences[op.batch.sequence_of_row[work.row]];
    const std::size_t page =
        op.batch.pages[sequence.first_page + position / page_tokens] * op.pages.latent_page_bytes;
    place.at = page + static_cast<std::size_t>(position % page_tokens) * latent * (is_fp8 ? 1 : 2);
    if constexpr (is_fp8)
        place.scale = scale_pair(load_1(static_cast<const char*>(op.pages.latents) + page +
                                        page_tokens * latent + position % page_tokens));
    return place;
}

// The 16 bytes `piece` of a token's 1024.
__device__ inline std::uint8_t* piece_of(std::uint8_t* chunk, int token, int piece) {
    return chunk + piece / 8 * chunk_box_bytes + token * 128 + (piece % 8 ^ token % 8) * 16;
}

// A warp's twelve tokens of a chunk; past the last they are zero.
template <bool is_fp8>
__device__ inline void gather(const PromptAttention& op, TokenPlace place, int count,
                              std::uint8_t* chunk) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const char* const latents = static_cast<const char*>(op.pages.latents);
    constexpr int together = is_fp8 ? 4 : 1;
#pragma unroll
    for (int base = 0; base < warp_tokens; base += together) {
        uint4 codes[together];
#pragma unroll
        for (int i = 0; i < together; ++i) {
            const int token = warp * warp_tokens + base + i;
            const char* const from = latents + __shfl_sync(full_warp, place.at, base + i);
            if constexpr (is_fp8) {
                codes[i] = token < count ? load_16(from + lane * 16) : make_uint4(0, 0, 0, 0);
            } else if (token < count) {
                copy_16_async(piece_of(chunk, token, lane), from + lane * 16);
                copy_16_async(piece_of(chunk, token, lane + 32), from + 512 + lane * 16);
            } else {
                const uint4 zeros = make_uint4(0, 0, 0, 0);
                *reinterpret_cast<uint4*>(piece_of(chunk, token, lane)) = zeros;
                *reinterpret_cast<uint4*>(piece_of(chunk, token, lane + 32)) = zeros;
            }
        }
        if constexpr (is_fp8) {
#pragma unroll
            for (int i = 0; i < together; ++i) {
                const int token = warp * warp_tokens + base + i;
                const std::uint32_t scale = __shfl_sync(full_warp, place.scale, base + i);
                const std::uint32_t words[4] = {codes[i].x, codes[i].y, codes[i].z, codes[i].w};
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const uint2 low = widen_4(words[2 * half]), high = widen_4(words[2 * half + 1]);
                    *reinterpret_cast<uint4*>(piece_of(chunk, token, 2 * lane + half)) =
                        token < count
                            ? make_uint4(
                                  multiply_bf16x2(low.x, scale), multiply_bf16x2(low.y, scale),
                                  multiply_bf16x2(high.x, scale), multiply_bf16x2(high.y, scale))
                            : make_uint4(0, 0, 0, 0);
                }
            }
        }
    }
}

__device__ inline void copy_queries(const AttentionLaunch& launch, Shared& shared, const Work& work,
                                    int round) {
    wait_for_barrier(address_of(&shared.query_empty), round ^ 1);
    const std::uint32_t full = address_of(&shared.query_full);
    expect_copies(full, sizeof shared.query);
    for (int box = 0; box < boxes; ++box)
        copy_rows_box(address_of(shared.query + box * query_box_bytes), launch.query, box * 64,
                      work.row * launch.op.heads + work.first_head, full);
}

template <bool is_fp8>
__device__ inline void copy_latents(const AttentionLaunch& launch, Shared& shared, int works) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    RingPlace<depth> place;
    std::uint32_t before = 0;  // the barrier of the chunk whose copies may be under way
    int round = 0;
    for (int index = blockIdx.x; index < works; index += gridDim.x, round ^= 1) {
        const Work work = Work::at(launch, index);
        const auto own_token = [&](int chunk) {
            return place_of_token<is_fp8>(
                launch.op, work,
                lane < warp_tokens ? chunk * chunk_tokens + warp * warp_tokens + lane : work.count);
        };
        TokenPlace next = own_token(0);
        for (int chunk = 0; chunk < work.chunks; ++chunk) {
            const TokenPlace own = next;
            next = own_token(chunk + 1);
            wait_for_barrier(address_of(&shared.empty[place.slot]), place.round ^ 1);
            gather<is_fp8>(launch.op, own, work.count - chunk * chunk_tokens,
                           shared.chunks[place.slot]);
            const std::uint32_t full = address_of(&shared.full[place.slot]);
            if constexpr (is_fp8) {
                arrive_with_stores(full);
            } else {
                end_copy_group();
                wait_for_copies<1>();
                if (before != 0) arrive_with_stores(before);
                before = full;
            }
            // Behind the last chunk of the work before, without which its queries stay in use.
            if (chunk == 0 && threadIdx.x == 0) copy_queries(launch, shared, work, round);
            __syncwarp();
            place.advance();
        }
    }
    if (before != 0) {
        wait_for_copies<0>();
        arrive_with_stores(before);
    }
}

__device__ inline float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float most_of_quad(float x) {
    x = fmaxf(x, __shfl_xor_sync(full_warp, x, 1));
    return fmaxf(x, __shfl_xor_sync(full_warp, x, 2));
}
__device__ inline float sum_of_quad(float x) {
    x += __shfl_xor_sync(full_warp, x, 1);
    return x + __shfl_xor_sync(full_warp, x, 2);
}

__device__ inline void make_weights(const AttentionLaunch& launch, Shared& shared, int works) {
    const int thread = threadIdx.x % group_threads, warp = thread / 32, lane = thread % 32;
    const int g = lane / 4, q = lane % 4;
    const float scale = launch.op.scale * 1.4426950408889634f;  // exponents of two
    const std::uint64_t query = swizzled_rows(address_of(shared.query));
    RingPlace<depth> place;
    RingPlace<2> out;
    int round = 0;
    for (int index = blockIdx.x; index < works; index += gridDim.x, round ^= 1) {
        const Work work = Work::at(launch, index);
        // Of heads warp * 16 + g and 8 more.
        float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
        wait_for_barrier(address_of(&shared.query_full), round);
        for (int chunk = 0; chunk < work.chunks; ++chunk) {
            wait_for_barrier(address_of(&shared.full[place.slot]), place.round);
            const std::uint64_t tokens = swizzled_rows(address_of(shared.chunks[place.slot]));
            float score[4 * score_tiles];
            begin_products();
#pragma unroll
            for (int step = 0; step < latent / 16; ++step)
                multiply_shared_48(score, query + step / 4 * (query_box_bytes / 16) + step % 4 * 2,
                                   tokens + step / 4 * (chunk_box_bytes / 16) + step % 4 * 2,
                                   step > 0);
            end_products();
            wait_for_products<0>();
            keep(score);
            const bool last = chunk + 1 == work.chunks;
            if (last) {
                if (lane == 0) arrive_at(address_of(&shared.query_empty));
                const int here = work.count - chunk * chunk_tokens;
#pragma unroll
                for (int i = 0; i < 4 * score_tiles; ++i)
                    if (i / 4 * 8 + 2 * q + i % 2 >= here) score[i] = -INFINITY;
            }
            float left[2];
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float highest = -INFINITY;
#pragma unroll
                for (int t = 0; t < score_tiles; ++t)
                    highest = fmaxf(highest, fmaxf(score[4 * t + 2 * r], score[4 * t + 2 * r + 1]));
                highest = fmaxf(most[r], most_of_quad(highest) * scale);
                left[r] = exp2_of(most[r] - highest);  // 0 of the first chunk
                most[r] = highest;
                sum[r] *= left[r];
            }
            std::uint32_t weight[2 * score_tiles];  // pairs
#pragma unroll
            for (int i = 0; i < 2 * score_tiles; ++i) {
                const float reached = most[i % 2];
                const __nv_bfloat162 pair =
                    __floats2bfloat162_rn(exp2_of(fmaf(score[2 * i], scale, -reached)),
                                          exp2_of(fmaf(score[2 * i + 1], scale, -reached)));
                sum[i % 2] += __low2float(pair) + __high2float(pair);
                weight[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
            }
            wait_for_barrier(address_of(&shared.weights_empty[out.slot]), out.round ^ 1);
            // Rows of 128 bytes, of which the chunk's tokens take 96.
            const int row = warp * 16 + lane % 16;
#pragma unroll
            for (int t = 0; t < score_tiles; t += 2) {
                const std::uint32_t to = address_of(shared.weights[out.slot] + row * 128 +
                                                    ((t + lane / 16) ^ row % 8) * 16);
                asm volatile(
                    "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                    "r"(weight[2 * t]), "r"(weight[2 * t + 1]), "r"(weight[2 * t + 2]),
                    "r"(weight[2 * t + 3])
                    : "memory");
            }
            if (q == 0) {
                shared.keep[out.slot][warp * 16 + g] = left[0];
                shared.keep[out.slot][warp * 16 + g + 8] = left[1];
            }
            if (last) {
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const float all = sum_of_quad(sum[r]);
                    if (q == 0) shared.inverse[out.slot][warp * 16 + g + 8 * r] = 1.0f / all;
                }
            }
            arrive_with_stores(address_of(&shared.weights_full[out.slot]));
            place.advance();
            out.advance();
        }
    }
}

// `half` of the latents' columns.
__device__ inline void read_latents(const AttentionLaunch& launch, Shared& shared, int works,
                                    int half) {
    const int thread = threadIdx.x % group_threads, warp = thread / 32, lane = thread % 32;
    const int g = lane / 4, q = lane % 4, head = warp * 16 + g;
    constexpr int half_bytes = boxes / 2 * chunk_box_bytes;
    RingPlace<depth> place;
    RingPlace<2> in;
    for (int index = blockIdx.x; index < works; index += gridDim.x) {
        const Work work = Work::at(launch, index);
        float read[2][latent / 8];  // of 128 columns each
        float inverse[2] = {0.0f, 0.0f};
        for (int chunk = 0; chunk < work.chunks; ++chunk) {
            wait_for_barrier(address_of(&shared.weights_full[in.slot]), in.round);
            const float left[2] = {shared.keep[in.slot][head], shared.keep[in.slot][head + 8]};
            if (chunk + 1 == work.chunks) {
                inverse[0] = shared.inverse[in.slot][head];
                inverse[1] = shared.inverse[in.slot][head + 8];
            }
            // Where no maximum has changed, as in most chunks, all are 1.
            if (chunk > 0 && __any_sync(full_warp, left[0] != 1.0f || left[1] != 1.0f)) {
#pragma unroll
                for (int i = 0; i < latent / 8; ++i) {
                    read[0][i] *= left[i / 2 % 2];
                    read[1][i] *= left[i / 2 % 2];
                }
            }
            const std::uint64_t weights = swizzled_rows(address_of(shared.weights[in.slot]));
            const std::uint64_t tokens = swizzled_columns(
                address_of(shared.chunks[place.slot] + half * half_bytes), chunk_box_bytes);
            begin_products();
#pragma unroll
            for (int step = 0; step < chunk_tokens / 16; ++step) {
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    multiply_shared_columns_128(
                        read[i], weights + step * 2,
                        tokens + (step * 2048 + i * 2 * chunk_box_bytes) / 16,
                        chunk > 0 || step > 0);
            }
            end_products();
            wait_for_products<0>();
            keep(read[0]);
            keep(read[1]);
            if (lane == 0) {
                arrive_at(address_of(&shared.weights_empty[in.slot]));
                arrive_at(address_of(&shared.empty[place.slot]));
            }
            place.advance();
            in.advance();
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int own = work.first_head + head + 8 * r;
            if (own >= launch.op.heads) continue;
            __nv_bfloat16* const to =
                launch.op.read +
                (static_cast<std::size_t>(work.row) * launch.op.heads + own) * latent +
                half * (latent / 2) + q * 8;
            // A lane has pairs 2 q of every 8 of 32 columns: in their order they are neighbours.
#pragma unroll
            for (int block = 0; block < latent / 2 / 32; ++block) {
                __nv_bfloat162 out[4];
#pragma unroll
                for (int pair = 0; pair < 4; ++pair) {
                    const float* const from = read[block / 4] + 4 * (block % 4 * 4 + pair) + 2 * r;
                    out[pair] = __floats2bfloat162_rn(from[0] * inverse[r], from[1] * inverse[r]);
                }
                *reinterpret_cast<uint4*>(to + block * 32) = *reinterpret_cast<const uint4*>(out);
            }
        }
    }
}

#endif

template <bool is_fp8>
__global__ void __launch_bounds__(threads, 1)
    attention_kernel([[maybe_unused]] const __grid_constant__ AttentionLaunch launch) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ std::uint8_t unaligned[];
    Shared& shared = *reinterpret_cast<Shared*>(
        unaligned + (1024 - __cvta_generic_to_shared(unaligned) % 1024) % 1024);
    if (threadIdx.x == 0) {
        begin_barrier(address_of(&shared.query_full), 1);
        begin_barrier(address_of(&shared.query_empty), group_warps);
        for (int i = 0; i < depth; ++i) {
            begin_barrier(address_of(&shared.full[i]), group_warps);
            begin_barrier(address_of(&shared.empty[i]), 2 * group_warps);
        }
        for (int i = 0; i < 2; ++i) {
            begin_barrier(address_of(&shared.weights_full[i]), group_warps);
            begin_barrier(address_of(&shared.weights_empty[i]), 2 * group_warps);
        }
        show_barriers();
    }
    __syncthreads();
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int works = launch.op.batch.rows * launch.head_tiles;
    const int group = threadIdx.x / group_threads;
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(copying_registers));
        copy_latents<is_fp8>(launch, shared, works);
    } else if (group == 1) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(scoring_registers));
        make_weights(launch, shared, works);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(reading_registers));
        read_latents(launch, shared, works, group - 2);
    }
#endif
}

}  // namespace

Status prompt_attention(const PromptAttention& op, const LaunchContext& context) {
    const bool is_fp8 = op.pages.latent_dtype == DType::f8_e4m3;
    if (op.pages.latent_dtype != DType::bf16 && !is_fp8)
        return Error(ErrorCode::unsupported, "CUDA attention reads bf16 or fp8 latents");
    if (!has_prefill_kernels())
        return Error(ErrorCode::unsupported, "a prompt's attention needs compute capability 9.0");
    AttentionLaunch launch = {};
    launch.op = op;
    launch.head_tiles = (op.heads + tile_heads - 1) / tile_heads;
    PERCHERON_TRY(describe_rows(launch.query, op.absorbed, op.batch.rows * op.heads, latent, latent,
                                tile_heads));
    const int works = op.batch.rows * launch.head_tiles;
    return cuda::launch("launching a prompt's attention",
                        is_fp8 ? attention_kernel<true> : attention_kernel<false>,
                        {dim3(static_cast<unsigned>(std::min(works, context.multiprocessors))),
                         threads, sizeof(Shared) + 1024},
                        context, launch);
}

}  // namespace percheron::ops::cuda
