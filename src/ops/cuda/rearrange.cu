#include <cstdint>

#include "ops/cuda/device_error.h"
#include "ops/cuda/rearrange.h"

namespace percheron::ops::cuda {
namespace {

template <class T>
__global__ void split_kernel(const T* whole, HeadShape shape, T* keys, T* values) {
    const std::size_t rows = shape.keys + shape.values;
    const std::size_t count = shape.heads * rows * shape.latent;
    const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
         i += stride) {
        const std::size_t column = i % shape.latent, row = i / shape.latent % rows;
        const std::size_t head = i / shape.latent / rows;
        if (row < static_cast<std::size_t>(shape.keys))
            keys[(head * shape.latent + column) * shape.keys + row] = whole[i];
        else
            values[(head * shape.values + row - shape.keys) * shape.latent + column] = whole[i];
    }
}

}  // namespace

Status split_heads(const void* whole, const HeadShape& shape, std::size_t element, void* keys_out,
                   void* values_out, cudaStream_t stream) {
    const auto run = [&]<class T>(T) {
        split_kernel<<<1024, 256, 0, stream>>>(static_cast<const T*>(whole), shape,
                                               static_cast<T*>(keys_out),
                                               static_cast<T*>(values_out));
    };
    if (element == 1) run(std::uint8_t{});
    if (element == 2) run(std::uint16_t{});
    if (element == 4) run(std::uint32_t{});
    return check(cudaGetLastError(), "cutting kv_b into heads");
}

}  // namespace percheron::ops::cuda
