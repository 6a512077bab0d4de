// The first kernel of a prompt's KDA: a block prepares one chunk of one head.
#include "ops/cuda/prefill_kda_chunks.cuh"

namespace percheron::ops::cuda {
namespace {

using namespace kda_chunks;

constexpr int stride = dim + 8;  // floats; rows 8 apart in the banks
struct Chunk {
    float query[tokens][stride];
    float key[tokens][stride];
    float total[tokens][stride];  // G, of exponents of two
    float warp_total[warps][dim];
    float beta[tokens];
};
// In the place of the queries, when they are out: sums over the second half of the channels; then
// L by columns, of a column the rows of each remainder of 4 together.
constexpr int remainder_stride = tokens / 4 + 4, lower_stride = 4 * remainder_stride;
struct Solving {
    union {
        float sums[warps / 2][64][32];
        float lower[tokens][lower_stride];
    };
};
static_assert(sizeof(Solving) <= sizeof(Chunk::query));

struct Source {
    const KdaPrompt& prompt;
    const DeviceSequence& sequence;
    int head;
    std::uint32_t first;  // position of the chunk's first row
    int count;            // rows of the chunk

    __device__ std::size_t channels() const { return static_cast<std::size_t>(prompt.heads) * dim; }
    __device__ std::size_t row(int token) const {
        return sequence.first_row + (first - sequence.first_position) + token;
    }
    // The convolution's input of the chunk's rows, and of the rows before it, `token` -3 to -1.
    __device__ const float* own() const {
        return prompt.projections + row(0) * prompt.projection_stride;
    }
    __device__ const float* before(int token) const {
        if (first > sequence.first_position)
            return own() + static_cast<std::ptrdiff_t>(token) * prompt.projection_stride;
        const std::int64_t position = static_cast<std::int64_t>(first) + token;
        if (position < 0) return nullptr;
        return prompt.slots.conv + sequence.slot * prompt.slots.conv_stride +
               static_cast<std::size_t>(position % prompt.slots.ring) * 3 * channels();
    }
};

__device__ inline float silu(float z) {
    return z * quick_sigmoid(z);
}

__device__ inline float4 read_or_zero(const float* from, bool there) {
    return there ? *reinterpret_cast<const float4*>(from) : make_float4(0, 0, 0, 0);
}

// Eight rows of one part, convolved and normalised; 4 channels a lane.
__device__ inline void prepare_rows(const Source& source, int part, int first, int lane,
                                    float (*out)[stride]) {
    const std::size_t channel =
        part * source.channels() + static_cast<std::size_t>(source.head) * dim + lane * 4;
    const std::ptrdiff_t row_stride = source.prompt.projection_stride;
    const float* const own = source.own() + channel;
    float4 weight[4], past[taps + 7];
#pragma unroll
    for (int c = 0; c < 4; ++c)
        weight[c] = *reinterpret_cast<const float4*>(source.prompt.conv + (channel + c) * taps);
#pragma unroll
    for (int i = 0; i < taps - 1; ++i) {
        const int token = first + i - (taps - 1);
        const float* from = own + token * row_stride;
        if (first == 0) {
            from = source.before(token);
            if (from != nullptr) from += channel;
        }
        past[i] = read_or_zero(from, from != nullptr && token < source.count);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
        past[taps - 1 + i] = read_or_zero(own + (first + i) * row_stride, first + i < source.count);
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        const auto convolved = [&](float4 w, float a, float b, float c, float d) {
            return silu(fmaf(w.w, d, fmaf(w.z, c, fmaf(w.y, b, w.x * a))));
        };
        const float4 a = past[r], b = past[r + 1], c = past[r + 2], d = past[r + 3];
        float4 v = make_float4(
            convolved(weight[0], a.x, b.x, c.x, d.x), convolved(weight[1], a.y, b.y, c.y, d.y),
            convolved(weight[2], a.z, b.z, c.z, d.z), convolved(weight[3], a.w, b.w, c.w, d.w));
        const float squares = warp_sum(fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, v.x * v.x))));
        constexpr float query_scale = 0.08838834764831845f;  // 128^-1/2
        const float scale = first + r < source.count
                                ? (part == 0 ? query_scale : 1.0f) * rsqrtf(squares + 1e-6f)
                                : 0.0f;
        v.x *= scale, v.y *= scale, v.z *= scale, v.w *= scale;
        *reinterpret_cast<float4*>(&out[first + r][lane * 4]) = v;
    }
}

// diag(beta) V: a column and half of the rows a thread, four rows at a time.
__device__ inline void write_values(const Source& source, const float* beta, std::byte* out) {
    const int column = threadIdx.x % dim, first = static_cast<int>(threadIdx.x) / dim * tokens / 2;
    const std::size_t channel =
        2 * source.channels() + static_cast<std::size_t>(source.head) * dim + column;
    const float4 w = *reinterpret_cast<const float4*>(source.prompt.conv + channel * taps);
    const std::ptrdiff_t row_stride = source.prompt.projection_stride;
    const float* const own = source.own() + channel;
    float past[taps - 1];
#pragma unroll
    for (int i = 0; i < taps - 1; ++i) {
        const int token = first + i - (taps - 1);
        const float* from = own + token * row_stride;
        if (first == 0) {
            from = source.before(token);
            if (from != nullptr) from += channel;
        }
        past[i] = from != nullptr && token < source.count ? *from : 0.0f;
    }
    float* const to =
        reinterpret_cast<float*>(out + column / half_dim * value_bytes) + column % half_dim;
#pragma unroll 1
    for (int base = first; base < first + tokens / 2; base += 8) {
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; ++i)
            x[i] = base + i < source.count ? own[(base + i) * row_stride] : 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float z = fmaf(w.w, x[i], fmaf(w.z, past[2], fmaf(w.y, past[1], w.x * past[0])));
            to[(base + i) * half_dim] = beta[base + i] * silu(z);
            past[0] = past[1], past[1] = past[2], past[2] = x[i];
        }
    }
}

// G of the chunk: every warp adds up its eight rows, then what came before them.
__device__ inline void add_up_decays(const Source& source, Chunk& chunk, int warp, int lane) {
    const KdaPrompt& prompt = source.prompt;
    const std::size_t channel = static_cast<std::size_t>(source.head) * dim + lane * 4;
    const float4 bias = *reinterpret_cast<const float4*>(prompt.dt_bias + channel);
    const float rate = expf(prompt.a_log[source.head]);
    const float bound = prompt.lower_bound * log2_e;
    float4 total[8], sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        const int token = warp * 8 + r;
        if (token < source.count) {
            const float4 a = *reinterpret_cast<const float4*>(
                prompt.decay + source.row(token) * prompt.decay_stride + channel);
            sum.x += bound * quick_sigmoid(rate * (a.x + bias.x));
            sum.y += bound * quick_sigmoid(rate * (a.y + bias.y));
            sum.z += bound * quick_sigmoid(rate * (a.z + bias.z));
            sum.w += bound * quick_sigmoid(rate * (a.w + bias.w));
        }
        total[r] = sum;
    }
    *reinterpret_cast<float4*>(&chunk.warp_total[warp][lane * 4]) = sum;
    __syncthreads();
    float4 before = make_float4(0, 0, 0, 0);
    for (int w = 0; w < warp; ++w) {
        const float4 v = *reinterpret_cast<const float4*>(&chunk.warp_total[w][lane * 4]);
        before.x += v.x, before.y += v.y, before.z += v.z, before.w += v.w;
    }
#pragma unroll
    for (int r = 0; r < 8; ++r)
        *reinterpret_cast<float4*>(&chunk.total[warp * 8 + r][lane * 4]) =
            make_float4(before.x + total[r].x, before.y + total[r].y, before.z + total[r].z,
                        before.w + total[r].w);
}

// Products of 16 rows of keys, and of queries, with all keys up to them, over half of the channels.
__device__ inline void multiply_rows(const Chunk& chunk, int rows, int half, int lane,
                                     float (&of_keys)[8][4], float (&of_queries)[8][4]) {
    const int g = lane / 4, q = lane % 4;
    const float* const reference = chunk.total[rows * run + run / 2];
#pragma unroll 1
    for (int step = 0; step < 4; ++step) {
        const int column = half * half_dim + step * 16 + 2 * q;
        std::uint32_t key_high[4], key_low[4], query_high[4], query_low[4];
        float2 from[2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
            from[i] = pair_at(reference + column + 8 * i);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int row = rows * run + g + 8 * (r % 2), c = column + 8 * (r / 2);
            const float2 total = pair_at(&chunk.total[row][c]);
            const float2 key = pair_at(&chunk.key[row][c]), query = pair_at(&chunk.query[row][c]);
            const float x = exp2_of(total.x - from[r / 2].x), y = exp2_of(total.y - from[r / 2].y);
            const Parts k = in_parts(key.x * x, key.y * y);
            const Parts w = in_parts(query.x * x, query.y * y);
            key_high[r] = k.high, key_low[r] = k.low;
            query_high[r] = w.high, query_low[r] = w.low;
        }
#pragma unroll
        for (int tile = 0; tile < 8; ++tile) {
            if (tile >= 2 * (rows + 1)) break;
            const int row = tile * 8 + g;
            Parts b[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 total = pair_at(&chunk.total[row][column + 8 * i]);
                const float2 key = pair_at(&chunk.key[row][column + 8 * i]);
                b[i] = in_parts(key.x * exp2_of(from[i].x - total.x),
                                key.y * exp2_of(from[i].y - total.y));
            }
            multiply_parts(of_keys[tile], key_high, key_low, b[0], b[1]);
            multiply_parts(of_queries[tile], query_high, query_low, b[0], b[1]);
        }
    }
}

__device__ inline void read_8(float (&to)[8], const float* from) {
    const float4 a = reinterpret_cast<const float4*>(from)[0];
    const float4 b = reinterpret_cast<const float4*>(from)[1];
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

// 8 channels of a row times factors, in two parts, the second wide_bytes behind the first.
__device__ inline void write_scaled(const float (&row)[8], const float (&factors)[8],
                                    std::byte* out) {
    std::uint32_t high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Parts p = in_parts(row[2 * i] * factors[2 * i], row[2 * i + 1] * factors[2 * i + 1]);
        high[i] = p.high, low[i] = p.low;
    }
    *reinterpret_cast<uint4*>(out) = make_uint4(high[0], high[1], high[2], high[3]);
    *reinterpret_cast<uint4*>(out + wide_bytes) = make_uint4(low[0], low[1], low[2], low[3]);
}

// The inverse of I + L by forward substitution: four lanes have a column, each the rows of one
// remainder of 4.  A warp's columns are zero above its first.
__device__ inline void invert(const Solving& solving, int warp, int lane, float (&x)[16]) {
    const int column = warp * 8 + lane / 4, remainder = lane % 4;
#pragma unroll
    for (int m = 0; m < 16; ++m)
        x[m] = 4 * m + remainder == column ? 1.0f : 0.0f;
#pragma unroll
    for (int eight = 0; eight < 8; ++eight) {
        if (eight < warp) continue;
#pragma unroll
        for (int j = eight * 8; j < eight * 8 + 8; ++j) {
            const float done = __shfl_sync(full_warp, x[j / 4], (lane & ~3) | j % 4);
            const float* const factors = solving.lower[j] + remainder * remainder_stride;
#pragma unroll
            for (int m = j / 16 * 4; m < 16; m += 4) {
                const float4 f = *reinterpret_cast<const float4*>(factors + m);
                if (m >= j / 4) x[m] = fmaf(-f.x, done, x[m]);
                if (m + 1 >= j / 4) x[m + 1] = fmaf(-f.y, done, x[m + 1]);
                if (m + 2 >= j / 4) x[m + 2] = fmaf(-f.z, done, x[m + 2]);
                x[m + 3] = fmaf(-f.w, done, x[m + 3]);
            }
        }
    }
}

struct ChunkPlace {
    int sequence;
    int number;  // of its chunks
};
__device__ inline ChunkPlace place_of(const KdaPrompt& prompt, int first_sequence, int chunk) {
    int sequence = first_sequence;
    while (true) {
        const int own =
            static_cast<int>((prompt.sequences[sequence].row_count + tokens - 1) / tokens);
        if (chunk < own) return {sequence, chunk};
        chunk -= own;
        ++sequence;
    }
}

__global__ void __launch_bounds__(threads, 2)
    prepare_kernel(const __grid_constant__ KdaPrompt prompt, int first_sequence) {
    extern __shared__ __align__(16) std::uint8_t memory[];
    Chunk& chunk = *reinterpret_cast<Chunk*>(memory);
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head = blockIdx.x;
    const ChunkPlace place = place_of(prompt, first_sequence, blockIdx.y);
    const DeviceSequence sequence = prompt.sequences[place.sequence];
    const Source source{prompt, sequence, head,
                        sequence.first_position + static_cast<std::uint32_t>(place.number) * tokens,
                        min(tokens, static_cast<int>(sequence.row_count) - place.number * tokens)};
    std::byte* const out =
        prompt.prepared +
        (static_cast<std::size_t>(blockIdx.y) * prompt.heads + head) * chunk_bytes;

    prepare_rows(source, 0, warp * 8, lane, chunk.query);
    prepare_rows(source, 1, warp * 8, lane, chunk.key);
    if (threadIdx.x < tokens)
        chunk.beta[threadIdx.x] =
            static_cast<int>(threadIdx.x) < source.count
                ? quick_sigmoid(prompt.beta[source.row(threadIdx.x) * prompt.beta_stride + head])
                : 0.0f;
    add_up_decays(source, chunk, warp, lane);
    __syncthreads();
    write_values(source, chunk.beta, out + v_at);

    const int rows = warp / 2, half = warp % 2;
    float of_keys[8][4] = {}, of_queries[8][4] = {};
    multiply_rows(chunk, rows, half, lane, of_keys, of_queries);

    // Queries and keys as the state is read and written with them.
    const float* const last = chunk.total[tokens - 1];
#pragma unroll 1
    for (int i = threadIdx.x; i < tokens * dim / 8; i += threads) {
        const int row = i / (dim / 8), piece = i % (dim / 8), at = wide_place(row, piece);
        float total[8], end[8], values[8], factors[8];
        read_8(total, &chunk.total[row][piece * 8]);
        read_8(end, last + piece * 8);
        read_8(values, &chunk.query[row][piece * 8]);
#pragma unroll
        for (int c = 0; c < 8; ++c)
            factors[c] = exp2_of(total[c]);
        write_scaled(values, factors, out + q_at + at);
        read_8(values, &chunk.key[row][piece * 8]);
        const float beta = chunk.beta[row];
#pragma unroll
        for (int c = 0; c < 8; ++c)
            factors[c] *= beta;
        write_scaled(values, factors, out + r_at + at);
#pragma unroll
        for (int c = 0; c < 8; ++c)
            factors[c] = exp2_of(end[c] - total[c]);
        write_scaled(values, factors, out + k_at + at);
    }
    if (threadIdx.x < dim)
        reinterpret_cast<float*>(out + decay_at)[threadIdx.x] = exp2_of(last[threadIdx.x]);
    __syncthreads();

    // The halves of the channels meet in the first half's warps.
    auto& solving = *reinterpret_cast<Solving*>(chunk.query);
    if (half == 1) {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            solving.sums[rows][i][lane] = of_keys[i / 4][i % 4];
            solving.sums[rows][32 + i][lane] = of_queries[i / 4][i % 4];
        }
    }
    __syncthreads();
    if (half == 0) {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            of_keys[i / 4][i % 4] += solving.sums[rows][i][lane];
            of_queries[i / 4][i % 4] += solving.sums[rows][32 + i][lane];
        }
    }
    __syncthreads();
    if (half == 0) {
#pragma unroll
        for (int tile = 0; tile < 8; ++tile) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int row = rows * run + lane / 4 + 8 * r, column = tile * 8 + lane % 4 * 2;
                const float beta = chunk.beta[row];
                const int at_row = row % 4 * remainder_stride + row / 4;
                solving.lower[column][at_row] = column < row ? beta * of_keys[tile][2 * r] : 0.0f;
                solving.lower[column + 1][at_row] =
                    column + 1 < row ? beta * of_keys[tile][2 * r + 1] : 0.0f;
                const Parts p = in_parts(column <= row ? of_queries[tile][2 * r] : 0.0f,
                                         column + 1 <= row ? of_queries[tile][2 * r + 1] : 0.0f);
                const int at = square_place(row, tile) + lane % 4 * 4;
                *reinterpret_cast<std::uint32_t*>(out + a_at + at) = p.high;
                *reinterpret_cast<std::uint32_t*>(out + a_at + square_bytes + at) = p.low;
            }
        }
    }
    __syncthreads();

    float x[16];
    invert(solving, warp, lane, x);
    // Neighbouring columns share two rows: each lane writes both columns of one.
#pragma unroll
    for (int m = 0; m < 16; m += 2) {
        const int column = warp * 8 + lane / 4;
        const bool odd = column % 2;
        const float other = __shfl_xor_sync(full_warp, odd ? x[m] : x[m + 1], 4);
        const Parts p = odd ? in_parts(other, x[m + 1]) : in_parts(x[m], other);
        const int row = 4 * (m + odd) + lane % 4;
        const int at = square_place(row, column / 8) + column % 8 / 2 * 4;
        *reinterpret_cast<std::uint32_t*>(out + t_at + at) = p.high;
        *reinterpret_cast<std::uint32_t*>(out + t_at + square_bytes + at) = p.low;
    }
}

}  // namespace

std::size_t kda_chunk_bytes() {
    return chunk_bytes;
}

Status launch_kda_chunks(const KdaPrompt& prompt, int first_sequence, int chunks,
                         const LaunchContext& context) {
    return launch("launching a prompt's KDA chunks", prepare_kernel,
                  {dim3(static_cast<unsigned>(prompt.heads), static_cast<unsigned>(chunks)),
                   threads, sizeof(Chunk)},
                  context, prompt, first_sequence);
}

}  // namespace percheron::ops::cuda
