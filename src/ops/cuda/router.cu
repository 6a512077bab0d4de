#include "ops/cuda/device.cuh"
#include "ops/cuda/few_row_gemm.h"
#include "ops/cuda/router.h"

namespace percheron::ops::cuda {
namespace {

constexpr int group_threads = 1024;
constexpr int few_threads = expert_group_rows * 32;
constexpr int most_experts = 512;
constexpr int most_rows = 512;
constexpr int most_chosen = 16;

// A float's bits as an unsigned number of the same order, never 0.
__device__ std::uint32_t ordered(float value) {
    const std::uint32_t bits = __float_as_uint(value + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ float score_of(const Routing& routing, const float* parts, int expert) {
    float logit = parts[expert];
#pragma unroll
    for (int part = 1; part < row_parts; ++part)
        logit += parts[part * routing.experts + expert];
    return sigmoid(logit);
}

// The best of a lane's experts, lane + 32 i; the lower one of equals.
struct Candidate {
    std::uint32_t key;  // 0: none is left
    int expert;
};
__device__ Candidate best_of(const std::uint32_t* keys, int experts, int lane) {
    Candidate best = {0u, most_experts};
#pragma unroll 4
    for (int expert = lane; expert < experts; expert += 32) {
        if (keys[expert] > best.key) best = {keys[expert], expert};
    }
    return best;
}

__device__ const float* logits_of(const Routing& routing, int row) {
    return routing.logits + static_cast<std::size_t>(row) * row_parts * routing.experts;
}

// By what an expert is chosen for a row.
__device__ std::uint32_t key_of(const Routing& routing, int row, int expert) {
    return ordered(score_of(routing, logits_of(routing, row), expert) + routing.bias[expert]);
}

// One warp a row: the choices one after another, each the best that is left.  `keys`, the row's,
// were written by this warp or before a barrier.  Loops stay loops: this code runs once, and
// fetching it takes longer than running it.
__device__ void choose(const Routing& routing, int row, int lane, std::uint32_t* keys,
                       std::uint16_t* chosen) {
    const float* const parts = logits_of(routing, row);
    Candidate own = best_of(keys, routing.experts, lane);
    int own_choice = 0;  // lane j's is the j-th
#pragma unroll 1
    for (int j = 0; j < routing.chosen; ++j) {
        const std::uint32_t top = __reduce_max_sync(full_warp, own.key);
        const int expert = static_cast<int>(__reduce_min_sync(
            full_warp, static_cast<unsigned>(own.key == top ? own.expert : most_experts)));
        if (lane == j) own_choice = expert;
        if (expert % 32 == lane) {
            keys[expert] = 0u;
            own = best_of(keys, routing.experts, lane);
        }
    }
    // The scores' sum, in the order of the choices.
    const bool chooses = lane < routing.chosen;
    const float score = chooses ? score_of(routing, parts, own_choice) : 0.0f;
    float sum = 1e-20f;
#pragma unroll 1
    for (int j = 0; j < routing.chosen; ++j)
        sum += __shfl_sync(full_warp, score, j);
    if (chooses) {
        chosen[lane] = static_cast<std::uint16_t>(own_choice);
        const int pair = row * routing.chosen + lane;
        routing.choice.experts[pair] = static_cast<std::uint32_t>(own_choice);
        routing.choice.weights[pair] = routing.scale * (routing.normalise ? score / sum : score);
    }
}

// At most expert_group_rows rows: a warp a row chooses, and no expert has more pairs than rows, so
// that every touched expert is one group.
__global__ void __launch_bounds__(few_threads)
    choose_few_kernel(const __grid_constant__ Routing routing) {
    constexpr int most_pairs = expert_group_rows * most_chosen;
    __shared__ std::uint16_t chosen[most_pairs], order[most_pairs];
    __shared__ std::int32_t firsts[few_threads / 32];  // pairs of a warp's that begin a group
    extern __shared__ std::uint32_t keys[];            // [warps][experts]
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int pairs = routing.rows * routing.chosen;
    prefetch(routing.bias, routing.experts * 4, thread, few_threads);
    // 2^32 / experts, rounded up: exact for all rows' experts.
    const std::uint32_t per_row = 0xffffffffu / static_cast<std::uint32_t>(routing.experts) + 1u;
    wait_for_previous_kernel();
    let_next_kernel_start();
    // By all threads, so that a single row's logits are waited for once.
#pragma unroll 4
    for (int i = thread; i < routing.rows * routing.experts; i += few_threads) {
        const int row = static_cast<int>(__umulhi(static_cast<std::uint32_t>(i), per_row));
        keys[i] = key_of(routing, row, i - row * routing.experts);
    }
    __syncthreads();
    if (warp < routing.rows)
        choose(routing, warp, lane, keys + warp * routing.experts, chosen + warp * routing.chosen);
    __syncthreads();
    // By expert, and a row's before the next one's.
    if (thread < pairs) {
        const int expert = chosen[thread];
        int place = 0;
#pragma unroll 4
        for (int other = 0; other < pairs; ++other) {
            const int theirs = chosen[other];
            place += theirs < expert || (theirs == expert && other < thread);
        }
        order[place] = static_cast<std::uint16_t>(thread);
        routing.choice.pair_order[place] = static_cast<std::uint32_t>(thread);
    }
    __syncthreads();
    const auto expert_at = [&](int place) { return static_cast<int>(chosen[order[place]]); };
    const bool first =
        thread < pairs && (thread == 0 || expert_at(thread) != expert_at(thread - 1));
    const std::uint32_t own_firsts = __ballot_sync(full_warp, first);
    if (lane == 0) firsts[warp] = __popc(own_firsts);
    __syncthreads();
    if (first) {
        int group = __popc(own_firsts & ((1u << lane) - 1u)), count = 1;
#pragma unroll 1
        for (int before = 0; before < warp; ++before)
            group += firsts[before];
        const int expert = expert_at(thread);
#pragma unroll 1
        while (thread + count < pairs && expert_at(thread + count) == expert)
            ++count;
        routing.choice.groups[group] = {expert, thread, count};
    }
    if (thread == 0) {
        int groups = 0;
#pragma unroll
        for (int w = 0; w < few_threads / 32; ++w)
            groups += firsts[w];
        *routing.choice.group_count = groups;
        if (routing.choice.touched != nullptr) *routing.choice.touched = groups;
    }
}

// The choices of many rows, a warp a row.
__global__ void __launch_bounds__(few_threads)
    choose_rows_kernel(const __grid_constant__ Routing routing) {
    __shared__ std::uint16_t chosen[few_threads / 32][most_chosen];
    extern __shared__ std::uint32_t keys[];  // [warps][experts]
    prefetch(routing.bias, routing.experts * 4, threadIdx.x, few_threads);
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = static_cast<int>(blockIdx.x) * (few_threads / 32) + warp;
    if (row >= routing.rows) return;
    std::uint32_t* const own = keys + warp * routing.experts;
#pragma unroll 4
    for (int i = lane; i < routing.experts; i += 32)
        own[i] = key_of(routing, row, i);
    choose(routing, row, lane, own, chosen[warp]);
}

// Their pairs, grouped by expert.
__global__ void __launch_bounds__(group_threads)
    group_kernel(const __grid_constant__ Routing routing) {
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
    for (int pair = threadIdx.x; pair < pairs; pair += group_threads)
        chosen[pair] = static_cast<std::uint16_t>(routing.choice.experts[pair]);
    __syncthreads();
    for (int pair = threadIdx.x; pair < pairs; pair += group_threads)
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
#pragma unroll 1
        for (int w = 0; w < warp; ++w) {
            first_pair += warp_pairs[w];
            first_group += warp_groups[w];
        }
        // Every chosen expert's thread reads the choices in order until it has its own.
        std::int32_t found = 0;
#pragma unroll 1
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
#pragma unroll 1
        for (int w = 0; w < expert_warps; ++w)
            groups += warp_groups[w];
        *routing.choice.group_count = groups;
        if (routing.choice.touched != nullptr) *routing.choice.touched = touched;
    }
}

std::size_t bytes_of_keys(const Routing& routing) {
    return static_cast<std::size_t>(few_threads / 32) * routing.experts * sizeof(std::uint32_t);
}

}  // namespace

Status choose_experts(const Routing& routing, const LaunchContext& context) {
    constexpr int rows_a_block = few_threads / 32;
    return launch("launching the router's choice", choose_rows_kernel,
                  {dim3((routing.rows + rows_a_block - 1) / rows_a_block), few_threads,
                   bytes_of_keys(routing)},
                  context, routing);
}

Status route(const Routing& routing, const LaunchContext& context) {
    if (routing.rows > most_rows || routing.experts < 2 || routing.experts > most_experts ||
        routing.chosen > most_chosen || routing.hidden % block_columns != 0)
        return Error(
            ErrorCode::unsupported,
            "the CUDA router takes at most 512 rows, 2 to 512 experts and 16 choices, and a "
            "hidden size of a multiple of 128");
    FewRowProduct product;
    product.weight = routing.weight;
    product.x = routing.x;
    product.x_stride = routing.hidden;
    product.y = routing.logits;
    product.y_stride = routing.experts;
    PERCHERON_TRY(few_row_gemm({&product, 1}, routing.rows * row_parts, 0.0f, context));
    if (routing.rows <= expert_group_rows)
        return launch("launching the router's choice", choose_few_kernel,
                      {dim3(1), few_threads, bytes_of_keys(routing)}, context, routing);
    PERCHERON_TRY(choose_experts(routing, context));
    return launch("launching the experts' grouping", group_kernel, {dim3(1), group_threads, 0},
                  context, routing);
}

}  // namespace percheron::ops::cuda
