#include "ops/cuda/device.cuh"
#include "ops/cuda/few_row_gemm.h"
#include "ops/cuda/router.h"

namespace percheron::ops::cuda {
namespace {

constexpr int choose_threads = 1024;
constexpr int most_experts = 512;
constexpr int most_rows = 512;
constexpr int most_chosen = 16;

// A float's bits as an unsigned number of the same order, never 0.
__device__ std::uint32_t ordered(float value) {
    const std::uint32_t bits = __float_as_uint(value + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// One warp a row: the choices one after another, each the best that is left.
__device__ void choose(const Routing& routing, int row, int lane, std::uint16_t* chosen) {
    const float* const parts =
        routing.logits + static_cast<std::size_t>(row) * row_parts * routing.experts;
    constexpr int own = most_experts / 32;
    std::uint32_t key[own];  // 0: taken, or no expert
    float scores[own];
#pragma unroll
    for (int i = 0; i < own; ++i) {
        const int expert = i * 32 + lane;
        key[i] = 0u;
        scores[i] = 0.0f;
        if (expert < routing.experts) {
            float logit = parts[expert];
#pragma unroll
            for (int part = 1; part < row_parts; ++part)
                logit += parts[part * routing.experts + expert];
            scores[i] = sigmoid(logit);
            key[i] = ordered(scores[i] + routing.bias[expert]);
        }
    }
    float sum = 1e-20f, own_score = 0.0f;  // lane j keeps the j-th score
    for (int j = 0; j < routing.chosen; ++j) {
        std::uint32_t best = 0;
        int best_expert = most_experts;
#pragma unroll
        for (int i = 0; i < own; ++i) {
            if (i * 32 < routing.experts && key[i] > best) {
                best = key[i];
                best_expert = i * 32 + lane;
            }
        }
        const std::uint32_t top = __reduce_max_sync(full_warp, best);
        const int expert = static_cast<int>(__reduce_min_sync(
            full_warp, static_cast<unsigned>(best == top ? best_expert : most_experts)));
        float score = 0.0f;
#pragma unroll
        for (int i = 0; i < own; ++i) {
            if (i * 32 < routing.experts && expert == i * 32 + lane) {
                key[i] = 0u;
                score = scores[i];
            }
        }
        score = __shfl_sync(full_warp, score, expert % 32);
        sum += score;
        if (lane == j) {
            own_score = score;
            chosen[row * routing.chosen + j] = static_cast<std::uint16_t>(expert);
            routing.choice.experts[row * routing.chosen + j] = static_cast<std::uint32_t>(expert);
        }
    }
    if (lane < routing.chosen)
        routing.choice.weights[row * routing.chosen + lane] =
            routing.scale * (routing.normalise ? own_score / sum : own_score);
}

__global__ void __launch_bounds__(choose_threads)
    choose_kernel(const __grid_constant__ Routing routing) {
    constexpr int expert_warps = most_experts / 32;
    constexpr int packed = 8;  // choices a read
    __shared__ std::int32_t counts[most_experts];
    __shared__ std::int32_t warp_pairs[expert_warps], warp_groups[expert_warps];
    __shared__ __align__(16) std::uint16_t chosen[most_rows * most_chosen + packed];
    const int expert = static_cast<int>(threadIdx.x);
    if (expert < most_experts) counts[expert] = 0;
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int pairs = routing.rows * routing.chosen;
    if (threadIdx.x < packed) chosen[pairs + threadIdx.x] = 0xffffu;
    for (int row = warp; row < routing.rows; row += choose_threads / 32)
        choose(routing, row, lane, chosen);
    __syncthreads();
    for (int pair = threadIdx.x; pair < pairs; pair += choose_threads)
        atomicAdd(&counts[chosen[pair]], 1);
    __syncthreads();

    // Where an expert's pairs and groups begin: sums over the experts before it.
    const std::int32_t count = expert < most_experts ? counts[expert] : 0;
    const std::int32_t own_groups = (count + expert_group_rows - 1) / expert_group_rows;
    std::int32_t first_pair = count, first_group = own_groups;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const std::int32_t p = __shfl_up_sync(full_warp, first_pair, offset);
        const std::int32_t n = __shfl_up_sync(full_warp, first_group, offset);
        if (lane >= offset) {
            first_pair += p;
            first_group += n;
        }
    }
    if (warp < expert_warps && lane == 31) {
        warp_pairs[warp] = first_pair;
        warp_groups[warp] = first_group;
    }
    first_pair -= count;
    first_group -= own_groups;
    const int touched = __syncthreads_count(count > 0);
    if (count > 0) {
        for (int w = 0; w < warp; ++w) {
            first_pair += warp_pairs[w];
            first_group += warp_groups[w];
        }
        // Every chosen expert's thread reads the choices in order until it has its own.
        std::int32_t found = 0;
        for (int base = 0; found < count; base += packed) {
            const uint4 some = *reinterpret_cast<const uint4*>(chosen + base);
            const std::uint32_t words[4] = {some.x, some.y, some.z, some.w};
#pragma unroll
            for (int i = 0; i < packed; ++i) {
                const std::uint32_t one = i % 2 == 0 ? words[i / 2] & 0xffffu : words[i / 2] >> 16;
                if (one == static_cast<std::uint32_t>(expert))
                    routing.choice.pair_order[first_pair + found++] =
                        static_cast<std::uint32_t>(base + i);
            }
        }
        for (std::int32_t done = 0; done < count; done += expert_group_rows)
            routing.choice.groups[first_group++] = {expert, first_pair + done,
                                                    min(count - done, expert_group_rows)};
    }
    if (threadIdx.x == 0) {
        std::int32_t groups = 0;
        for (int w = 0; w < expert_warps; ++w)
            groups += warp_groups[w];
        *routing.choice.group_count = groups;
        if (routing.choice.touched != nullptr) *routing.choice.touched = touched;
    }
}

}  // namespace

Status route(const Routing& routing, const LaunchContext& context) {
    if (routing.rows > most_rows || routing.experts > most_experts ||
        routing.chosen > most_chosen || routing.hidden % block_columns != 0)
        return Error(ErrorCode::unsupported,
                     "the CUDA router takes at most 512 rows, 512 experts and 16 choices, and a "
                     "hidden size of a multiple of 128");
    FewRowProduct product;
    product.weight = routing.weight;
    product.x = routing.x;
    product.x_stride = routing.hidden;
    product.y = routing.logits;
    product.y_stride = routing.experts;
    PERCHERON_TRY(few_row_gemm({&product, 1}, routing.rows * row_parts, 0.0f, context));
    return launch("launching the router's choice", choose_kernel, {dim3(1), choose_threads, 0},
                  context, routing);
}

}  // namespace percheron::ops::cuda
