// The stages on one NVIDIA GPU.  Needs compute capability 9.0 or later and code built for it.
//
// One kernel family computes any number of rows, so that a row's bits do not depend on its
// neighbours, on the chunking of a prompt or on how rows are committed; both numeric classes use
// it.  Matrix products read bf16 rows and weights as stored (bf16, fp8, w4a16, nvfp4; never fp32)
// and sum in fp32; standard arithmetic only.
//
// A step is one upload, its kernels and one download: nothing waits for the host in between.
// Decode steps of a shape seen before are replayed as a CUDA graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "ops/backend.h"

namespace percheron::ops {

struct CudaBackendOptions {
    int device = 0;
    bool graphs = true;  // replay decode steps; off: launch every kernel of every step
    // Blocks of its kernels go before those of others' that wait for a multiprocessor.
    bool goes_first = false;
};

// How many devices the driver shows; 0 without a driver.
int cuda_device_count();

// Errors: not_found (no such device), unsupported (a device this build has no code for),
// out_of_memory, internal with the driver's own name for what went wrong.
Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaBackendOptions& options);

// What the latest steps were like, for benchmarks and for tests of the launch budget.
struct CudaStepFacts {
    std::size_t recorded_kernels = 0;           // of the step recorded last
    std::vector<std::int32_t> touched_experts;  // a layer with experts, of the latest step
};

// Errors: invalid_argument (another backend), internal.
Result<CudaStepFacts> cuda_step_facts(const Backend& backend);

}  // namespace percheron::ops
