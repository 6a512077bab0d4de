#include <algorithm>

#include "ops/cuda/mhc_turn.cuh"

namespace percheron::ops::cuda {
namespace {

// Two kernels.  In the first a block has a part of the channels, keeps that part of fn in shared
// memory and goes through rows with it; in the second a block has a row.  What a row's parts found
// waits in the row's place of turn.normed, which the second kernel fills last.
constexpr int turn_rows = 4;  // of a block at a time
constexpr int half_rows = turn_rows / 2;
constexpr int working_warps = 2 * warps, working_threads = working_warps * 32;
constexpr int collapse_threads = working_threads + 32;         // and the mixing warp
constexpr int most_pieces = row_cuts * warps / working_warps;  // of four channels, of a thread
constexpr int most_shared_bytes = 200 * 1024;

struct Found {
    float mixes[row_cuts][gates];    // parts of fn f
    float squares[row_cuts][warps];  // of f
};

__device__ Found* found_of(const HyperConnectionTurn& turn, int row) {
    return reinterpret_cast<Found*>(turn.normed +
                                    static_cast<std::size_t>(row) * row_parts * turn.hidden);
}

// How many of the eight warps that a part's channels go around have any: a warp takes 128 at once.
__device__ int warps_of(int width) {
    return (width + 127) / 128;
}

__global__ void __launch_bounds__(working_threads, 1)
    update_kernel(const __grid_constant__ HyperConnectionTurn turn) {
    extern __shared__ __align__(16) unsigned char memory[];
    const int part = blockIdx.x, hidden = turn.hidden, width = hidden / row_cuts;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* const state = reinterpret_cast<float*>(memory);  // [turn_rows][streams][width]
    __nv_bfloat16* const fn = reinterpret_cast<__nv_bfloat16*>(state + turn_rows * streams * width);
    const int pieces = width / 8;
#pragma unroll 4
    for (int line = warp; line < gates * streams; line += working_warps) {
        const __nv_bfloat16* const from =
            turn.next.fn + static_cast<std::size_t>(line) * hidden + part * width;
        for (int piece = lane; piece < pieces; piece += 32)
            copy_16_async(fn + line * width + piece * 8, from + piece * 8);
    }
    end_copy_group();
    wait_for_previous_kernel();
    let_next_kernel_start();

    const int used_warps = warps_of(width);
    for (int first = blockIdx.y * turn_rows; first < turn.rows; first += gridDim.y * turn_rows) {
        const int rows = min(turn.rows - first, turn_rows);
        for (int task = warp; task < rows * used_warps; task += working_warps) {
            const int own = task / used_warps, of_row = task % used_warps;
            const int i = of_row * 128 + lane * 4;
            float squares = 0.0f;
            if (i < width) {
                float4 value[streams];
                update_streams(turn, first + own, part * width + i, value);
#pragma unroll
                for (int j = 0; j < streams; ++j) {
                    *reinterpret_cast<float4*>(state + (own * streams + j) * width + i) = value[j];
                    squares = with_squares(squares, value[j]);
                }
            }
            squares = warp_sum(squares);
            if (lane == 0) found_of(turn, first + own)->squares[part][of_row] = squares;
        }
        if (threadIdx.x < static_cast<unsigned>(rows * warps) &&
            static_cast<int>(threadIdx.x) % warps >= used_warps)
            found_of(turn, first + threadIdx.x / warps)->squares[part][threadIdx.x % warps] = 0.0f;
        wait_for_copies<0>();
        __syncthreads();
        // Three gates and two rows a warp.  Rows past the last are not read.
        const int gate = warp % warps * warp_gates, half = warp / warps * half_rows;
        const float* const f = state + half * streams * width;
        float sum[half_rows][warp_gates] = {};
        if (half < rows) {
#pragma unroll 4
            for (int i = lane * 4; i < streams * width; i += 128) {
                float4 value[half_rows];
#pragma unroll
                for (int r = 0; r < half_rows; ++r)
                    value[r] = *reinterpret_cast<const float4*>(f + r * streams * width + i);
#pragma unroll
                for (int n = 0; n < warp_gates; ++n) {
                    const uint2 w =
                        *reinterpret_cast<const uint2*>(fn + (gate + n) * streams * width + i);
#pragma unroll
                    for (int r = 0; r < half_rows; ++r)
                        sum[r][n] = with_product(sum[r][n], w, value[r]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < half_rows; ++r) {
#pragma unroll
            for (int n = 0; n < warp_gates; ++n) {
                const float mix = warp_sum(sum[r][n]);
                if (lane == 0 && half + r < rows)
                    found_of(turn, first + half + r)->mixes[part][gate + n] = mix;
            }
        }
        __syncthreads();
    }
}

// A barrier of the warps that share the row's channels.
__device__ void meet() {
    asm volatile("bar.sync 1, %0;" ::"n"(working_threads) : "memory");
}

__global__ void __launch_bounds__(collapse_threads)
    collapse_kernel(const __grid_constant__ HyperConnectionTurn turn) {
    __shared__ __align__(16) Found found;
    __shared__ __align__(16) float input_squares[row_cuts][warps];
    __shared__ float mixes[gates], pre[streams];
    const int row = blockIdx.x, hidden = turn.hidden, width = hidden / row_cuts;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    prefetch(turn.next.norm, hidden * 4, threadIdx.x, collapse_threads);
    if (threadIdx.x < row_cuts * warps) input_squares[threadIdx.x / warps][threadIdx.x % warps] = 0;
    wait_for_previous_kernel();
    let_next_kernel_start();
    // The channels are asked for beside what the gates are made of.
    const int used_warps = warps_of(width);
    float4 value[most_pieces][streams];
    const auto part_of = [&](int piece) { return (piece * working_warps + warp) / used_warps; };
    const auto channel_of = [&](int piece) {
        const int of_part = (piece * working_warps + warp) % used_warps * 128 + lane * 4;
        return of_part < width ? part_of(piece) * width + of_part : hidden;
    };
    if (warp < working_warps) {
        const float* const x = turn.streams + static_cast<std::size_t>(row) * streams * hidden;
#pragma unroll
        for (int piece = 0; piece < most_pieces; ++piece) {
            const int channel = channel_of(piece);
            if (channel >= hidden) continue;
#pragma unroll
            for (int j = 0; j < streams; ++j)
                value[piece][j] = *reinterpret_cast<const float4*>(x + j * hidden + channel);
        }
    }
    constexpr int found_pieces = static_cast<int>(sizeof(Found) / 16);
    static_assert(found_pieces <= collapse_threads);
    if (threadIdx.x < found_pieces)
        reinterpret_cast<uint4*>(&found)[threadIdx.x] =
            load_16(reinterpret_cast<const uint4*>(found_of(turn, row)) + threadIdx.x);
    __syncthreads();
    if (threadIdx.x < gates) {
        const float mix = normalised_mix(turn, found.mixes, static_cast<int>(threadIdx.x),
                                         sum_of_squares(found.squares));
        mixes[threadIdx.x] = mix;
        if (threadIdx.x < streams)
            pre[threadIdx.x] =
                sigmoid(fmaf(turn.next.scale[0], mix, turn.next.base[threadIdx.x])) + turn.mhc_eps;
    }
    __syncthreads();
    if (warp == working_warps) {
        // The gates of the next update, beside the others' work.
        const float* const base = turn.next.base + streams;
        if (lane < streams)
            turn.post[row * streams + lane] =
                2.0f * sigmoid(fmaf(turn.next.scale[1], mixes[streams + lane], base[lane]));
        if (lane == 0) {
            float c[streams][streams];
#pragma unroll
            for (int i = 0; i < streams * streams; ++i)
                c[i / streams][i % streams] =
                    fmaf(turn.next.scale[2], mixes[2 * streams + i], base[streams + i]);
            mix_streams(c, turn.iterations, turn.mhc_eps);
#pragma unroll
            for (int i = 0; i < streams * streams; ++i)
                turn.comb[row * streams * streams + i] = c[i / streams][i % streams];
        }
        return;
    }
    // ---- u = sum_i pre_i X'_i and its norm
#pragma unroll
    for (int piece = 0; piece < most_pieces; ++piece) {
        if (part_of(piece) >= row_cuts) break;
        float squares = 0.0f;
        if (channel_of(piece) < hidden) {
            float4 u = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int j = 0; j < streams; ++j)
                u = scaled_sum(u, pre[j], value[piece][j]);
            value[piece][0] = u;
            squares = with_squares(squares, u);
        }
        squares = warp_sum(squares);
        if (lane == 0)
            input_squares[part_of(piece)][(piece * working_warps + warp) % used_warps] = squares;
    }
    meet();
    const float scale =
        1.0f / sqrtf(sum_of_squares(input_squares) / static_cast<float>(hidden) + turn.rms_eps);
#pragma unroll
    for (int piece = 0; piece < most_pieces; ++piece) {
        const int channel = channel_of(piece);
        if (channel < hidden)
            write_normed(turn, row, channel, value[piece][0], scale,
                         *reinterpret_cast<const float4*>(turn.next.norm + channel));
    }
}

std::size_t update_bytes(const HyperConnectionTurn& turn) {
    const auto width = static_cast<std::size_t>(turn.hidden / row_cuts);
    return turn_rows * streams * width * sizeof(float) +
           gates * streams * width * sizeof(__nv_bfloat16);
}

}  // namespace

bool turns_by_rows(const HyperConnectionTurn& turn) {
    return turn.next.fn != nullptr && turn.hidden % (row_cuts * 8) == 0 &&
           turn.hidden <= row_cuts * warps * 128 && update_bytes(turn) <= most_shared_bytes &&
           row_parts * turn.hidden * sizeof(__nv_bfloat16) >= sizeof(Found);
}

Status turn_by_rows(const HyperConnectionTurn& turn, const LaunchContext& context) {
    const int groups = (turn.rows + turn_rows - 1) / turn_rows;
    PERCHERON_TRY(launch("launching the hyper-connections' update", update_kernel,
                         {dim3(row_cuts, std::min(groups, context.multiprocessors / row_cuts)),
                          working_threads, update_bytes(turn)},
                         context, turn));
    return launch("launching the hyper-connections' collapse", collapse_kernel,
                  {dim3(turn.rows), collapse_threads, 0}, context, turn);
}

}  // namespace percheron::ops::cuda
