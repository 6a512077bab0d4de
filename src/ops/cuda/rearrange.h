// Cutting kv_b into its heads' keys, transposed, and their values.
#pragma once

#include <cstddef>

#include <cuda_runtime.h>

#include "core/status.h"

namespace percheron::ops::cuda {

struct HeadShape {
    int heads = 0, keys = 0, values = 0, latent = 0;
};

// whole [H * (keys + values), latent], per head its keys' rows first;
// keys_out [H * latent, keys], values_out [H * values, latent].  Elements of 1, 2 or 4 bytes, all
// device memory, nothing overlaps.  Asynchronous.
Status split_heads(const void* whole, const HeadShape& shape, std::size_t element, void* keys_out,
                   void* values_out, cudaStream_t stream);

}  // namespace percheron::ops::cuda
