#include "cuda/measure.h"

namespace percheron::bench {
namespace {

__device__ std::uint32_t mixed(std::uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

// Without the highest exponent bit of either half every bf16 and fp32 is finite.
__global__ void fill(std::uint32_t* words, std::size_t count) {
    const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
         i += stride)
        words[i] = mixed(static_cast<std::uint32_t>(i)) & 0xbfffbfffu;
}

template <int unroll>
__global__ void __launch_bounds__(512)
    read_all(const uint4* data, std::size_t count, std::uint32_t* sink) {
    const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
    std::uint32_t sum = 0;
    for (; i + (unroll - 1) * stride < count; i += unroll * stride) {
        uint4 v[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            v[u] = __ldcs(data + i + u * stride);
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            sum += v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
    }
    if (sum == 0x12345678u) *sink = sum;
}

__global__ void __launch_bounds__(512) copy_all(const uint4* from, uint4* to, std::size_t count) {
    constexpr int unroll = 4;
    const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
    for (; i + (unroll - 1) * stride < count; i += unroll * stride) {
        uint4 v[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            v[u] = __ldcs(from + i + u * stride);
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            __stcs(to + i + u * stride, v[u]);
    }
}

}  // namespace

RandomMemory::RandomMemory(std::size_t bytes) : memory_((bytes + 15) / 16 * 16) {
    fill<<<1024, 256>>>(reinterpret_cast<std::uint32_t*>(memory_.data()), memory_.size() / 4);
    require(cudaDeviceSynchronize(), "filling memory");
}

double read_ceiling() {
    const std::size_t bytes = std::size_t{4} << 30;
    const RandomMemory memory(bytes);
    const check::OnDevice<std::uint32_t> sink(1);
    double best = 0;
    for (int blocks : {132 * 2, 132 * 3, 132 * 4}) {
        const double us = microseconds(
            1,
            [&](cudaStream_t stream, int) {
                read_all<8><<<blocks, 512, 0, stream>>>(
                    reinterpret_cast<const uint4*>(memory.data()), bytes / 16, sink.data());
            },
            7);
        best = std::max(best, static_cast<double>(bytes) / us / 1e3);
    }
    return best;
}

double copy_rate() {
    const std::size_t bytes = std::size_t{4} << 30;
    const RandomMemory from(bytes);
    check::OnDevice<std::uint8_t> to(bytes);
    const double us = microseconds(
        1,
        [&](cudaStream_t stream, int) {
            copy_all<<<132 * 4, 512, 0, stream>>>(reinterpret_cast<const uint4*>(from.data()),
                                                  reinterpret_cast<uint4*>(to.data()), bytes / 16);
        },
        5);
    return 2.0 * static_cast<double>(bytes) / us / 1e3;
}

}  // namespace percheron::bench
