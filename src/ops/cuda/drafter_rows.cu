#include <cuda_fp8.h>

#include "ops/cuda/device.cuh"
#include "ops/cuda/drafter_rows.h"

namespace percheron::ops::cuda {
namespace {

constexpr int warps = 8;
constexpr int threads = warps * 32;
constexpr int head_warps = 4;
constexpr int head_threads = head_warps * 32;
constexpr int largest_dim = 256;

__device__ float4 read4(const float* from) {
    return *reinterpret_cast<const float4*>(from);
}

__device__ void write_rounded(float4 v, __nv_bfloat16* to) {
    const __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(v.x, v.y),
                                    __floats2bfloat162_rn(v.z, v.w)};
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(pair);
}

__device__ std::uint32_t position_of(const DraftTable& table, std::uint32_t row) {
    const DeviceDraftRows& run = table.run[table.run_of_row[row]];
    return run.first_position + (row - run.first_row);
}

__global__ void __launch_bounds__(threads) join_kernel(const __grid_constant__ JoinedTaps op) {
    const std::size_t row = blockIdx.x, tap = blockIdx.y;
    const float* const in = op.tap[tap] + static_cast<std::size_t>(op.tap_rows[row]) * op.columns;
    __nv_bfloat16* const out = op.joined + (row * op.taps + tap) * op.columns;
    for (int i = threadIdx.x * 4; i < op.columns; i += threads * 4)
        write_rounded(read4(in + i), out + i);
}

__global__ void __launch_bounds__(threads) norm_kernel(const __grid_constant__ NormedRows op) {
    __shared__ float sums[warps];
    const std::size_t at = static_cast<std::size_t>(blockIdx.x) * op.columns;
    float scale = 1.0f;
    if (op.norm != nullptr) {
        float squares = 0.0f;
        for (int i = threadIdx.x * 4; i < op.columns; i += threads * 4) {
            const float4 v = read4(op.in + at + i);
            squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        }
        const float mean = block_sum(squares, sums) / static_cast<float>(op.columns);
        scale = 1.0f / sqrtf(mean + op.eps);
    }
    for (int i = threadIdx.x * 4; i < op.columns; i += threads * 4) {
        float4 v = read4(op.in + at + i);
        if (op.norm != nullptr) {
            const float4 w = read4(op.norm + i);
            v = make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z,
                            v.w * scale * w.w);
        }
        if (op.out != nullptr) *reinterpret_cast<float4*>(op.out + at + i) = v;
        if (op.rounded != nullptr) write_rounded(v, op.rounded + at + i);
    }
}

__global__ void __launch_bounds__(head_threads)
    angles_kernel(const __grid_constant__ DraftTable table, int dim, double theta, float* angles) {
    const std::uint32_t row = blockIdx.x;
    const double position = position_of(table, row);
    const int half = dim / 2;
    for (int j = threadIdx.x; j < half; j += head_threads) {
        const double angle =
            position * pow(theta, -static_cast<double>(j) / static_cast<double>(half));
        float* const out = angles + static_cast<std::size_t>(row) * dim;
        out[j] = static_cast<float>(cos(angle));
        out[j + half] = static_cast<float>(sin(angle));
    }
}

// A head's row, normalised and turned, in shared memory.  All threads of the block.
__device__ void turn_head(const float* in, const float* norm, const float* angles, float eps,
                          int dim, float* out, float (&sums)[head_warps]) {
    float squares = 0.0f;
    for (int i = threadIdx.x; i < dim; i += head_threads)
        squares += in[i] * in[i];
    const float scale = 1.0f / sqrtf(block_sum(squares, sums) / static_cast<float>(dim) + eps);
    const int half = dim / 2;
    for (int j = threadIdx.x; j < half; j += head_threads) {
        const float a = in[j] * scale * norm[j], b = in[j + half] * scale * norm[j + half];
        out[j] = a * angles[j] - b * angles[j + half];
        out[j + half] = b * angles[j] + a * angles[j + half];
    }
    __syncthreads();
}

__device__ void store(void* page, DType dtype, std::size_t index, float value) {
    if (dtype == DType::f8_e4m3) {
        static_cast<std::uint8_t*>(page)[index] =
            __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
    } else {
        static_cast<__nv_bfloat16*>(page)[index] = __float2bfloat16_rn(value);
    }
}

__global__ void __launch_bounds__(head_threads)
    store_kernel(const __grid_constant__ StoredContext op) {
    __shared__ float sums[head_warps];
    __shared__ float turned[largest_dim];
    const std::uint32_t row = blockIdx.x;
    const std::size_t head = blockIdx.y;
    const int dim = static_cast<int>(op.pages.dim);
    const DeviceDraftRows& run = op.table.run[op.table.run_of_row[row]];
    const std::uint32_t position = run.first_position + (row - run.first_row);
    const std::uint32_t id =
        op.table.pages[run.first_page + position / page_tokens - run.begin / page_tokens];
    void* const page = static_cast<std::byte*>(op.pages.data) + id * op.pages.page_bytes;
    const std::size_t from = (row * op.pages.heads + head) * dim;
    turn_head(op.keys + from, op.norm, op.angles + static_cast<std::size_t>(row) * dim, op.eps, dim,
              turned, sums);
    const std::size_t place = position % page_tokens * dim;
    const std::size_t keys_at = head * page_tokens * dim + place;
    const std::size_t values_at = (op.pages.heads + head) * page_tokens * dim + place;
    for (int i = threadIdx.x; i < dim; i += head_threads) {
        store(page, op.pages.dtype, keys_at + i, turned[i]);
        store(page, op.pages.dtype, values_at + i, op.values[from + i]);
    }
}

// Block (row, head): queries' heads, then keys', then values'.
__global__ void __launch_bounds__(head_threads) turn_kernel(const __grid_constant__ BlockHeads op) {
    __shared__ float sums[head_warps];
    __shared__ float turned[largest_dim];
    const std::size_t row = blockIdx.x;
    const int dim = op.dim, head = blockIdx.y;
    const float* const angles = op.angles + row * dim;
    const bool query = head < op.heads;
    const int kv_head = head - op.heads;
    if (kv_head >= op.kv_heads) {
        const std::size_t at = (row * op.kv_heads + kv_head - op.kv_heads) * dim;
        for (int i = threadIdx.x; i < dim; i += head_threads)
            op.rounded_value[at + i] = __float2bfloat16_rn(op.value[at + i]);
        return;
    }
    const std::size_t at =
        query ? (row * op.heads + head) * dim : (row * op.kv_heads + kv_head) * dim;
    turn_head((query ? op.query : op.key) + at, query ? op.query_norm : op.key_norm, angles, op.eps,
              dim, turned, sums);
    __nv_bfloat16* const out = (query ? op.turned_query : op.turned_key) + at;
    for (int i = threadIdx.x; i < dim; i += head_threads)
        out[i] = __float2bfloat16_rn(turned[i]);
}

__global__ void __launch_bounds__(threads)
    mask_kernel(const __grid_constant__ DraftTable table, int columns, const float* mask,
                float scale, float* x) {
    const std::uint32_t row = blockIdx.x;
    const bool masked = mask != nullptr && row != table.run[table.run_of_row[row]].first_row;
    float* const out = x + static_cast<std::size_t>(row) * columns;
    for (int i = threadIdx.x; i < columns; i += threads)
        out[i] = scale * (masked ? mask[i] : out[i]);
}

__global__ void __launch_bounds__(threads)
    convolve_kernel(const __grid_constant__ ConvolvedRows op) {
    const std::uint32_t row = blockIdx.y;
    const int column = (blockIdx.x * threads + threadIdx.x);
    if (column >= op.columns) return;
    const std::size_t at = static_cast<std::size_t>(row) * op.columns + column;
    float sum = 0.0f;
    if (op.base == nullptr) {
        sum = op.in[at];
    } else {
        const std::uint32_t before = row - op.table.run[op.table.run_of_row[row]].first_row;
        const int groups = op.columns / op.width;
        const float* const gates = op.gates + static_cast<std::size_t>(row) * op.gates_stride;
        for (std::uint32_t tap = 0; tap < static_cast<std::uint32_t>(op.taps) && tap <= before;
             ++tap) {
            const float weight = op.base[static_cast<std::size_t>(tap) * op.columns + column] +
                                 gates[tap * groups + column / op.width];
            sum = fmaf(weight, op.in[at - static_cast<std::size_t>(tap) * op.columns], sum);
        }
    }
    if (op.x != nullptr) op.x[at] += sum;
    if (op.rounded != nullptr) op.rounded[at] = __float2bfloat16_rn(sum);
}

Status check_columns(int columns) {
    if (columns % 4 == 0) return {};
    return Error(ErrorCode::invalid_argument, "a drafter's rows need a multiple of 4 columns");
}

}  // namespace

Status join_taps(const JoinedTaps& op, const LaunchContext& context) {
    PERCHERON_TRY(check_columns(op.columns));
    return launch("launching the joining of taps", join_kernel,
                  {dim3(op.rows, op.taps), threads, 0}, context, op);
}

Status norm_rows(const NormedRows& op, const LaunchContext& context) {
    PERCHERON_TRY(check_columns(op.columns));
    return launch("launching a drafter's norm", norm_kernel, {dim3(op.rows), threads, 0}, context,
                  op);
}

Status rope_angles(const DraftTable& table, int dim, float theta, float* angles,
                   const LaunchContext& context) {
    return launch("launching a drafter's angles", angles_kernel,
                  {dim3(table.rows), head_threads, 0}, context, table, dim,
                  static_cast<double>(theta), angles);
}

Status store_context(const StoredContext& op, const LaunchContext& context) {
    return launch("launching the storing of a drafter's context", store_kernel,
                  {dim3(op.table.rows, static_cast<unsigned>(op.pages.heads)), head_threads, 0},
                  context, op);
}

Status turn_heads(const BlockHeads& op, const LaunchContext& context) {
    return launch("launching the turning of a drafter's heads", turn_kernel,
                  {dim3(op.rows, op.heads + 2 * op.kv_heads), head_threads, 0}, context, op);
}

Status mask_rows(const DraftTable& table, int columns, const float* mask, float scale, float* x,
                 const LaunchContext& context) {
    return launch("launching the masking of a drafter's rows", mask_kernel,
                  {dim3(table.rows), threads, 0}, context, table, columns, mask, scale, x);
}

Status convolve_rows(const ConvolvedRows& op, const LaunchContext& context) {
    const unsigned across = (op.columns + threads - 1) / threads;
    return launch("launching a drafter's convolution", convolve_kernel,
                  {dim3(across, op.table.rows), threads, 0}, context, op);
}

}  // namespace percheron::ops::cuda
