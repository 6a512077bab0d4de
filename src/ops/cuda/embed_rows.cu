#include <cuda_fp8.h>

#include "ops/cuda/device.cuh"
#include "ops/cuda/embed_rows.h"

namespace percheron::ops::cuda {
namespace {

constexpr int threads = 128;

__device__ float bf16_value(const void* data, std::size_t index) {
    return bf16_low(static_cast<const std::uint16_t*>(data)[index]);
}

__device__ float fp8_value(const void* data, std::size_t index) {
    __nv_fp8_e4m3 value;
    value.__x = static_cast<const std::uint8_t*>(data)[index];
    return static_cast<float>(value);
}

__device__ std::uint32_t nibble(const void* data, std::size_t index) {
    return static_cast<const std::uint8_t*>(data)[index / 2] >> (4 * (index & 1)) & 15u;
}

__device__ float e2m1_value(std::uint32_t code) {
    const std::uint32_t magnitude = code & 7u;
    // 0, 0.5, then 1 m/2 times powers of two.
    const float value = magnitude < 2 ? 0.5f * static_cast<float>(magnitude)
                                      : ldexpf(1.0f + 0.5f * static_cast<float>(magnitude & 1u),
                                               static_cast<int>(magnitude / 2) - 1);
    return code & 8u ? -value : value;
}

// One element as it is stored (ops/weight_matrix.h).
__device__ float stored_value(const WeightMatrix& m, std::size_t row, std::size_t column) {
    const std::size_t index = row * m.k + column;
    switch (m.format) {
        case WeightFormat::bf16:
            return bf16_value(m.data, index);
        case WeightFormat::f32:
            return static_cast<const float*>(m.data)[index];
        case WeightFormat::fp8_block: {
            const std::size_t blocks = (m.k + 127) / 128;
            return fp8_value(m.data, index) *
                   static_cast<const float*>(m.scales)[row / 128 * blocks + column / 128];
        }
        case WeightFormat::w4a16:
            return static_cast<float>(static_cast<int>(nibble(m.data, index)) - 8) *
                   bf16_value(m.scales, row * (m.k / 128) + column / 128);
        case WeightFormat::nvfp4:
            return e2m1_value(nibble(m.data, index)) *
                   (fp8_value(m.scales, row * (m.k / 16) + column / 16) * m.global_scale);
    }
    return 0.0f;
}

__global__ void __launch_bounds__(threads) embed_kernel(const __grid_constant__ Embedding op) {
    wait_for_previous_kernel();
    let_next_kernel_start();
    const std::size_t row = blockIdx.y, column = blockIdx.x * threads + threadIdx.x;
    if (column >= op.table.k) return;
    const float value = stored_value(op.table, op.tokens[row], column);
    for (int stream = 0; stream < op.streams; ++stream)
        op.out[(row * op.streams + stream) * op.table.k + column] = value;
}

__global__ void __launch_bounds__(threads)
    split_kernel(const float* in, int columns, __nv_bfloat16* out, __nv_bfloat16* raised) {
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int column = (blockIdx.x * threads + threadIdx.x) * 4;
    if (column >= columns) return;
    const std::size_t row = blockIdx.y;
    write_parts(*reinterpret_cast<const float4*>(in + row * columns + column),
                out + row * row_parts * columns + column, columns,
                raised == nullptr ? nullptr : raised + row * columns + column);
}

__global__ void __launch_bounds__(threads)
    gather_kernel(const uint4* in, int stride, const std::uint32_t* rows, int pieces, uint4* out) {
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int piece = blockIdx.x * threads + threadIdx.x;
    if (piece >= pieces) return;
    const std::size_t from = rows[blockIdx.y];
    out[blockIdx.y * static_cast<std::size_t>(pieces) + piece] =
        load_16(in + from * stride + piece);
}

unsigned blocks_of(std::size_t count) {
    return static_cast<unsigned>((count + threads - 1) / threads);
}

}  // namespace

Status embed_rows(const Embedding& op, const LaunchContext& context) {
    return launch("launching the embedding", embed_kernel,
                  {dim3(blocks_of(op.table.k), op.rows), threads, 0}, context, op);
}

Status split_rows(const float* in, int rows, int columns, __nv_bfloat16* out, __nv_bfloat16* raised,
                  const LaunchContext& context) {
    if (columns % 4 != 0)
        return Error(ErrorCode::invalid_argument, "split rows need a multiple of 4 columns");
    return launch("launching the splitting of rows", split_kernel,
                  {dim3(blocks_of(columns / 4), rows), threads, 0}, context, in, columns, out,
                  raised);
}

Status gather_rows(const __nv_bfloat16* in, int stride, const std::uint32_t* rows, int count,
                   int columns, __nv_bfloat16* out, const LaunchContext& context) {
    if (columns % 8 != 0 || stride % 8 != 0)
        return Error(ErrorCode::invalid_argument, "gathered rows need a multiple of 8 columns");
    return launch("launching the gathering of rows", gather_kernel,
                  {dim3(blocks_of(columns / 8), count), threads, 0}, context,
                  reinterpret_cast<const uint4*>(in), stride / 8, rows, columns / 8,
                  reinterpret_cast<uint4*>(out));
}

}  // namespace percheron::ops::cuda
