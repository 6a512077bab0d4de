// Starting a kernel: the stream, the programmatic dependence on the kernel before, the error.
#pragma once

#include <string_view>

#include <cuda_runtime.h>

#include "core/status.h"
#include "ops/cuda/device_error.h"

namespace percheron::ops::cuda {

struct LaunchContext {
    cudaStream_t stream = nullptr;
    int multiprocessors = 132;
    bool dependent = false;  // start early and wait for the previous kernel on the device
};

struct LaunchShape {
    dim3 grid;
    int threads = 0;
    std::size_t shared_bytes = 0;
    int cluster = 1;  // thread blocks of a cluster, along the grid's x (sm_90 and later)
};

template <class... Parameters, class... Arguments>
Status launch(std::string_view what, void (*kernel)(Parameters...), const LaunchShape& shape,
              const LaunchContext& context, const Arguments&... arguments) {
    // A kernel's own shared memory counts too for the 48 KB that need no asking.
    if (shape.shared_bytes > 16 * 1024) {
        PERCHERON_TRY(
            check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(shape.shared_bytes)),
                  what));
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = shape.grid;
    config.blockDim = dim3(static_cast<unsigned>(shape.threads));
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = context.stream;
    cudaLaunchAttribute attributes[2] = {};
    config.attrs = attributes;
    if (context.dependent) {
        cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
    }
    if (shape.cluster > 1) {
        cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = static_cast<unsigned>(shape.cluster);
        attribute.val.clusterDim.y = 1;
        attribute.val.clusterDim.z = 1;
    }
    return check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), what);
}

}  // namespace percheron::ops::cuda
