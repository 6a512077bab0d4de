// CUDA errors as Status.
#pragma once

#include <string>
#include <string_view>

#include <cuda_runtime.h>

#include "core/status.h"

namespace percheron::ops::cuda {

inline Status check(cudaError_t code, std::string_view what) {
    if (code == cudaSuccess) return {};
    const auto kind =
        code == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::internal;
    return Error(kind, std::string(what) + " failed: " + cudaGetErrorString(code) + " (" +
                           cudaGetErrorName(code) + ")");
}

// Whether this build holds code for the current device.
Status check_code(std::string_view device);

}  // namespace percheron::ops::cuda
