// --device: which backend computes.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/status.h"
#include "model/config.h"
#include "ops/backend.h"

namespace percheron::tools {

struct DeviceOptions {
    std::string device = "auto";  // auto, cpu, cuda, cuda:N
    std::size_t threads = 0;      // of the CPU backend; 0: as many as the process may run on
    ops::Arithmetic arithmetic = ops::Arithmetic::standard;
};

// auto: the first GPU, if this build, the arithmetic and the network suit it, else the CPU; what
// kept it from the GPU is logged.  Errors: invalid_argument (no such name), unsupported (not in
// this build, or the GPU cannot compute this), not_found (no such GPU).
Result<std::unique_ptr<ops::Backend>> make_backend(const DeviceOptions& options,
                                                   const model::ModelConfig& config,
                                                   std::size_t rows);

// Whether `device` is one of the names above.
bool is_device_name(const std::string& device);

// Whether a network on `device` may be computed by a GPU, as far as can be said without its driver:
// a process that asks the driver has a context of it from then on.
bool may_use_gpu(const std::string& device);

}  // namespace percheron::tools
