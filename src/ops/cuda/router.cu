#include "ops/cuda/device.cuh"
#include "ops/cuda/router.h"

namespace percheron::ops::cuda {
namespace {

constexpr int logit_warps = 8;
constexpr int logit_parts = 4;  // of the columns, a warp each
constexpr int logit_experts = logit_warps / logit_parts;
constexpr int logit_rows = 4;  // of x that share a read of the weights
constexpr int choose_threads = 1024;
constexpr int most_experts = 512;
constexpr int most_rows = 512;
constexpr int most_chosen = 16;

// Four warps an expert, a quarter of the columns each; their sums are added in order.
__global__ void __launch_bounds__(logit_warps * 32)
    logits_kernel(const __grid_constant__ Routing routing) {
    __shared__ float parts[logit_warps][logit_rows];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int expert =
        min(static_cast<int>(blockIdx.x) * logit_experts + warp / logit_parts, routing.experts - 1);
    const int first_row = blockIdx.y * logit_rows;
    const int hidden = routing.hidden;
    const int run = (hidden / 8 + logit_parts - 1) / logit_parts * 8;
    const int first = warp % logit_parts * run, end = min(first + run, hidden);
    const __nv_bfloat16* const weight = routing.weight + static_cast<std::size_t>(expert) * hidden;
    // The first weights do not wait for the previous kernel.
    constexpr int ahead = 4;
    uint4 w[ahead];
#pragma unroll
    for (int j = 0; j < ahead; ++j) {
        const int i = first + lane * 8 + j * 256;
        w[j] = i < end ? *reinterpret_cast<const uint4*>(weight + i) : make_uint4(0, 0, 0, 0);
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    float sum[logit_rows] = {};
    for (int base = first + lane * 8; base < end; base += ahead * 256) {
#pragma unroll
        for (int j = 0; j < ahead; ++j) {
            const int i = base + j * 256;
            if (i >= end) break;
            if (base != first + lane * 8) w[j] = *reinterpret_cast<const uint4*>(weight + i);
            const std::uint32_t words[4] = {w[j].x, w[j].y, w[j].z, w[j].w};
#pragma unroll
            for (int r = 0; r < logit_rows; ++r) {
                const int row = min(first_row + r, routing.rows - 1);
                const float* const x = routing.x + static_cast<std::size_t>(row) * hidden + i;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float4 v = *reinterpret_cast<const float4*>(x + 4 * half);
                    sum[r] = fmaf(bf16_low(words[2 * half]), v.x, sum[r]);
                    sum[r] = fmaf(bf16_high(words[2 * half]), v.y, sum[r]);
                    sum[r] = fmaf(bf16_low(words[2 * half + 1]), v.z, sum[r]);
                    sum[r] = fmaf(bf16_high(words[2 * half + 1]), v.w, sum[r]);
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < logit_rows; ++r) {
        const float total = warp_sum(sum[r]);
        if (lane == 0) parts[warp][r] = total;
    }
    __syncthreads();
    const int of_expert = threadIdx.x / logit_rows, r = threadIdx.x % logit_rows;
    const int out = blockIdx.x * logit_experts + of_expert;
    if (of_expert < logit_experts && out < routing.experts && first_row + r < routing.rows) {
        float total = 0.0f;
        for (int part = 0; part < logit_parts; ++part)
            total += parts[of_expert * logit_parts + part][r];
        routing.logits[static_cast<std::size_t>(first_row + r) * routing.experts + out] = total;
    }
}

// A float's bits as an unsigned number of the same order, never 0.
__device__ std::uint32_t ordered(float value) {
    const std::uint32_t bits = __float_as_uint(value + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// One warp a row: the choices one after another, each the best that is left.
__device__ void choose(const Routing& routing, int row, int lane, std::uint16_t* chosen) {
    const float* const logits = routing.logits + static_cast<std::size_t>(row) * routing.experts;
    constexpr int own = most_experts / 32;
    std::uint32_t key[own];  // 0: taken, or no expert
#pragma unroll
    for (int i = 0; i < own; ++i) {
        const int expert = i * 32 + lane;
        key[i] =
            expert < routing.experts ? ordered(sigmoid(logits[expert]) + routing.bias[expert]) : 0u;
    }
    float sum = 1e-20f, own_score = 0.0f;  // lane j keeps the j-th score
    for (int j = 0; j < routing.chosen; ++j) {
        std::uint32_t best = 0;
        int best_expert = most_experts;
#pragma unroll
        for (int i = 0; i < own; ++i) {
            if (key[i] > best) {
                best = key[i];
                best_expert = i * 32 + lane;
            }
        }
        const std::uint32_t top = __reduce_max_sync(full_warp, best);
        const int expert = static_cast<int>(__reduce_min_sync(
            full_warp, static_cast<unsigned>(best == top ? best_expert : most_experts)));
#pragma unroll
        for (int i = 0; i < own; ++i) {
            if (expert == i * 32 + lane) key[i] = 0u;
        }
        const float score = sigmoid(logits[expert]);
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
    __shared__ std::int32_t pairs_before[most_experts + 1], groups_before[most_experts + 1];
    __shared__ std::uint16_t chosen[most_rows * most_chosen];
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int row = warp; row < routing.rows; row += choose_threads / 32)
        choose(routing, row, lane, chosen);
    __syncthreads();

    // Every expert's thread reads all choices, in order.
    const int pairs = routing.rows * routing.chosen;
    const int expert = static_cast<int>(threadIdx.x);
    std::int32_t count = 0;
    if (expert < routing.experts) {
        for (int pair = 0; pair < pairs; ++pair)
            count += chosen[pair] == expert;
        pairs_before[expert + 1] = count;
        groups_before[expert + 1] = (count + expert_group_rows - 1) / expert_group_rows;
    }
    if (expert == 0) pairs_before[0] = groups_before[0] = 0;
    __syncthreads();
    if (warp == 0) {
        // Prefix sums, a run of experts a lane.
        const int run = (routing.experts + 31) / 32;
        const int first = lane * run, end = min(first + run, routing.experts);
        std::int32_t own_pairs = 0, own_groups = 0;
        for (int e = first; e < end; ++e) {
            own_pairs += pairs_before[e + 1];
            own_groups += groups_before[e + 1];
        }
        std::int32_t before_pairs = own_pairs, before_groups = own_groups;
        for (int offset = 1; offset < 32; offset *= 2) {
            const std::int32_t p = __shfl_up_sync(full_warp, before_pairs, offset);
            const std::int32_t n = __shfl_up_sync(full_warp, before_groups, offset);
            if (lane >= offset) {
                before_pairs += p;
                before_groups += n;
            }
        }
        before_pairs -= own_pairs;
        before_groups -= own_groups;
        for (int e = first; e < end; ++e) {
            before_pairs += pairs_before[e + 1];
            before_groups += groups_before[e + 1];
            pairs_before[e + 1] = before_pairs;
            groups_before[e + 1] = before_groups;
        }
    }
    const int touched = __syncthreads_count(count > 0);
    if (expert < routing.experts && count > 0) {
        std::int32_t place = pairs_before[expert];
        for (int pair = 0; pair < pairs; ++pair) {
            if (chosen[pair] == expert)
                routing.choice.pair_order[place++] = static_cast<std::uint32_t>(pair);
        }
        for (std::int32_t done = 0, group = groups_before[expert]; done < count;
             done += expert_group_rows, ++group)
            routing.choice.groups[group] = {expert, pairs_before[expert] + done,
                                            min(count - done, expert_group_rows)};
    }
    if (expert == 0) {
        *routing.choice.group_count = groups_before[routing.experts];
        if (routing.choice.touched != nullptr) *routing.choice.touched = touched;
    }
}

}  // namespace

Status route(const Routing& routing, const LaunchContext& context) {
    if (routing.rows > most_rows || routing.experts > most_experts ||
        routing.chosen > most_chosen || routing.hidden % 8 != 0)
        return Error(ErrorCode::unsupported,
                     "the CUDA router takes at most 512 rows, 512 experts and 16 choices");
    PERCHERON_TRY(launch("launching the router's product", logits_kernel,
                         {dim3((routing.experts + logit_experts - 1) / logit_experts,
                               (routing.rows + logit_rows - 1) / logit_rows),
                          logit_warps * 32, 0},
                         context, routing));
    return launch("launching the router's choice", choose_kernel, {dim3(1), choose_threads, 0},
                  context, routing);
}

}  // namespace percheron::ops::cuda
