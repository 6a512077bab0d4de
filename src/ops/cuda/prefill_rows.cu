#include "ops/cuda/device.cuh"
#include "ops/cuda/prefill_rows.h"

namespace percheron::ops::cuda {
namespace {

constexpr int order_threads = 256;
constexpr int group_threads = 1024;
constexpr int most_experts = 512;

__device__ void swap_with(std::uint32_t& low, std::uint32_t& high, int lane, int distance) {
    // The upper lane's `low` for the lower lane's `high`.
    const bool upper = lane & distance;
    const std::uint32_t got = __shfl_xor_sync(full_warp, upper ? low : high, distance);
    (upper ? low : high) = got;
}

// Four lanes have 32 columns of a row: they come as 8 columns a lane, four pairs, and leave as four
// lanes' pairs of one number.
__global__ void __launch_bounds__(order_threads)
    order_kernel(const __grid_constant__ OrderedRows op, std::size_t count) {
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int lane = threadIdx.x % 32, pieces = op.columns / 8;
    const std::size_t stride = static_cast<std::size_t>(gridDim.x) * order_threads;
    // Whole warps, so that lanes meet: pieces come in fours, and what lies past the end is not
    // stored.
    for (std::size_t first =
             blockIdx.x * static_cast<std::size_t>(order_threads) + threadIdx.x / 32 * 32;
         first < count; first += stride) {
        const std::size_t index = first + lane < count ? first + lane : count - 1;
        std::size_t row = index / pieces;
        const int piece = static_cast<int>(index - row * pieces);
        const std::size_t to = row;
        if (op.pair_order != nullptr) row = op.pair_order[row] / op.pairs_per_row;
        const uint4 in = load_16(op.x + row * op.x_stride + piece * 8);
        std::uint32_t w[4] = {in.x, in.y, in.z, in.w};
        swap_with(w[0], w[1], lane, 1);
        swap_with(w[2], w[3], lane, 1);
        swap_with(w[0], w[2], lane, 2);
        swap_with(w[1], w[3], lane, 2);
        if (first + lane < count)
            *reinterpret_cast<uint4*>(op.out + to * op.columns + piece * 8) =
                make_uint4(w[0], w[1], w[2], w[3]);
    }
}

// A block an expert: it counts all experts' pairs, so that it knows where its own begin, and lists
// its own, every thread those of a run of pairs.
__global__ void __launch_bounds__(group_threads)
    group_kernel(const __grid_constant__ PairGrouping op) {
    __shared__ std::int32_t counts[most_experts];
    __shared__ std::int32_t warp_sums[group_threads / 32];
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const auto expert = static_cast<std::uint32_t>(blockIdx.x);
    if (thread < most_experts) counts[thread] = 0;
    wait_for_previous_kernel();
    let_next_kernel_start();
    __syncthreads();
    const int run = (op.pairs + group_threads - 1) / group_threads;
    const int begin = min(thread * run, op.pairs), end = min(begin + run, op.pairs);
    std::int32_t own = 0;
    for (int pair = begin; pair < end; ++pair)
        own += op.chosen[pair] == expert;
    for (int pair = thread; pair < op.pairs; pair += group_threads)
        atomicAdd(&counts[op.chosen[pair]], 1);
    // This thread's place among its expert's pairs.
    std::int32_t place = own;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const std::int32_t before = __shfl_up_sync(full_warp, place, offset);
        if (lane >= offset) place += before;
    }
    if (lane == 31) warp_sums[warp] = place;
    place -= own;
    __syncthreads();
    for (int w = 0; w < warp; ++w)
        place += warp_sums[w];
    std::int32_t first = 0, group = 0, groups = 0, touched = 0;
    for (int e = 0; e < op.experts; ++e) {
        const std::int32_t of_expert = (counts[e] + op.group_rows - 1) / op.group_rows;
        if (e < static_cast<int>(expert)) {
            first += counts[e];
            group += of_expert;
        }
        groups += of_expert;
        touched += counts[e] > 0;
    }
    for (int pair = begin; pair < end; ++pair) {
        if (op.chosen[pair] == expert)
            op.pair_order[first + place++] = static_cast<std::uint32_t>(pair);
    }
    const std::int32_t count = counts[expert];
    for (int i = thread; i * op.group_rows < count; i += group_threads)
        op.groups[group + i] = {static_cast<std::int32_t>(expert), first + i * op.group_rows,
                                min(count - i * op.group_rows, op.group_rows)};
    if (expert == 0 && thread == 0) {
        *op.group_count = groups;
        if (op.touched != nullptr) *op.touched = touched;
    }
}

}  // namespace

Status order_rows(const OrderedRows& op, const LaunchContext& context) {
    if (op.columns % 32 != 0 || op.x_stride % 8 != 0)
        return Error(ErrorCode::invalid_argument,
                     "rows are ordered by 32 columns, and start on 16 bytes");
    const std::size_t count = static_cast<std::size_t>(op.rows) * (op.columns / 8);
    if (count == 0) return {};
    const std::size_t blocks =
        std::min<std::size_t>((count + order_threads - 1) / order_threads,
                              static_cast<std::size_t>(context.multiprocessors) * 8);
    return launch("launching the order of rows", order_kernel,
                  {dim3(static_cast<unsigned>(blocks)), order_threads, 0}, context, op, count);
}

Status group_pairs(const PairGrouping& op, const LaunchContext& context) {
    if (op.experts > most_experts)
        return Error(ErrorCode::unsupported, "pairs are grouped for at most 512 experts");
    return launch("launching the experts' grouping", group_kernel,
                  {dim3(static_cast<unsigned>(op.experts)), group_threads, 0}, context, op);
}

}  // namespace percheron::ops::cuda
