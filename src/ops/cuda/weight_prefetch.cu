#include <algorithm>

#include "ops/cuda/weight_prefetch.cuh"
#include "ops/cuda/weight_prefetch.h"

namespace percheron::ops::cuda {
namespace {

constexpr int threads = 128;
constexpr int most_matrices = 3;

struct Prefetch {
    const std::uint8_t* data[most_matrices];
    int blocks[most_matrices];  // of the whole matrix
    int block_bytes[most_matrices];
    int every;
};

__global__ void __launch_bounds__(threads) prefetch_kernel(const __grid_constant__ Prefetch op) {
    const int matrix = blockIdx.y;
    prefetch_block(op.data[matrix], op.block_bytes[matrix], op.blocks[matrix],
                   static_cast<int>(blockIdx.x * threads + threadIdx.x), op.every);
}

}  // namespace

Status prefetch_weights(std::span<const PackedMatrix> matrices, int every,
                        const LaunchContext& context) {
    const int count = static_cast<int>(matrices.size());
    if (count < 1 || count > most_matrices || every < 1)
        return Error(ErrorCode::invalid_argument,
                     "weights of 1 to 3 matrices are prefetched, a block of so many");
    Prefetch op = {};
    int most = 0;
    op.every = every;
    for (int i = 0; i < count; ++i) {
        op.data[i] = matrices[i].data;
        op.block_bytes[i] = block_bytes(matrices[i].format);
        op.blocks[i] = matrices[i].tiles() * matrices[i].blocks();
        most = std::max(most, op.blocks[i]);
    }
    const int pieces = (most + every - 1) / every;
    return launch("prefetching weights", prefetch_kernel,
                  {dim3((pieces + threads - 1) / threads, count), threads, 0}, context, op);
}

}  // namespace percheron::ops::cuda
