#include "ops/cuda/device.cuh"
#include "ops/cuda/patch_rows.h"

namespace percheron::ops::cuda {
namespace {

constexpr int warps = 8;
constexpr int threads = warps * 32;

__global__ void __launch_bounds__(threads) round_kernel(const __grid_constant__ RoundedRows op) {
    const std::size_t row = blockIdx.x;
    for (int i = threadIdx.x; i < op.out_stride; i += threads)
        op.out[row * op.out_stride + i] =
            __float2bfloat16_rn(i < op.columns ? op.in[row * op.columns + i] : 0.0f);
}

__global__ void __launch_bounds__(threads) update_kernel(const __grid_constant__ UpdatedRows op) {
    __shared__ float sums[warps];
    const std::size_t row = blockIdx.x, at = row * op.columns;
    const auto value_of = [&](int i) {
        if (op.y == nullptr) return op.z[at + i];
        const float v = op.y[at + i] + op.bias[i];
        return op.add ? op.z[at + i] + v : v;
    };
    // In the first pass, which stores what the second one reads; without a z both compute it.
    float squares = 0.0f;
    for (int i = threadIdx.x; i < op.columns; i += threads) {
        const float v = value_of(i);
        if (op.y != nullptr && op.z != nullptr) op.z[at + i] = v;
        squares += v * v;
    }
    if (op.out == nullptr) return;
    float scale = 1.0f;
    if (op.norm != nullptr)
        scale = 1.0f / sqrtf(block_sum(squares, sums) / static_cast<float>(op.columns) + op.eps);
    for (int i = threadIdx.x; i < op.columns; i += threads) {
        const float v = op.z != nullptr ? op.z[at + i] : value_of(i);
        const std::size_t to = (row / op.merged * op.columns + i) * op.merged + row % op.merged;
        op.out[to] = __float2bfloat16_rn(op.norm != nullptr ? v * scale * op.norm[i] : v);
    }
}

__global__ void __launch_bounds__(threads) gate_kernel(const __grid_constant__ GatedRows op) {
    const std::size_t at = static_cast<std::size_t>(blockIdx.x) * op.columns;
    for (int i = threadIdx.x; i < op.columns; i += threads) {
        const float gate = fminf(op.gate[at + i] + op.gate_bias[i], op.limit);
        const float up = fminf(fmaxf(op.up[at + i] + op.up_bias[i], -op.limit), op.limit);
        op.out[at + i] = __float2bfloat16_rn(gate * sigmoid(gate) * up);
    }
}

__global__ void __launch_bounds__(threads) settle_kernel(const __grid_constant__ SettledRows op) {
    __shared__ float sums[2][warps];
    const std::size_t at = static_cast<std::size_t>(blockIdx.x) * op.columns;
    const float count = static_cast<float>(op.columns);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < op.columns; i += threads)
        sum += op.in[at + i];
    const float mean = block_sum(sum, sums[0]) / count;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < op.columns; i += threads) {
        const float d = op.in[at + i] - mean;
        squares += d * d;
    }
    const float scale = 1.0f / sqrtf(block_sum(squares, sums[1]) / count + op.eps);
    for (int i = threadIdx.x; i < op.columns; i += threads) {
        const float x = (op.in[at + i] - mean) * scale * op.weight[i] + op.bias[i];
        constexpr float inverse_root_2 = 0.7071067811865475f;
        op.out[at + i] = __float2bfloat16_rn(0.5f * x * (1.0f + erff(x * inverse_root_2)));
    }
}

}  // namespace

Status round_rows(const RoundedRows& op, const LaunchContext& context) {
    return launch("launching the rounding of patches", round_kernel, {dim3(op.rows), threads, 0},
                  context, op);
}

Status update_rows(const UpdatedRows& op, const LaunchContext& context) {
    return launch("launching the update of patches", update_kernel, {dim3(op.rows), threads, 0},
                  context, op);
}

Status gate_rows(const GatedRows& op, const LaunchContext& context) {
    return launch("launching the gating of patches", gate_kernel, {dim3(op.rows), threads, 0},
                  context, op);
}

Status settle_rows(const SettledRows& op, const LaunchContext& context) {
    return launch("launching the norm of tokens", settle_kernel, {dim3(op.rows), threads, 0},
                  context, op);
}

}  // namespace percheron::ops::cuda
