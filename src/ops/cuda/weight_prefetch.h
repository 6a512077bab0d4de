// Asking for weights before their kernel runs: pieces of a packed matrix on their way to the
// second-level cache, while the memory would rest.
#pragma once

#include <span>

#include "core/status.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/packed_matrix.h"

namespace percheron::ops::cuda {

// Of one to three matrices, every `every`-th block: spread over the matrices, so that
// their product finds something there and has something to ask the memory for at any time.
// Errors: invalid_argument, internal (the launch failed).
Status prefetch_weights(std::span<const PackedMatrix> matrices, int every,
                        const LaunchContext& context);

}  // namespace percheron::ops::cuda
