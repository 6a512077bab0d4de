#include "ops/cuda/device.cuh"
#include "ops/cuda/sparse_rows.h"
#include "ops/cuda/stored_rows.cuh"

namespace percheron::ops::cuda {
namespace {

constexpr int latent = 512;
constexpr int dim = 128;
constexpr int pool = 4;
constexpr int page_rows = 64;
constexpr int norm_warps = 8;
// One warp more has the indexer's side.
constexpr int threads = (norm_warps + 1) * 32;

__device__ float4 read4(const float* p) {
    return *reinterpret_cast<const float4*>(p);
}

__device__ uint2 as_bf16(float4 v) {
    const __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(v.x, v.y),
                                    __floats2bfloat162_rn(v.z, v.w)};
    return *reinterpret_cast<const uint2*>(pair);
}

// Four channels a lane of an index key and its gate.
struct IndexRow {
    float4 key, gate;
};

// A row's own: the key normalised over its 128 channels.  Not inlined, and loops stay loops: this
// code runs once, and fetching it takes longer than running it.
__device__ __noinline__ IndexRow own_row(const SparseRows& op, std::size_t row, int lane) {
    const float* const from = op.projections + row * op.stride;
    float4 k = read4(from + op.key_at + lane * 4);
    const float mean = warp_sum((k.x + k.y) + (k.z + k.w)) / dim;
    k = make_float4(k.x - mean, k.y - mean, k.z - mean, k.w - mean);
    const float variance = warp_sum((k.x * k.x + k.y * k.y) + (k.z * k.z + k.w * k.w)) / dim;
    const float scale = 1.0f / sqrtf(variance + op.key_eps);
    const float4 weight = read4(op.key_norm + lane * 4), bias = read4(op.key_bias + lane * 4);
    IndexRow result;
    result.key =
        make_float4(fmaf(k.x * scale, weight.x, bias.x), fmaf(k.y * scale, weight.y, bias.y),
                    fmaf(k.z * scale, weight.z, bias.z), fmaf(k.w * scale, weight.w, bias.w));
    result.gate = read4(from + op.gate_at + lane * 4);
    return result;
}

__device__ float* tail_of(const SparseRows& op, const DeviceSequence& s, std::uint32_t position) {
    return op.pages.tails + s.slot * op.pages.tail_stride +
           static_cast<std::size_t>(position % op.pages.tail_ring) * 2 * dim;
}

// The pool whose last token is at `last`: rows of the batch, and before them the tail ring.
__device__ IndexRow row_at(const SparseRows& op, const DeviceSequence& s, std::uint32_t position,
                           int lane) {
    if (position >= s.first_position)
        return own_row(op, s.first_row + position - s.first_position, lane);
    const float* const tail = tail_of(op, s, position);
    return {read4(tail + lane * 4), read4(tail + dim + lane * 4)};
}

// One token more of a softmax-weighted sum, channel by channel.
__device__ void add_token(float gate, float key, float& most, float& sum, float& pooled) {
    const float reached = fmaxf(most, gate);
    const float keep = expf(most - reached), weight = expf(gate - reached);
    most = reached;
    sum = fmaf(sum, keep, weight);
    pooled = fmaf(pooled, keep, weight * key);
}

template <bool is_fp8>
__device__ void write_pool(const SparseRows& op, const DeviceSequence& s, std::uint32_t last,
                           int lane) {
    constexpr float none = -INFINITY;
    float4 most = make_float4(none, none, none, none);
    float4 sum = make_float4(0, 0, 0, 0), key = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int j = 0; j < pool; ++j) {
        const IndexRow row = row_at(op, s, last - (pool - 1) + j, lane);
        const float4 ape = read4(op.ape + j * dim + lane * 4);
        add_token(row.gate.x + ape.x, row.key.x, most.x, sum.x, key.x);
        add_token(row.gate.y + ape.y, row.key.y, most.y, sum.y, key.y);
        add_token(row.gate.z + ape.z, row.key.z, most.z, sum.z, key.z);
        add_token(row.gate.w + ape.w, row.key.w, most.w, sum.w, key.w);
    }
    key = make_float4(key.x / sum.x, key.y / sum.y, key.z / sum.z, key.w / sum.w);
    const std::uint32_t page = op.batch.pages[s.first_page + last / page_rows];
    char* const share = static_cast<char*>(op.pages.pooled) + page * op.pages.pooled_page_bytes;
    const std::uint32_t place = last % page_rows / pool;
    if constexpr (is_fp8) {
        const std::uint32_t scale = scale_byte(
            __reduce_max_sync(full_warp, max(max(magnitude_bits(key.x), magnitude_bits(key.y)),
                                             max(magnitude_bits(key.z), magnitude_bits(key.w)))));
        *reinterpret_cast<std::uint32_t*>(share + place * dim + lane * 4) =
            row_code(key.x, scale) | row_code(key.y, scale) << 8 | row_code(key.z, scale) << 16 |
            row_code(key.w, scale) << 24;
        if (lane == 0) share[page_rows / pool * dim + place] = static_cast<char>(scale);
    } else {
        *reinterpret_cast<uint2*>(share + place * dim * 2 + lane * 8) = as_bf16(key);
    }
}

template <bool is_fp8>
__device__ void index_side(const SparseRows& op, const DeviceSequence& s, std::uint32_t row,
                           int lane) {
    const std::uint32_t position = s.first_position + (row - s.first_row);
    const std::uint32_t end = s.first_position + s.row_count;
    const bool is_first = row == s.first_row;
    // This row's pool if it lies in the batch, or the one that began before its first row.
    const bool starts_inside = position >= s.first_position + (pool - 1);
    const std::uint32_t begun = s.first_position / pool * pool + pool - 1;
    if (position % pool == pool - 1 && starts_inside)
        write_pool<is_fp8>(op, s, position, lane);
    else if (is_first && begun < end && (s.first_position % pool != 0))
        write_pool<is_fp8>(op, s, begun, lane);
    if (!is_first) return;
    // Every lane reads and writes its own channels of the ring, so no lane overtakes another.
    const std::uint32_t kept = min(s.row_count, op.pages.tail_ring);
#pragma unroll 1
    for (std::uint32_t p = end - kept; p < end; ++p) {
        const IndexRow own = own_row(op, s.first_row + p - s.first_position, lane);
        float* const tail = tail_of(op, s, p);
        *reinterpret_cast<float4*>(tail + lane * 4) = own.key;
        *reinterpret_cast<float4*>(tail + dim + lane * 4) = own.gate;
    }
}

template <bool is_fp8>
__global__ void __launch_bounds__(threads) rows_kernel(const __grid_constant__ SparseRows op) {
    __shared__ float parts[2][norm_warps];
    __shared__ std::uint32_t largest[norm_warps];
    if (op.query_rank > 0) prefetch(op.query_norm, op.query_rank * 4, threadIdx.x, threads);
    prefetch(op.latent_norm, latent * 4, static_cast<int>(threadIdx.x) - 64, threads);
    prefetch(op.key_norm, dim * 4, static_cast<int>(threadIdx.x) - 96, threads);
    prefetch(op.key_bias, dim * 4, static_cast<int>(threadIdx.x) - 128, threads);
    prefetch(op.ape, pool * dim * 4, static_cast<int>(threadIdx.x) - 160, threads);
    wait_for_previous_kernel();
    let_next_kernel_start();
    const std::uint32_t row = blockIdx.x;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const DeviceSequence s = op.batch.sequences[op.batch.sequence_of_row[row]];
    const float* const from = op.projections + static_cast<std::size_t>(row) * op.stride;
    const float* const query = from + op.query_at;
    const float* const own_latent = from + op.latent_at;
    if (warp == norm_warps) {
        index_side<is_fp8>(op, s, row, lane);
    } else {
        float squares[2] = {};
#pragma unroll 6
        for (int i = threadIdx.x; i < op.query_rank; i += norm_warps * 32)
            squares[0] = fmaf(query[i], query[i], squares[0]);
#pragma unroll 6
        for (int i = threadIdx.x; i < latent; i += norm_warps * 32)
            squares[1] = fmaf(own_latent[i], own_latent[i], squares[1]);
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const float sum = warp_sum(squares[part]);
            if (lane == 0) parts[part][warp] = sum;
        }
    }
    __syncthreads();
    if (warp == norm_warps) return;
    float scale[2];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < norm_warps; ++w)
            sum += parts[part][w];
        const float mean = sum / static_cast<float>(part == 0 ? max(op.query_rank, 1) : latent);
        scale[part] = 1.0f / sqrtf(mean + op.eps);
    }
    __nv_bfloat16* const out = op.query + static_cast<std::size_t>(row) * op.query_rank;
#pragma unroll 6
    for (int i = threadIdx.x; i < op.query_rank; i += norm_warps * 32)
        out[i] = __float2bfloat16_rn(query[i] * scale[0] * op.query_norm[i]);
    const std::uint32_t position = s.first_position + (row - s.first_row);
    const std::uint32_t page = op.batch.pages[s.first_page + position / page_rows];
    char* const share = static_cast<char*>(op.pages.latents) + page * op.pages.latent_page_bytes;
    const std::uint32_t place = position % page_rows;
    constexpr int own = latent / (norm_warps * 32);
    float values[own];
#pragma unroll
    for (int j = 0; j < own; ++j) {
        const int i = j * norm_warps * 32 + threadIdx.x;
        values[j] = own_latent[i] * scale[1] * op.latent_norm[i];
    }
    if constexpr (is_fp8) {
        std::uint32_t most = 0;
#pragma unroll
        for (int j = 0; j < own; ++j)
            most = max(most, magnitude_bits(values[j]));
        most = __reduce_max_sync(full_warp, most);
        if (lane == 0) largest[warp] = most;
        // Of these warps alone: the indexer's has left.
        asm volatile("bar.sync 1, %0;" ::"n"(norm_warps * 32) : "memory");
#pragma unroll
        for (int w = 0; w < norm_warps; ++w)
            most = max(most, largest[w]);
        const std::uint32_t row_scale = scale_byte(most);
#pragma unroll
        for (int j = 0; j < own; ++j)
            share[place * latent + j * norm_warps * 32 + threadIdx.x] =
                static_cast<char>(row_code(values[j], row_scale));
        if (threadIdx.x == 0) share[page_rows * latent + place] = static_cast<char>(row_scale);
    } else {
        auto* const home = reinterpret_cast<__nv_bfloat16*>(share) + place * latent;
#pragma unroll
        for (int j = 0; j < own; ++j)
            home[j * norm_warps * 32 + threadIdx.x] = __float2bfloat16_rn(values[j]);
    }
}

}  // namespace

Status sparse_rows(const SparseRows& op, const LaunchContext& context) {
    const DType dtype = op.pages.latent_dtype;
    if ((dtype != DType::bf16 && dtype != DType::f8_e4m3) || op.pages.pooled_dtype != dtype)
        return Error(ErrorCode::unsupported,
                     "CUDA keeps latents and pooled index keys in bf16 or fp8, both alike");
    if (op.stride % 4 != 0 || op.key_at % 4 != 0 || op.gate_at % 4 != 0 ||
        op.pages.tail_stride % 4 != 0)
        return Error(ErrorCode::invalid_argument,
                     "a sparse layer's projections need columns in multiples of 4");
    return launch("launching a sparse layer's rows",
                  dtype == DType::bf16 ? rows_kernel<false> : rows_kernel<true>,
                  {dim3(op.batch.rows), threads, 0}, context, op);
}

}  // namespace percheron::ops::cuda
