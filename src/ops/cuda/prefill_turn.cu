#include <algorithm>

#include "ops/cuda/prefill_turn.h"
#include "ops/cuda/stream_mixing.cuh"

namespace percheron::ops::cuda {
namespace {

constexpr int streams = mixed_streams, gates = mixed_gates;
constexpr int warps = 8, threads = warps * 32;
constexpr int slice_columns = 512;  // of the hidden channels; fewer in the last slice
constexpr int turn_rows = 16, gate_tiles = gates / 8;
constexpr int partial_floats = 32;  // of a slice of a row: gates, the sum of squares, padding

// A gate's weights in shared memory: 32 bytes more than a multiple of 128, so that four gates'
// reads of 32 bytes meet all banks.
__host__ __device__ constexpr int gate_stride(int columns) {
    return streams * columns * 2 + 32;
}

struct TurnSums {
    float mixes[warps][turn_rows][gates];
    float squares[warps][turn_rows];
};

// The last gates of the tile's rows: post, then comb.
constexpr int old_gates = streams + streams * streams;
struct OldGates {
    float of_row[turn_rows][old_gates];
};

// The first kernel's rows of a lane: g and g + 8 of the tile's 16.
struct OwnRows {
    std::size_t row[2];
    bool there[2];
};

__device__ inline OwnRows own_rows(const HyperConnectionTurn& turn, int first, int g) {
    OwnRows own;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = first + g + 8 * r;
        own.there[r] = row < turn.rows;
        own.row[r] = static_cast<std::size_t>(own.there[r] ? row : turn.rows - 1);
    }
    return own;
}

__device__ inline void load_gates(const HyperConnectionTurn& turn, int first, OldGates& gates) {
    for (int i = threadIdx.x; i < turn_rows * old_gates; i += threads) {
        const int row = i / old_gates, gate = i % old_gates;
        const auto from = static_cast<std::size_t>(min(first + row, turn.rows - 1));
        gates.of_row[row][gate] = gate < streams
                                      ? turn.post[from * streams + gate]
                                      : turn.comb[from * streams * streams + gate - streams];
    }
}

// X'_j = post_j y + sum_a comb[a, j] X_a of four channels of a row, stored; as they were without
// an output.
__device__ inline void update_streams(const HyperConnectionTurn& turn, const OwnRows& own,
                                      const float* gates, int r, int column,
                                      float4 (&value)[streams][2]) {
    const std::size_t row = own.row[r];
    float* const x = turn.streams + row * streams * turn.hidden + column;
#pragma unroll
    for (int a = 0; a < streams; ++a)
        value[a][r] = *reinterpret_cast<const float4*>(x + a * turn.hidden);
    if (turn.output != nullptr) {
        float4 y = *reinterpret_cast<const float4*>(turn.output + row * turn.hidden + column);
        if (turn.pairs.chosen > 0) {
            const float4 pairs = sum_of_pairs(turn.pairs, row, turn.hidden, column);
            y = make_float4(pairs.x + y.x, pairs.y + y.y, pairs.z + y.z, pairs.w + y.w);
        }
        const float4 post = *reinterpret_cast<const float4*>(gates);
        float4 next[streams] = {scaled_sum(make_float4(0, 0, 0, 0), post.x, y),
                                scaled_sum(make_float4(0, 0, 0, 0), post.y, y),
                                scaled_sum(make_float4(0, 0, 0, 0), post.z, y),
                                scaled_sum(make_float4(0, 0, 0, 0), post.w, y)};
#pragma unroll
        for (int a = 0; a < streams; ++a) {
            const float4 comb = *reinterpret_cast<const float4*>(gates + streams + a * streams);
            next[0] = scaled_sum(next[0], comb.x, value[a][r]);
            next[1] = scaled_sum(next[1], comb.y, value[a][r]);
            next[2] = scaled_sum(next[2], comb.z, value[a][r]);
            next[3] = scaled_sum(next[3], comb.w, value[a][r]);
        }
#pragma unroll
        for (int j = 0; j < streams; ++j) {
            value[j][r] = next[j];
            if (own.there[r]) *reinterpret_cast<float4*>(x + j * turn.hidden) = next[j];
        }
    }
    if (turn.tap != nullptr && own.there[r]) {
        float4 mean = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < streams; ++j)
            mean = scaled_sum(mean, 1.0f / streams, value[j][r]);
        *reinterpret_cast<float4*>(turn.tap + row * turn.hidden + column) = mean;
    }
}

// Two values as a pair of bf16, of which they lose what it says.
__device__ inline std::uint32_t take_part(float& a, float& b) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    a -= __low2float(pair), b -= __high2float(pair);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// 16 channels of a stream, times fn.  The product's inner index is permuted so that a lane has
// channels next to each other, of the streams and of fn.
__device__ inline void multiply_stream(float4 (&value)[2], const unsigned char* fn, int stride,
                                       float (&mix)[gate_tiles][4], float (&squares)[2]) {
    const int lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float4 v = value[r];
        squares[r] = fmaf(v.x, v.x, squares[r]);
        squares[r] = fmaf(v.y, v.y, squares[r]);
        squares[r] = fmaf(v.z, v.z, squares[r]);
        squares[r] = fmaf(v.w, v.w, squares[r]);
    }
    uint2 b[gate_tiles];
#pragma unroll
    for (int t = 0; t < gate_tiles; ++t)
        b[t] = *reinterpret_cast<const uint2*>(fn + (t * 8 + g) * stride);
#pragma unroll
    for (int part = 0; part < row_parts; ++part) {
        std::uint32_t a[4];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            a[r] = take_part(value[r].x, value[r].y);
            a[2 + r] = take_part(value[r].z, value[r].w);
        }
#pragma unroll
        for (int t = 0; t < gate_tiles; ++t)
            multiply_add(mix[t], a, b[t].x, b[t].y);
    }
}

template <bool last>
__global__ void __launch_bounds__(threads, 2)
    streams_kernel(const __grid_constant__ HyperConnectionTurn turn, float* partial) {
    extern __shared__ __align__(16) unsigned char memory[];
    TurnSums& sums = *reinterpret_cast<TurnSums*>(memory);
    unsigned char* const fn = memory + sizeof(TurnSums);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int hidden = turn.hidden, first_column = blockIdx.x * slice_columns;
    const int columns = min(slice_columns, hidden - first_column);
    const int stride = gate_stride(columns);
    // This slice of fn does not depend on the previous kernel.
    if constexpr (!last) {
        const int pieces = columns / 8;
        for (int line = warp; line < gates * streams; line += warps) {
            const __nv_bfloat16* const from =
                turn.next.fn + static_cast<std::size_t>(line) * hidden + first_column;
            unsigned char* const to = fn + line / streams * stride + line % streams * columns * 2;
            for (int piece = lane; piece < pieces; piece += 32)
                copy_16_async(to + piece * 16, from + piece * 8);
        }
        end_copy_group();
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    wait_for_copies<0>();
    __syncthreads();

    __shared__ __align__(16) OldGates old;
    const int slices = gridDim.x;
    for (int first = blockIdx.y * turn_rows; first < turn.rows; first += gridDim.y * turn_rows) {
        const OwnRows own = own_rows(turn, first, g);
        if (turn.output != nullptr) {
            load_gates(turn, first, old);
            __syncthreads();
        }
        float mix[gate_tiles][4] = {}, squares[2] = {};
#pragma unroll 1
        for (int column = warp * 16; column < columns; column += warps * 16) {
            float4 value[streams][2];
#pragma unroll
            for (int r = 0; r < 2; ++r)
                update_streams(turn, own, old.of_row[g + 8 * r], r, first_column + column + 4 * q,
                               value);
            if constexpr (!last) {
#pragma unroll
                for (int j = 0; j < streams; ++j)
                    multiply_stream(value[j], fn + (j * columns + column + 4 * q) * 2, stride, mix,
                                    squares);
            }
        }
        if constexpr (!last) {
            // A lane's sums are of gates 8 t + 2 q and the next.
#pragma unroll
            for (int r = 0; r < 2; ++r) {
#pragma unroll
                for (int t = 0; t < gate_tiles; ++t)
                    *reinterpret_cast<float2*>(&sums.mixes[warp][g + 8 * r][8 * t + 2 * q]) =
                        make_float2(mix[t][2 * r], mix[t][2 * r + 1]);
                float all = squares[r];
                all += __shfl_xor_sync(full_warp, all, 1);
                all += __shfl_xor_sync(full_warp, all, 2);
                if (q == 0) sums.squares[warp][g + 8 * r] = all;
            }
            __syncthreads();
            for (int i = threadIdx.x; i < turn_rows * (gates + 1); i += threads) {
                const int row = i / (gates + 1), gate = i % (gates + 1);
                float sum = 0.0f;
#pragma unroll
                for (int w = 0; w < warps; ++w)
                    sum += gate < gates ? sums.mixes[w][row][gate] : sums.squares[w][row];
                if (first + row < turn.rows)
                    partial[(static_cast<std::size_t>(first + row) * slices + blockIdx.x) *
                                partial_floats +
                            gate] = sum;
            }
        }
        __syncthreads();
    }
}

// A block a row, and one warp more for the next update's mixing matrix.
__global__ void __launch_bounds__(threads + 32)
    input_kernel(const __grid_constant__ HyperConnectionTurn turn, const float* partial,
                 int slices) {
    extern __shared__ __align__(16) float inputs[];  // [hidden]
    __shared__ float mixes[gates];
    __shared__ float sums[warps];
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int hidden = turn.hidden;
    const bool last = turn.next.fn == nullptr;
    if (!last) {
        if (threadIdx.x < gates) {
            const float* const from =
                partial + static_cast<std::size_t>(row) * slices * partial_floats;
            float mix = 0.0f, squares = 0.0f;
            for (int slice = 0; slice < slices; ++slice) {
                mix += from[slice * partial_floats + threadIdx.x];
                squares += from[slice * partial_floats + gates];
            }
            mixes[threadIdx.x] =
                mix * (1.0f / sqrtf(squares / static_cast<float>(streams * hidden) + turn.rms_eps));
        }
        __syncthreads();
    }
    if (warp == warps) {
        if (last) return;
        if (lane < streams)
            turn.post[static_cast<std::size_t>(row) * streams + lane] =
                2.0f * sigmoid(turn.next.scale[1] * mixes[streams + lane] +
                               turn.next.base[streams + lane]);
        if (lane == 0) {
            float c[streams][streams];
#pragma unroll
            for (int i = 0; i < streams * streams; ++i)
                c[i / streams][i % streams] =
                    turn.next.scale[2] * mixes[2 * streams + i] + turn.next.base[2 * streams + i];
            mix_streams(c, turn.iterations, turn.mhc_eps);
#pragma unroll
            for (int a = 0; a < streams; ++a)
                *reinterpret_cast<float4*>(
                    turn.comb + (static_cast<std::size_t>(row) * streams + a) * streams) =
                    make_float4(c[a][0], c[a][1], c[a][2], c[a][3]);
        }
        return;
    }

    float pre[streams] = {0.25f, 0.25f, 0.25f, 0.25f};
    if (!last) {
#pragma unroll
        for (int j = 0; j < streams; ++j)
            pre[j] = sigmoid(turn.next.scale[0] * mixes[j] + turn.next.base[j]) + turn.mhc_eps;
    }
    const float* const x = turn.streams + static_cast<std::size_t>(row) * streams * hidden;
    float squares = 0.0f;
    for (int i = threadIdx.x * 4; i < hidden; i += threads * 4) {
        float4 u = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < streams; ++j)
            u = scaled_sum(u, pre[j], *reinterpret_cast<const float4*>(x + j * hidden + i));
        *reinterpret_cast<float4*>(inputs + i) = u;  // this thread alone reads it again
        squares += u.x * u.x + u.y * u.y + u.z * u.z + u.w * u.w;
    }
    squares = warp_sum(squares);
    if (lane == 0) sums[warp] = squares;
    asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory");
    float all = 0.0f;
#pragma unroll
    for (int w = 0; w < warps; ++w)
        all += sums[w];
    const float scale = 1.0f / sqrtf(all / static_cast<float>(hidden) + turn.rms_eps);
    const float* const norm = last ? turn.final_norm : turn.next.norm;
    const std::size_t out_at = static_cast<std::size_t>(row) * hidden;
    for (int i = threadIdx.x * 4; i < hidden; i += threads * 4) {
        const float4 u = *reinterpret_cast<const float4*>(inputs + i);
        const float4 w = *reinterpret_cast<const float4*>(norm + i);
        const float4 v =
            make_float4(u.x * scale * w.x, u.y * scale * w.y, u.z * scale * w.z, u.w * scale * w.w);
        write_parts(v, turn.normed + out_at * row_parts + i, hidden,
                    turn.raised == nullptr ? nullptr : turn.raised + out_at + i);
        if (turn.normed_wide != nullptr)
            *reinterpret_cast<float4*>(turn.normed_wide + out_at + i) = v;
    }
}

int slices_of(int hidden) {
    return (hidden + slice_columns - 1) / slice_columns;
}

}  // namespace

std::size_t prompt_turn_floats(int hidden) {
    return static_cast<std::size_t>(slices_of(hidden)) * partial_floats;
}

Status prompt_turn(const HyperConnectionTurn& turn, float* partial, const LaunchContext& context) {
    if (turn.hidden % 64 != 0)
        return Error(ErrorCode::unsupported,
                     "the CUDA hyper-connections need a hidden size that is a multiple of 64");
    const bool last = turn.next.fn == nullptr;
    const int slices = slices_of(turn.hidden);
    const int tiles = (turn.rows + turn_rows - 1) / turn_rows;
    const int blocks = std::clamp(2 * context.multiprocessors / slices, 1, tiles);
    const std::size_t shared_bytes =
        sizeof(TurnSums) + (last ? 0
                                 : static_cast<std::size_t>(gates) *
                                       gate_stride(std::min(turn.hidden, slice_columns)));
    PERCHERON_TRY(launch(
        "launching a prompt's streams", last ? streams_kernel<true> : streams_kernel<false>,
        {dim3(static_cast<unsigned>(slices), static_cast<unsigned>(blocks)), threads, shared_bytes},
        context, turn, partial));
    return launch("launching a prompt's turn", input_kernel,
                  {dim3(static_cast<unsigned>(turn.rows)), threads + 32,
                   static_cast<std::size_t>(turn.hidden) * sizeof(float)},
                  context, turn, static_cast<const float*>(partial), slices);
}

}  // namespace percheron::ops::cuda
