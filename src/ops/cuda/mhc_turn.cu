#include <utility>

#include <cooperative_groups.h>

#include "ops/cuda/mhc_turn.cuh"

namespace percheron::ops::cuda {
namespace {

constexpr int cluster_blocks = row_cuts;
// One warp more does nothing but the next update's mixing matrix, beside the others' work.
constexpr int all_threads = threads + 32;
// So many rows' clusters find room at once; more rows are faster where they share reads of fn.
constexpr int most_rows_of_clusters = 16;

// What the blocks of a cluster write into each other's shared memory, by the writer's rank.
struct Received {
    float mixes[cluster_blocks][gates];          // parts of fn f
    float squares[cluster_blocks][warps];        // of f
    float input_squares[cluster_blocks][warps];  // of u
};

struct Totals {
    float mixes[gates];
    float pre[streams];
    std::uint64_t mixes_are_there;  // mbarrier: the first warp arrives once
};

__device__ std::uint32_t shared_address(const void* shared) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

// A barrier of the warps that share the row's channels.
__device__ void meet() {
    asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory");
}

#if __CUDA_ARCH__ >= 900
// The gates of the next update, beside the other warps' work: they do not wait for it.
__device__ void mixing_warp(const HyperConnectionTurn& turn, int row, int part, int lane,
                            const cooperative_groups::cluster_group& cluster,
                            const Totals& totals) {
    // Its weights wait in registers.
    float base[streams * streams], post_base = 0.0f, scale[2] = {};
    if (turn.next.fn != nullptr) {
#pragma unroll
        for (int i = 0; i < streams * streams; ++i)
            base[i] = turn.next.base[2 * streams + i];
        post_base = turn.next.base[streams + lane % streams];
        scale[0] = turn.next.scale[1];
        scale[1] = turn.next.scale[2];
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (turn.next.fn != nullptr) {
        cluster.sync();
        wait_for_barrier(shared_address(&totals.mixes_are_there), 0);
        float c[streams][streams];
#pragma unroll
        for (int i = 0; i < streams * streams; ++i)
            c[i / streams][i % streams] = fmaf(scale[1], totals.mixes[2 * streams + i], base[i]);
        const float post = fmaf(scale[0], totals.mixes[streams + lane % streams], post_base);
        auto arrived = cluster.barrier_arrive();
        if (part == 0) {
            // Every block has read the old gates: they came before the sync of the cluster.
            if (lane < streams) turn.post[row * streams + lane] = 2.0f * sigmoid(post);
            if (lane == 0) {
                mix_streams(c, turn.iterations, turn.mhc_eps);
#pragma unroll
                for (int i = 0; i < streams * streams; ++i)
                    turn.comb[row * streams * streams + i] = c[i / streams][i % streams];
            }
            __syncwarp();
        }
        cluster.barrier_wait(std::move(arrived));
    } else {
        cluster.sync();
    }
}
#endif

__global__ void __launch_bounds__(all_threads, 1)
    turn_kernel(const __grid_constant__ HyperConnectionTurn turn) {
#if __CUDA_ARCH__ >= 900
    namespace cg = cooperative_groups;
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ __align__(16) Received received;
    __shared__ Totals totals;
    const cg::cluster_group cluster = cg::this_cluster();
    const int part = static_cast<int>(cluster.block_rank());
    const int row = blockIdx.y;
    const int hidden = turn.hidden, width = hidden / cluster_blocks;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool last = turn.next.fn == nullptr;
    float* const state = reinterpret_cast<float*>(memory);  // [streams][width]
    __nv_bfloat16* const fn =
        reinterpret_cast<__nv_bfloat16*>(state + streams * width);  // [gates][streams][width]

    if (threadIdx.x == 0)
        asm volatile(
            "mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&totals.mixes_are_there))
            : "memory");
    // Nobody writes to a block that has not started.
    auto started = cluster.barrier_arrive();
    if (warp == warps) {
        cluster.barrier_wait(std::move(started));
        mixing_warp(turn, row, part, lane, cluster, totals);
        return;
    }

    // This block's columns of fn do not depend on the previous kernel.
    if (!last) {
        const int pieces = width / 8;
#pragma unroll 4
        for (int line = warp; line < gates * streams; line += warps) {
            const __nv_bfloat16* const from =
                turn.next.fn + static_cast<std::size_t>(line) * hidden + part * width;
            for (int piece = lane; piece < pieces; piece += 32)
                copy_16_async(fn + line * width + piece * 8, from + piece * 8);
        }
        end_copy_group();
    }
    // Nor do the gates' other weights and the norm's: the first piece of it, for most widths all.
    const float* const norm = (last ? turn.final_norm : turn.next.norm) + part * width;
    const int own_column = threadIdx.x * 4;
    float4 own_norm = make_float4(0, 0, 0, 0);
    if (own_column < width) own_norm = *reinterpret_cast<const float4*>(norm + own_column);
    float base = 0.0f, scale0 = 0.0f;
    if (!last && threadIdx.x < streams) {
        base = turn.next.base[threadIdx.x];
        scale0 = turn.next.scale[0];
    }
    wait_for_previous_kernel();
    let_next_kernel_start();

    // ---- the streams' update
    float squares = 0.0f;
// Once around for most widths: unrolled it would only be more code to fetch.
#pragma unroll 1
    for (int i = threadIdx.x * 4; i < width; i += threads * 4) {
        float4 value[streams];
        update_streams(turn, row, part * width + i, value);
#pragma unroll
        for (int j = 0; j < streams; ++j) {
            *reinterpret_cast<float4*>(state + j * width + i) = value[j];
            squares = with_squares(squares, value[j]);
        }
    }

    cluster.barrier_wait(std::move(started));
    float pre[streams] = {0.25f, 0.25f, 0.25f, 0.25f};
    if (!last) {
        squares = warp_sum(squares);
        wait_for_copies<0>();
        meet();
        // ---- this block's part of fn f, three gates a warp
        float sum[warp_gates] = {};
#pragma unroll 4
        for (int i = lane * 4; i < streams * width; i += 128) {
            const float4 f = *reinterpret_cast<const float4*>(state + i);
#pragma unroll
            for (int n = 0; n < warp_gates; ++n) {
                const uint2 w = *reinterpret_cast<const uint2*>(
                    fn + (warp * warp_gates + n) * streams * width + i);
                sum[n] = with_product(sum[n], w, f);
            }
        }
#pragma unroll
        for (int n = 0; n < warp_gates; ++n) {
            sum[n] = warp_sum(sum[n]);
            if (lane < cluster_blocks)
                cluster.map_shared_rank(&received, lane)->mixes[part][warp * warp_gates + n] =
                    sum[n];
        }
        if (lane < cluster_blocks)
            cluster.map_shared_rank(&received, lane)->squares[part][warp] = squares;
        cluster.sync();
        if (threadIdx.x < gates) {
            const float mix = normalised_mix(turn, received.mixes, static_cast<int>(threadIdx.x),
                                             sum_of_squares(received.squares));
            totals.mixes[threadIdx.x] = mix;
            if (threadIdx.x < streams)
                totals.pre[threadIdx.x] = sigmoid(fmaf(scale0, mix, base)) + turn.mhc_eps;
        }
        if (warp == 0) {
            __syncwarp();
            if (lane == 0)
                asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(
                                 shared_address(&totals.mixes_are_there))
                             : "memory");
        }
        meet();
#pragma unroll
        for (int j = 0; j < streams; ++j)
            pre[j] = totals.pre[j];
    }

    // ---- u = sum_i pre_i X'_i and its norm
    float input_squares = 0.0f;
// Once around for most widths: unrolled it would only be more code to fetch.
#pragma unroll 1
    for (int i = threadIdx.x * 4; i < width; i += threads * 4) {
        float4 u = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < streams; ++j)
            u = scaled_sum(u, pre[j], *reinterpret_cast<const float4*>(state + j * width + i));
        // Stream 0's place is free: this thread alone reads it from here on.
        *reinterpret_cast<float4*>(state + i) = u;
        input_squares = with_squares(input_squares, u);
    }
    input_squares = warp_sum(input_squares);
    if (lane < cluster_blocks)
        cluster.map_shared_rank(&received, lane)->input_squares[part][warp] = input_squares;
    // Nobody touches another's shared memory behind this.
    cluster.sync();
    const float all = sum_of_squares(received.input_squares);
    const float scale = 1.0f / sqrtf(all / static_cast<float>(hidden) + turn.rms_eps);
// Once around for most widths: unrolled it would only be more code to fetch.
#pragma unroll 1
    for (int i = threadIdx.x * 4; i < width; i += threads * 4) {
        const float4 u = *reinterpret_cast<const float4*>(state + i);
        const float4 w = i == own_column ? own_norm : *reinterpret_cast<const float4*>(norm + i);
        write_normed(turn, row, part * width + i, u, scale, w);
    }
#else
    __trap();
#endif
}

}  // namespace

Status mhc_turn(const HyperConnectionTurn& turn, const LaunchContext& context) {
    if (turn.hidden % (cluster_blocks * 8) != 0)
        return Error(ErrorCode::unsupported,
                     "the CUDA hyper-connections need a hidden size that "
                     "is a multiple of 64");
    if (turn.rows > most_rows_of_clusters && turns_by_rows(turn))
        return turn_by_rows(turn, context);
    const int width = turn.hidden / cluster_blocks;
    const std::size_t shared_bytes =
        static_cast<std::size_t>(streams) * width * 4 +
        (turn.next.fn != nullptr ? static_cast<std::size_t>(gates) * streams * width * 2 : 0);
    return launch("launching the hyper-connection turn", turn_kernel,
                  {dim3(cluster_blocks, turn.rows), all_threads, shared_bytes, cluster_blocks},
                  context, turn);
}

}  // namespace percheron::ops::cuda
