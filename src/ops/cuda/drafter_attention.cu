#include <cuda_fp8.h>

#include "ops/cuda/device.cuh"
#include "ops/cuda/drafter_attention.h"

namespace percheron::ops::cuda {
namespace {

constexpr int warps = 8;
constexpr int threads = warps * 32;
constexpr int queries_a_warp = most_block_queries / warps;
constexpr int tile = 32;  // keys, one a lane
constexpr int least_part = 256;

// What a block sees of its context, cut into parts.
struct Parts {
    std::uint32_t first, end;  // positions, the first of a page
    std::uint32_t length;      // of a part, but for the last
    std::uint32_t count;
};

__device__ Parts parts_of(const DeviceDraftRows& block, std::uint32_t window) {
    const std::uint32_t here = block.first_position;
    std::uint32_t first = block.begin;
    if (window > 0 && here >= window && here - window + 1 > first) first = here - window + 1;
    first -= first % page_tokens;
    const std::uint32_t end = min(block.end, here);
    const std::uint32_t seen = end > first ? end - first : 0;
    const std::uint32_t wanted =
        min(static_cast<std::uint32_t>(most_context_parts), (seen + least_part - 1) / least_part);
    if (wanted == 0) return {first, end, 0, 0};
    const std::uint32_t length =
        ((seen + wanted - 1) / wanted + page_tokens - 1) / page_tokens * page_tokens;
    return {first, end, length, (seen + length - 1) / length};
}

__device__ float warp_largest(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        value = fmaxf(value, __shfl_xor_sync(full_warp, value, offset));
    return value;
}

__device__ float stored(const void* page, DType dtype, std::size_t index) {
    if (dtype == DType::f8_e4m3) {
        __nv_fp8_e4m3 code;
        code.__x = static_cast<const std::uint8_t*>(page)[index];
        return static_cast<float>(code);
    }
    return __bfloat162float(static_cast<const __nv_bfloat16*>(page)[index]);
}

// Block (part, kv head, drafter's block); part most_context_parts: the block's own keys.
template <int dim>
__global__ void __launch_bounds__(threads)
    part_kernel(const __grid_constant__ DrafterAttention op) {
    constexpr int values_a_lane = dim / 32;
    extern __shared__ float shared[];
    float* const keys = shared;                     // [tile][dim + 1]
    float* const values = keys + tile * (dim + 1);  // [tile][dim]
    float* const queries = values + tile * dim;     // [queries][dim]
    const DeviceDraftRows& block = op.table.run[blockIdx.z];
    const int kv_head = blockIdx.y, kv_heads = static_cast<int>(op.pages.heads);
    const int group = op.heads / kv_heads;
    const bool own = blockIdx.x == most_context_parts;
    std::uint32_t from = 0, to = block.row_count;
    if (!own) {
        const Parts parts = parts_of(block, op.window);
        if (blockIdx.x >= parts.count) return;
        from = parts.first + blockIdx.x * parts.length;
        to = min(from + parts.length, parts.end);
    }
    const int count = static_cast<int>(block.row_count) * group;
    for (int i = threadIdx.x; i < count * dim; i += threads) {
        const std::size_t row = block.first_row + i / (group * dim);
        const int head = kv_head * group + i / dim % group;
        queries[i] = __bfloat162float(op.query[(row * op.heads + head) * dim + i % dim]);
    }
    const float scale = rsqrtf(static_cast<float>(dim));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float largest[queries_a_warp], total[queries_a_warp], sum[queries_a_warp][values_a_lane];
#pragma unroll
    for (int k = 0; k < queries_a_warp; ++k) {
        largest[k] = -INFINITY;
        total[k] = 0.0f;
#pragma unroll
        for (int j = 0; j < values_a_lane; ++j)
            sum[k][j] = 0.0f;
    }
    for (std::uint32_t base = from; base < to; base += tile) {
        __syncthreads();
        for (int i = threadIdx.x; i < tile * dim; i += threads) {
            const std::uint32_t s = base + i / dim;
            const int d = i % dim;
            float key = 0.0f, value = 0.0f;
            if (s < to && own) {
                const std::size_t at =
                    (static_cast<std::size_t>(block.first_row + s) * kv_heads + kv_head) * dim + d;
                key = __bfloat162float(op.key[at]);
                value = __bfloat162float(op.value[at]);
            } else if (s < to) {
                const std::uint32_t id =
                    op.table.pages[block.first_page + s / page_tokens - block.begin / page_tokens];
                const void* const page =
                    static_cast<const std::byte*>(op.pages.data) + id * op.pages.page_bytes;
                const std::size_t place = s % page_tokens * dim + d;
                key = stored(page, op.pages.dtype,
                             static_cast<std::size_t>(kv_head) * page_tokens * dim + place);
                value = stored(
                    page, op.pages.dtype,
                    static_cast<std::size_t>(kv_heads + kv_head) * page_tokens * dim + place);
            }
            keys[i / dim * (dim + 1) + d] = key;
            values[i] = value;
        }
        __syncthreads();
        const std::uint32_t s = base + lane;
        const std::uint32_t key_position = own ? block.first_position + s : s;
#pragma unroll
        for (int k = 0; k < queries_a_warp; ++k) {
            const int query = warp + k * warps;
            if (query >= count) continue;
            const std::uint32_t position = block.first_position + query / group;
            const std::uint32_t apart =
                position > key_position ? position - key_position : key_position - position;
            // Positions in front of what the context holds lie in its first page all the same.
            const bool seen =
                s < to && (own || s >= block.begin) && (op.window == 0 || apart < op.window);
            float score = 0.0f;
            for (int d = 0; d < dim; ++d)
                score = fmaf(queries[query * dim + d], keys[lane * (dim + 1) + d], score);
            score = seen ? score * scale : -INFINITY;
            const float now = fmaxf(largest[k], warp_largest(score));
            if (now == -INFINITY) continue;
            const float kept = expf(largest[k] - now), weight = expf(score - now);
            largest[k] = now;
            total[k] = total[k] * kept + warp_sum(weight);
#pragma unroll
            for (int j = 0; j < values_a_lane; ++j)
                sum[k][j] *= kept;
            for (int other = 0; other < tile; ++other) {
                const float share = __shfl_sync(full_warp, weight, other);
#pragma unroll
                for (int j = 0; j < values_a_lane; ++j)
                    sum[k][j] = fmaf(share, values[other * dim + lane + 32 * j], sum[k][j]);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < queries_a_warp; ++k) {
        const int query = warp + k * warps;
        if (query >= count) continue;
        const std::size_t row = block.first_row + query / group;
        const std::size_t head = kv_head * group + query % group;
        float* const out =
            op.partial +
            ((static_cast<std::size_t>(blockIdx.x) * op.table.rows + row) * op.heads + head) *
                (dim + 2);
        if (lane == 0) {
            out[0] = largest[k];
            out[1] = total[k];
        }
#pragma unroll
        for (int j = 0; j < values_a_lane; ++j)
            out[2 + lane + 32 * j] = sum[k][j];
    }
}

// Block (row, head), a thread a value.
__global__ void sum_kernel(const __grid_constant__ DrafterAttention op) {
    const int dim = static_cast<int>(op.pages.dim);
    const std::size_t row = blockIdx.x, head = blockIdx.y;
    const DeviceDraftRows& block = op.table.run[op.table.run_of_row[row]];
    const int context = static_cast<int>(parts_of(block, op.window).count);
    const auto part = [&](int i) {
        const std::size_t at = i < context ? i : most_context_parts;
        return op.partial + ((at * op.table.rows + row) * op.heads + head) * (dim + 2);
    };
    float largest = -INFINITY;
    for (int i = 0; i <= context; ++i)
        largest = fmaxf(largest, part(i)[0]);
    float total = 0.0f, sum = 0.0f;
    for (int i = 0; i <= context; ++i) {
        const float share = expf(part(i)[0] - largest);
        total = fmaf(share, part(i)[1], total);
        sum = fmaf(share, part(i)[2 + threadIdx.x], sum);
    }
    op.attended[(row * op.heads + head) * dim + threadIdx.x] = __float2bfloat16_rn(sum / total);
}

template <int dim>
Status launch_parts(const DrafterAttention& op, const LaunchContext& context) {
    const int queries = op.most_rows * op.heads / static_cast<int>(op.pages.heads);
    const std::size_t floats = tile * (2 * dim + 1) + static_cast<std::size_t>(queries) * dim;
    const dim3 grid(most_context_parts + 1, static_cast<unsigned>(op.pages.heads), op.table.runs);
    return launch("launching a drafter's attention", part_kernel<dim>,
                  {grid, threads, floats * sizeof(float)}, context, op);
}

}  // namespace

Status attend_block(const DrafterAttention& op, const LaunchContext& context) {
    const int dim = static_cast<int>(op.pages.dim), kv_heads = static_cast<int>(op.pages.heads);
    if ((dim != 64 && dim != 128) || op.heads % kv_heads != 0 ||
        op.most_rows * (op.heads / kv_heads) > most_block_queries ||
        (op.pages.dtype != DType::bf16 && op.pages.dtype != DType::f8_e4m3)) {
        return Error(ErrorCode::invalid_argument,
                     "a drafter's attention of heads of " + std::to_string(dim) + " and " +
                         std::to_string(op.most_rows) + " rows a block is not what it is made for");
    }
    PERCHERON_TRY(dim == 64 ? launch_parts<64>(op, context) : launch_parts<128>(op, context));
    return launch("launching the sums of a drafter's attention", sum_kernel,
                  {dim3(op.table.rows, op.heads), dim, 0}, context, op);
}

}  // namespace percheron::ops::cuda
