#include "ops/cuda/device.cuh"
#include "ops/cuda/mtp_rows.h"
#include "ops/cuda/row_parts.h"

namespace percheron::ops::cuda {
namespace {

constexpr int warps = 8;
constexpr int threads = warps * 32;

__device__ float squares_of(float4 v) {
    return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}

__device__ float4 scaled_by(float4 v, float scale, float4 w) {
    return make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
}

__device__ float4 read4(const float* from) {
    return *reinterpret_cast<const float4*>(from);
}

// 1 / RMS of a row from every thread's part of its squares; all threads get it.
__device__ float inverse_rms(float squares, int hidden, float eps, float (&sums)[warps]) {
    return 1.0f / sqrtf(block_sum(squares, sums) / static_cast<float>(hidden) + eps);
}

__global__ void __launch_bounds__(threads) join_kernel(const __grid_constant__ JoinedRows op) {
    __shared__ float sums[2][warps];
    wait_for_previous_kernel();
    let_next_kernel_start();
    const std::size_t row = blockIdx.x;
    const DeviceSequence& sequence = op.batch.sequences[op.batch.sequence_of_row[row]];
    const bool first = sequence.first_position == 0 && sequence.first_row == row;
    const float* const halves[2] = {
        op.embedded + row * op.hidden,
        op.hidden_state + static_cast<std::size_t>(op.hidden_rows[row]) * op.hidden};
    const float* const norms[2] = {op.embedding_norm, op.hidden_norm};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const bool zero = half == 0 && first;
        float squares = 0.0f;
        for (int i = threadIdx.x * 4; i < op.hidden && !zero; i += threads * 4)
            squares += squares_of(read4(halves[half] + i));
        const float scale = inverse_rms(squares, op.hidden, op.eps, sums[half]);
        for (int i = threadIdx.x * 4; i < op.hidden; i += threads * 4) {
            const float4 value = zero ? make_float4(0, 0, 0, 0) : read4(halves[half] + i);
            const float4 v = scaled_by(value, scale, read4(norms[half] + i));
            const __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(v.x, v.y),
                                            __floats2bfloat162_rn(v.z, v.w)};
            *reinterpret_cast<uint2*>(op.joined + (2 * row + half) * op.hidden + i) =
                *reinterpret_cast<const uint2*>(pair);
        }
    }
}

__global__ void __launch_bounds__(threads)
    residual_kernel(const __grid_constant__ ResidualTurn op) {
    __shared__ float sums[warps];
    wait_for_previous_kernel();
    let_next_kernel_start();
    const std::size_t row = blockIdx.x, at = row * op.hidden;
    float squares = 0.0f;
    for (int i = threadIdx.x * 4; i < op.hidden; i += threads * 4) {
        float4 x = read4(op.x + at + i);
        if (op.y != nullptr) {
            float4 y = read4(op.y + at + i);
            if (op.pairs.chosen > 0) {
                const float4 pairs = sum_of_pairs(op.pairs, row, op.hidden, i);
                y = make_float4(pairs.x + y.x, pairs.y + y.y, pairs.z + y.z, pairs.w + y.w);
            }
            x = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
            *reinterpret_cast<float4*>(op.x + at + i) = x;
        }
        squares += squares_of(x);
    }
    const float scale = inverse_rms(squares, op.hidden, op.eps, sums);
    for (int i = threadIdx.x * 4; i < op.hidden; i += threads * 4) {
        const float4 v = scaled_by(read4(op.x + at + i), scale, read4(op.norm + i));
        write_parts(v, op.parts + row * row_parts * op.hidden + i, op.hidden,
                    op.raised == nullptr ? nullptr : op.raised + at + i);
        *reinterpret_cast<float4*>(op.normed + at + i) = v;
    }
}

}  // namespace

Status join_rows(const JoinedRows& op, const LaunchContext& context) {
    if (op.hidden % 4 != 0)
        return Error(ErrorCode::invalid_argument, "joined rows need a multiple of 4 columns");
    return launch("launching the joining of rows", join_kernel, {dim3(op.batch.rows), threads, 0},
                  context, op);
}

Status residual_turn(const ResidualTurn& op, const LaunchContext& context) {
    if (op.hidden % 4 != 0)
        return Error(ErrorCode::invalid_argument, "a residual turn needs a multiple of 4 columns");
    return launch("launching the residual turn", residual_kernel, {dim3(op.rows), threads, 0},
                  context, op);
}

}  // namespace percheron::ops::cuda
