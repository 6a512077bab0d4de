#include <type_traits>

#include "ops/cuda/device.cuh"
#include "ops/cuda/latent_attention.h"
#include "ops/cuda/stored_rows.cuh"

namespace percheron::ops::cuda {
namespace {

constexpr int latent = attention_latent;
constexpr int split_tokens = 256;
constexpr int chunk_tokens = 64;
constexpr int warps = 8;
constexpr int threads = warps * 32;
// Rows 16 bytes longer than a multiple of 128: the eight rows of a matrix load fall into different
// banks.
constexpr int row_elements = latent + 8;
constexpr int weight_elements = chunk_tokens + 8;
constexpr int split_floats = latent + 4;  // of a head: the read, its maximum, its sum, padding

// A block has 16 heads, or 32 where rows are many: every latent is then fetched by half as many.  A
// head's numbers are the same either way.
constexpr int most_rows_of_small_blocks = 4;

template <int head_tiles>
struct Shared {
    static constexpr int block_heads = 16 * head_tiles;
    __nv_bfloat16 query[block_heads][row_elements];
    __nv_bfloat16 latents[2][chunk_tokens][row_elements];
    float scores[2][block_heads][chunk_tokens + 4];  // of either half of the columns
    __nv_bfloat16 weights[block_heads][weight_elements];
    float rescale[block_heads];
    std::size_t from[split_tokens];      // where the selected tokens' latents lie, in bytes
    std::uint32_t scales[split_tokens];  // of fp8: their rows' scales, as pairs
};

__device__ float* partial_of(const SelectedAttention& op, int row, int split, int head) {
    const int splits = (op.most_tokens + split_tokens - 1) / split_tokens;
    return op.partial +
           ((static_cast<std::size_t>(row) * splits + split) * op.heads + head) * split_floats;
}

// Of a chunk's tokens, every eighth is one warp's.  Gathers them into shared memory; tokens past
// the last are zero.  Codes of fp8 go to the second half of the place that their values will have.
template <bool is_fp8>
__device__ void gather(const void* latents, const std::size_t* from, int count,
                       __nv_bfloat16 (*to)[row_elements]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int token = warp; token < chunk_tokens; token += warps) {
        if (token < count) {
            const char* const row = static_cast<const char*>(latents) + from[token];
            if constexpr (is_fp8) {
                copy_16_async(to[token] + 256 + lane * 8, row + lane * 16);
            } else {
                copy_16_async(to[token] + lane * 8, row + lane * 16);
                copy_16_async(to[token] + 256 + lane * 8, row + 512 + lane * 16);
            }
        } else {
            *reinterpret_cast<uint4*>(to[token] + lane * 8) = make_uint4(0, 0, 0, 0);
            *reinterpret_cast<uint4*>(to[token] + 256 + lane * 8) = make_uint4(0, 0, 0, 0);
        }
    }
}

// The same warp's codes, which have come, become values.
__device__ void widen(const std::uint32_t* scales, int count, __nv_bfloat16 (*to)[row_elements]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < chunk_tokens / warps; ++i) {
        const int token = i * warps + warp;
        if (token >= count) break;
        const uint4 codes = *reinterpret_cast<const uint4*>(to[token] + 256 + lane * 8);
        const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
        std::uint32_t out[8];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const uint2 pairs = widen_4(words[w]);
            out[2 * w] = multiply_bf16x2(pairs.x, scales[token]);
            out[2 * w + 1] = multiply_bf16x2(pairs.y, scales[token]);
        }
        __syncwarp();  // all lanes have their codes
        uint4* const row = reinterpret_cast<uint4*>(to[token] + lane * 16);
        row[0] = make_uint4(out[0], out[1], out[2], out[3]);
        row[1] = make_uint4(out[4], out[5], out[6], out[7]);
    }
}

template <bool is_fp8, int head_tiles>
__global__ void __launch_bounds__(threads)
    split_kernel(const __grid_constant__ SelectedAttention op) {
    constexpr int block_heads = 16 * head_tiles;
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<head_tiles>*>(memory);
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int first_head = blockIdx.x * block_heads, split = blockIdx.y, row = blockIdx.z;
    const int heads = min(op.heads - first_head, block_heads);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    // What does not depend on one another is asked for together.
    static_assert(threads == split_tokens);
    const int total = static_cast<int>(op.counts[row]);
    const std::uint32_t position =
        op.positions[static_cast<std::size_t>(row) * op.positions_stride +
                     min(split * split_tokens + static_cast<int>(threadIdx.x),
                         op.positions_stride - 1)];
    const std::uint32_t sequence = op.batch.sequence_of_row[row];
    const int count = min(total - split * split_tokens, split_tokens);
    if (count <= 0) return;
    for (int i = threadIdx.x; i < block_heads * (latent / 8); i += threads) {
        const int head = i / (latent / 8), part = i % (latent / 8);
        __nv_bfloat16* const to = shared.query[head] + part * 8;
        if (head < heads)
            copy_16_async(
                to, op.absorbed +
                        (static_cast<std::size_t>(row) * op.heads + first_head + head) * latent +
                        part * 8);
        else
            *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    }
    end_copy_group();
    std::uint32_t scale = 0;
    if (threadIdx.x < count) {
        const std::uint32_t first_page = op.batch.sequences[sequence].first_page;
        const std::size_t page =
            op.batch.pages[first_page + position / 64] * op.pages.latent_page_bytes;
        shared.from[threadIdx.x] =
            page + static_cast<std::size_t>(position % 64) * latent * (is_fp8 ? 1 : 2);
        if constexpr (is_fp8)
            scale = load_1(static_cast<const char*>(op.pages.latents) + page + 64 * latent +
                           position % 64);
    }

    const int chunks = (count + chunk_tokens - 1) / chunk_tokens;
    const auto fetch = [&](int chunk) {
        if (chunk < chunks)
            gather<is_fp8>(op.pages.latents, shared.from + chunk * chunk_tokens,
                           min(count - chunk * chunk_tokens, chunk_tokens),
                           shared.latents[chunk % 2]);
        end_copy_group();
    };
    __syncthreads();
    fetch(0);
    fetch(1);
    if constexpr (is_fp8) shared.scales[threadIdx.x] = scale_pair(scale);
    wait_for_copies<2>();  // the queries
    __syncthreads();

    // Scores: a warp has 16 heads, a part of a chunk's tokens and half of the columns; its queries
    // stay in registers.
    constexpr int warp_tokens = 16 * head_tiles;
    const int head_tile = warp % head_tiles, column_half = warp / 4;
    const int first_token = warp % 4 / head_tiles * warp_tokens;
    constexpr int score_steps = latent / 2 / 16;
    std::uint32_t query[score_steps][4];
    {
        const __nv_bfloat16* const from =
            shared.query[head_tile * 16 + lane % 8 + 8 * (lane / 8 % 2)] +
            column_half * (latent / 2) + 8 * (lane / 16);
#pragma unroll
        for (int step = 0; step < score_steps; ++step)
            load_matrices(query[step], from + step * 16);
    }
    // The softmax of heads own_heads warp .. is this warp's.
    constexpr int own_heads = block_heads / warps;
    float maximum[own_heads], sum[own_heads];
#pragma unroll
    for (int own = 0; own < own_heads; ++own) {
        maximum[own] = -INFINITY;
        sum[own] = 0.0f;
    }
    float read[head_tiles][latent / warps / 8][4] = {};
    for (int chunk = 0; chunk < chunks; ++chunk) {
        wait_for_copies<1>();
        __nv_bfloat16(*const c)[row_elements] = shared.latents[chunk % 2];
        const int here = min(count - chunk * chunk_tokens, chunk_tokens);
        if constexpr (is_fp8) widen(shared.scales + chunk * chunk_tokens, here, c);
        __syncthreads();

        float score[4][4] = {};
        const __nv_bfloat16* const b_row = c[first_token + lane % 8 + 8 * (lane / 16)] +
                                           column_half * (latent / 2) + 8 * (lane / 8 % 2);
#pragma unroll
        for (int step = 0; step < score_steps; ++step) {
#pragma unroll
            for (int t = 0; t < warp_tokens / 8; t += 2) {
                std::uint32_t b[4];
                load_matrices(b, b_row + t * 8 * row_elements + step * 16);
                multiply_add(score[t], query[step], b[0], b[1]);
                multiply_add(score[t + 1], query[step], b[2], b[3]);
            }
        }
#pragma unroll
        for (int t = 0; t < warp_tokens / 8; ++t) {
            const int token = first_token + t * 8 + 2 * q;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                shared.scores[column_half][head_tile * 16 + g + 8 * (i / 2)][token + i % 2] =
                    score[t][i];
        }
        __syncthreads();

#pragma unroll
        for (int own = 0; own < own_heads; ++own) {
            const int head = warp * own_heads + own;
            const auto scored = [&](int token) {
                return token < here
                           ? (shared.scores[0][head][token] + shared.scores[1][head][token]) *
                                 op.scale
                           : -INFINITY;
            };
            const float s0 = scored(lane), s1 = scored(lane + 32);
            float most = fmaxf(s0, s1);
#pragma unroll
            for (int offset = 16; offset > 0; offset /= 2)
                most = fmaxf(most, __shfl_xor_sync(full_warp, most, offset));
            const float reached = fmaxf(maximum[own], most);
            const float keep = expf(maximum[own] - reached);  // 0 at the first chunk
            maximum[own] = reached;
            const __nv_bfloat16 w0 = __float2bfloat16_rn(expf(s0 - reached));
            const __nv_bfloat16 w1 = __float2bfloat16_rn(expf(s1 - reached));
            shared.weights[head][lane] = w0;
            shared.weights[head][lane + 32] = w1;
            sum[own] = sum[own] * keep + warp_sum(__bfloat162float(w0) + __bfloat162float(w1));
            if (lane == 0) shared.rescale[head] = keep;
        }
        __syncthreads();

        // The read: 64 columns a warp, all heads.
#pragma unroll
        for (int tile = 0; tile < head_tiles; ++tile) {
            const float keep_low = shared.rescale[tile * 16 + g];
            const float keep_high = shared.rescale[tile * 16 + g + 8];
#pragma unroll
            for (int t = 0; t < latent / warps / 8; ++t) {
                read[tile][t][0] *= keep_low, read[tile][t][1] *= keep_low;
                read[tile][t][2] *= keep_high, read[tile][t][3] *= keep_high;
            }
        }
#pragma unroll
        for (int k = 0; k < chunk_tokens; k += 16) {
            std::uint32_t a[head_tiles][4];
#pragma unroll
            for (int tile = 0; tile < head_tiles; ++tile)
                load_matrices(a[tile], shared.weights[tile * 16 + lane % 8 + 8 * (lane / 8 % 2)] +
                                           k + 8 * (lane / 16));
#pragma unroll
            for (int t = 0; t < latent / warps / 8; t += 2) {
                std::uint32_t b[4];
                load_matrices_transposed(b, c[k + lane % 8 + 8 * (lane / 8 % 2)] +
                                                warp * (latent / warps) + t * 8 + 8 * (lane / 16));
#pragma unroll
                for (int tile = 0; tile < head_tiles; ++tile) {
                    multiply_add(read[tile][t], a[tile], b[0], b[1]);
                    multiply_add(read[tile][t + 1], a[tile], b[2], b[3]);
                }
            }
        }
        __syncthreads();
        fetch(chunk + 2);
    }

#pragma unroll
    for (int tile = 0; tile < head_tiles; ++tile) {
#pragma unroll
        for (int t = 0; t < latent / warps / 8; ++t) {
#pragma unroll
            for (int high = 0; high < 2; ++high) {
                const int head = tile * 16 + g + 8 * high;
                if (head < heads)
                    *reinterpret_cast<float2*>(partial_of(op, row, split, first_head + head) +
                                               warp * (latent / warps) + t * 8 + 2 * q) =
                        make_float2(read[tile][t][2 * high], read[tile][t][2 * high + 1]);
            }
        }
    }
#pragma unroll
    for (int own = 0; own < own_heads; ++own) {
        const int head = warp * own_heads + own;
        if (lane == 0 && head < heads) {
            float* const to = partial_of(op, row, split, first_head + head) + latent;
            to[0] = maximum[own];
            to[1] = sum[own];
        }
    }
}

// One block a row and head, four columns a thread.
__global__ void __launch_bounds__(latent / 4)
    join_kernel(const __grid_constant__ SelectedAttention op) {
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int head = blockIdx.x, row = blockIdx.y;
    const int splits = (static_cast<int>(op.counts[row]) + split_tokens - 1) / split_tokens;
    float maximum = -INFINITY, sum = 0.0f;
    float4 read = make_float4(0, 0, 0, 0);
    constexpr int ahead = 9;  // splits whose results are under way at a time: all of 2,304 tokens
    for (int base = 0; base < splits; base += ahead) {
        float4 value[ahead];
        float most[ahead], of_split[ahead];
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            const float* const part = partial_of(op, row, min(base + i, splits - 1), head);
            value[i] = *reinterpret_cast<const float4*>(part + threadIdx.x * 4);
            most[i] = part[latent];
            of_split[i] = part[latent + 1];
        }
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            if (base + i >= splits) break;
            const float reached = fmaxf(maximum, most[i]);
            const float keep = expf(maximum - reached), add = expf(most[i] - reached);
            maximum = reached;
            sum = sum * keep + of_split[i] * add;
            read.x = read.x * keep + value[i].x * add;
            read.y = read.y * keep + value[i].y * add;
            read.z = read.z * keep + value[i].z * add;
            read.w = read.w * keep + value[i].w * add;
        }
    }
    const float scale = 1.0f / sum;
    const __nv_bfloat162 out[2] = {__floats2bfloat162_rn(read.x * scale, read.y * scale),
                                   __floats2bfloat162_rn(read.z * scale, read.w * scale)};
    *reinterpret_cast<uint2*>(op.read + (static_cast<std::size_t>(row) * op.heads + head) * latent +
                              threadIdx.x * 4) = *reinterpret_cast<const uint2*>(out);
}

}  // namespace

std::size_t attention_partial_floats(int heads, int most_tokens, int rows) {
    const std::size_t splits = (most_tokens + split_tokens - 1) / split_tokens;
    return static_cast<std::size_t>(rows) * splits * heads * split_floats;
}

Status selected_attention(const SelectedAttention& op, const LaunchContext& context) {
    if (op.pages.latent_dtype != DType::bf16 && op.pages.latent_dtype != DType::f8_e4m3)
        return Error(ErrorCode::unsupported, "CUDA attention reads bf16 or fp8 latents");
    const int splits = (op.most_tokens + split_tokens - 1) / split_tokens;
    const bool fp8 = op.pages.latent_dtype != DType::bf16;
    const auto start = [&]<int head_tiles>(std::integral_constant<int, head_tiles>) {
        constexpr int block_heads = 16 * head_tiles;
        return launch("launching the attention splits",
                      fp8 ? split_kernel<true, head_tiles> : split_kernel<false, head_tiles>,
                      {dim3((op.heads + block_heads - 1) / block_heads, splits, op.batch.rows),
                       threads, sizeof(Shared<head_tiles>)},
                      context, op);
    };
    if (op.batch.rows <= most_rows_of_small_blocks)
        PERCHERON_TRY(start(std::integral_constant<int, 1>()));
    else
        PERCHERON_TRY(start(std::integral_constant<int, 2>()));
    return launch("launching the join of the attention splits", join_kernel,
                  {dim3(op.heads, op.batch.rows), latent / 4, 0}, context, op);
}

}  // namespace percheron::ops::cuda
