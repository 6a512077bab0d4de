#include <type_traits>

#include "ops/cuda/device.cuh"
#include "ops/cuda/latent_attention.h"
#include "ops/cuda/stored_rows.cuh"

namespace percheron::ops::cuda {
namespace {

constexpr int latent = attention_latent;
constexpr int split_tokens = 256;
constexpr int chunk_tokens = 64;
constexpr int split_chunks = split_tokens / chunk_tokens;
constexpr int warps = 8;
constexpr int threads = warps * 32;
// Rows 16 bytes longer than a multiple of 128: the eight rows of a matrix load fall into different
// banks.
constexpr int row_elements = latent + 8;
constexpr int weight_elements = chunk_tokens + 8;
constexpr int split_floats = latent + 4;  // of a head: the read, its maximum, its sum, padding

// A block has 16 heads, or 32 where rows are many: every latent is then fetched by half as many;
// and one split of a row, or all.  A head's numbers are the same either way.
constexpr int most_rows_of_small_blocks = 4;

// Where a split's tokens lie.  A block that has all splits of its row keeps two: while one is
// attended to, the next one's places are looked up.
struct Places {
    std::size_t from[split_tokens];      // the selected tokens' latents, in bytes
    std::uint32_t scales[split_tokens];  // of fp8: their rows' scales, as pairs
};

template <int head_tiles, bool whole>
struct Shared {
    static constexpr int block_heads = 16 * head_tiles;
    __nv_bfloat16 query[block_heads][row_elements];
    __nv_bfloat16 latents[2][chunk_tokens][row_elements];
    float scores[2][block_heads][chunk_tokens + 4];  // of either half of the columns
    __nv_bfloat16 weights[block_heads][weight_elements];
    float rescale[block_heads];
    float2 joining[block_heads];  // of a split that ends: the factors of those before and its own
    Places places[whole ? 2 : 1];
};

// Two splits' results as one: `before` those in front of `own`.
struct Joining {
    float maximum, keep, add;
};
__device__ Joining joining(float maximum_before, float own_maximum) {
    const float reached = fmaxf(maximum_before, own_maximum);
    return {reached, expf(maximum_before - reached), expf(own_maximum - reached)};
}
__device__ float joined(float before, float own, float keep, float add) {
    return fmaf(before, keep, __fmul_rn(own, add));
}

// A head's softmax over a split, chunk by chunk, as its warp keeps it.
struct HeadSoftmax {
    float maximum = -INFINITY, sum = 0.0f;

    // What a chunk's scores become: the factor of what was read before, 0 at the first chunk, and
    // the weights of a lane's two tokens.
    struct Chunk {
        float keep;
        __nv_bfloat16 weights[2];
    };
    // Of a chunk's scores a lane has s0 and s1, of tokens lane and lane + 32.
    __device__ Chunk add_chunk(float s0, float s1) {
        float most = fmaxf(s0, s1);
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2)
            most = fmaxf(most, __shfl_xor_sync(full_warp, most, offset));
        const float reached = fmaxf(maximum, most);
        const float keep = expf(maximum - reached);
        maximum = reached;
        const __nv_bfloat16 w0 = __float2bfloat16_rn(expf(s0 - reached));
        const __nv_bfloat16 w1 = __float2bfloat16_rn(expf(s1 - reached));
        sum = fmaf(sum, keep, warp_sum(__bfloat162float(w0) + __bfloat162float(w1)));
        return {keep, {w0, w1}};
    }
};

// The same over all splits of a row, for a block that has them all.
struct JoinedSoftmax : HeadSoftmax {
    float joined_maximum = -INFINITY, joined_sum = 0.0f;

    // Ends a split; returns the factors of what was read in those before and in it.
    __device__ float2 end_split() {
        const Joining j = joining(joined_maximum, maximum);
        joined_maximum = j.maximum;
        joined_sum = joined(joined_sum, sum, j.keep, j.add);
        maximum = -INFINITY;
        sum = 0.0f;
        return make_float2(j.keep, j.add);
    }
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

// `whole`: a block has all splits of its row, one after the other, and joins them as it goes.
template <bool is_fp8, int head_tiles, bool whole>
__global__ void __launch_bounds__(threads)
    attention_kernel(const __grid_constant__ SelectedAttention op) {
    constexpr int block_heads = 16 * head_tiles;
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<head_tiles, whole>*>(memory);
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int first_head = blockIdx.x * block_heads, row = blockIdx.y;
    const int split = whole ? 0 : blockIdx.z;
    const int heads = min(op.heads - first_head, block_heads);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    // What does not depend on one another is asked for together.
    static_assert(threads == split_tokens);
    const std::uint32_t* const positions =
        op.positions + static_cast<std::size_t>(row) * op.positions_stride;
    const int total = static_cast<int>(op.counts[row]);
    std::uint32_t position = positions[min(split * split_tokens + static_cast<int>(threadIdx.x),
                                           op.positions_stride - 1)];
    const std::uint32_t sequence = op.batch.sequence_of_row[row];
    const int rest = total - split * split_tokens;
    const int count = whole ? rest : min(rest, split_tokens);
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
    const std::uint32_t* const pages = op.batch.pages + op.batch.sequences[sequence].first_page;
    // Notes where a token lies; returns its scale.
    const auto place = [&](Places& places, std::uint32_t page) {
        const std::size_t at = page * op.pages.latent_page_bytes;
        places.from[threadIdx.x] =
            at + static_cast<std::size_t>(position % 64) * latent * (is_fp8 ? 1 : 2);
        return is_fp8 ? load_1(static_cast<const char*>(op.pages.latents) + at + 64 * latent +
                               position % 64)
                      : 0u;
    };
    std::uint32_t scale = 0;
    if (threadIdx.x < count) scale = place(shared.places[0], pages[position / 64]);

    const int chunks = (count + chunk_tokens - 1) / chunk_tokens;
    const auto places_of = [&](int chunk) -> const Places& {
        return shared.places[whole ? chunk / split_chunks % 2 : 0];
    };
    const auto fetch = [&](int chunk) {
        if (chunk < chunks)
            gather<is_fp8>(
                op.pages.latents, places_of(chunk).from + chunk % split_chunks * chunk_tokens,
                min(count - chunk * chunk_tokens, chunk_tokens), shared.latents[chunk % 2]);
        end_copy_group();
    };
    __syncthreads();
    fetch(0);
    fetch(1);
    if constexpr (is_fp8) shared.places[0].scales[threadIdx.x] = scale_pair(scale);
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
    std::conditional_t<whole, JoinedSoftmax, HeadSoftmax> softmax[own_heads];
    float read[head_tiles][latent / warps / 8][4] = {};
    [[maybe_unused]] float joined_read[head_tiles][latent / warps / 8][4] = {};
    [[maybe_unused]] std::uint32_t next_page = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const int of_split = chunk % split_chunks;
        [[maybe_unused]] const bool split_ends =
            whole && (of_split + 1 == split_chunks || chunk + 1 == chunks);
        if constexpr (whole) {
            // The places of the next split's tokens, a dependent read a chunk.
            const int next = (chunk / split_chunks + 1) * split_tokens + threadIdx.x;
            if (next < count) {
                if (of_split == 0) position = positions[next];
                if (of_split == 1) next_page = pages[position / 64];
                if (of_split == 2) {
                    Places& places = shared.places[(chunk / split_chunks + 1) % 2];
                    scale = place(places, next_page);
                    if constexpr (is_fp8) places.scales[threadIdx.x] = scale_pair(scale);
                }
            }
        }
        wait_for_copies<1>();
        __nv_bfloat16(*const c)[row_elements] = shared.latents[chunk % 2];
        const int here = min(count - chunk * chunk_tokens, chunk_tokens);
        if constexpr (is_fp8) widen(places_of(chunk).scales + of_split * chunk_tokens, here, c);
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

        // All scores first, all stores last, so that the heads' sums are on their way together.
        float scores[own_heads][2];
#pragma unroll
        for (int own = 0; own < own_heads; ++own) {
            const int head = warp * own_heads + own;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int token = lane + 32 * half;
                scores[own][half] =
                    token < here
                        ? (shared.scores[0][head][token] + shared.scores[1][head][token]) * op.scale
                        : -INFINITY;
            }
        }
        HeadSoftmax::Chunk weighed[own_heads];
#pragma unroll
        for (int own = 0; own < own_heads; ++own)
            weighed[own] = softmax[own].add_chunk(scores[own][0], scores[own][1]);
#pragma unroll
        for (int own = 0; own < own_heads; ++own) {
            const int head = warp * own_heads + own;
            shared.weights[head][lane] = weighed[own].weights[0];
            shared.weights[head][lane + 32] = weighed[own].weights[1];
            if (lane == 0) shared.rescale[head] = weighed[own].keep;
            if constexpr (whole) {
                if (split_ends) {
                    const float2 factors = softmax[own].end_split();
                    if (lane == 0) shared.joining[head] = factors;
                }
            }
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
        if constexpr (whole) {
            if (split_ends) {
#pragma unroll
                for (int tile = 0; tile < head_tiles; ++tile) {
                    const float2 of_half[2] = {shared.joining[tile * 16 + g],
                                               shared.joining[tile * 16 + g + 8]};
#pragma unroll
                    for (int t = 0; t < latent / warps / 8; ++t) {
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            joined_read[tile][t][i] =
                                joined(joined_read[tile][t][i], read[tile][t][i], of_half[i / 2].x,
                                       of_half[i / 2].y);
                            read[tile][t][i] = 0.0f;
                        }
                    }
                }
            }
        }
        __syncthreads();
        fetch(chunk + 2);
    }

    if constexpr (whole) {
#pragma unroll
        for (int own = 0; own < own_heads; ++own)
            if (lane == 0) shared.rescale[warp * own_heads + own] = 1.0f / softmax[own].joined_sum;
        __syncthreads();
    }
#pragma unroll
    for (int tile = 0; tile < head_tiles; ++tile) {
#pragma unroll
        for (int t = 0; t < latent / warps / 8; ++t) {
#pragma unroll
            for (int high = 0; high < 2; ++high) {
                const int head = tile * 16 + g + 8 * high;
                if (head >= heads) continue;
                const int column = warp * (latent / warps) + t * 8 + 2 * q;
                if constexpr (whole) {
                    const float scale = shared.rescale[head];
                    const float* const own = joined_read[tile][t] + 2 * high;
                    *reinterpret_cast<__nv_bfloat162*>(
                        op.read +
                        (static_cast<std::size_t>(row) * op.heads + first_head + head) * latent +
                        column) = __floats2bfloat162_rn(own[0] * scale, own[1] * scale);
                } else {
                    *reinterpret_cast<float2*>(partial_of(op, row, split, first_head + head) +
                                               column) =
                        make_float2(read[tile][t][2 * high], read[tile][t][2 * high + 1]);
                }
            }
        }
    }
    if constexpr (!whole) {
#pragma unroll
        for (int own = 0; own < own_heads; ++own) {
            const int head = warp * own_heads + own;
            if (lane == 0 && head < heads) {
                float* const to = partial_of(op, row, split, first_head + head) + latent;
                to[0] = softmax[own].maximum;
                to[1] = softmax[own].sum;
            }
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
            const Joining j = joining(maximum, most[i]);
            maximum = j.maximum;
            sum = joined(sum, of_split[i], j.keep, j.add);
            read.x = joined(read.x, value[i].x, j.keep, j.add);
            read.y = joined(read.y, value[i].y, j.keep, j.add);
            read.z = joined(read.z, value[i].z, j.keep, j.add);
            read.w = joined(read.w, value[i].w, j.keep, j.add);
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
    const auto start = [&]<int head_tiles, bool whole>(std::integral_constant<int, head_tiles>,
                                                       std::bool_constant<whole>) {
        constexpr int block_heads = 16 * head_tiles;
        return launch(
            "launching attention",
            fp8 ? attention_kernel<true, head_tiles, whole>
                : attention_kernel<false, head_tiles, whole>,
            // The last splits, often of a few tokens, come last.
            {dim3((op.heads + block_heads - 1) / block_heads, op.batch.rows, whole ? 1 : splits),
             threads, sizeof(Shared<head_tiles, whole>)},
            context, op);
    };
    // Whole rows where they keep most multiprocessors busy: splits of their own begin with a chain
    // of four reads and end with a result as large as their tokens' latents.
    const int whole_blocks = (op.heads + 31) / 32 * op.batch.rows;
    if (2 * whole_blocks > context.multiprocessors)
        return start(std::integral_constant<int, 2>(), std::true_type());
    if (op.batch.rows <= most_rows_of_small_blocks)
        PERCHERON_TRY(start(std::integral_constant<int, 1>(), std::false_type()));
    else
        PERCHERON_TRY(start(std::integral_constant<int, 2>(), std::false_type()));
    return launch("launching the join of the attention splits", join_kernel,
                  {dim3(op.heads, op.batch.rows), latent / 4, 0}, context, op);
}

}  // namespace percheron::ops::cuda
