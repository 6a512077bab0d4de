#include "ops/cuda/device.cuh"
#include "ops/cuda/few_row_gemm.h"

namespace percheron::ops::cuda {
namespace {

constexpr int threads = 128;

__global__ void __launch_bounds__(threads) sum_kernel(const __grid_constant__ ExpertSum sum) {
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int row = blockIdx.y, i = (blockIdx.x * threads + threadIdx.x) * 4;
    if (i >= sum.hidden) return;
    const float4 total = sum_of_pairs(sum.pairs, row, sum.hidden, i);
    const std::size_t at = static_cast<std::size_t>(row) * sum.hidden + i;
    const float4 shared = *reinterpret_cast<const float4*>(sum.shared + at);
    *reinterpret_cast<float4*>(sum.y + at) =
        make_float4(total.x + shared.x, total.y + shared.y, total.z + shared.z, total.w + shared.w);
}

}  // namespace

Status check_code(std::string_view device) {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, sum_kernel) == cudaSuccess) return {};
    return Error(ErrorCode::unsupported,
                 "this build has no code for " + std::string(device) + " (" +
                     cudaGetErrorString(cudaGetLastError()) +
                     "); build with its compute capability in CMAKE_CUDA_ARCHITECTURES");
}

Status sum_experts(const ExpertSum& sum, const LaunchContext& context) {
    if (sum.hidden % 4 != 0)
        return Error(ErrorCode::unsupported,
                     "summing experts needs a hidden size of a multiple "
                     "of 4");
    return launch("launching the sum of the experts", sum_kernel,
                  {dim3((sum.hidden / 4 + threads - 1) / threads, sum.rows), threads, 0}, context,
                  sum);
}

}  // namespace percheron::ops::cuda
