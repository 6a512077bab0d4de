#include "tools/devices.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "core/logging.h"
#include "model/trunk_weights.h"
#include "ops/cpu/cpu_backend.h"
#ifdef PERCHERON_HAS_CUDA
#include "ops/cuda/cuda_backend.h"
#endif

namespace percheron::tools {
namespace {

Result<std::unique_ptr<ops::Backend>> cpu_backend(const DeviceOptions& options) {
    ops::CpuBackendOptions cpu;
    cpu.threads = options.threads;
    cpu.arithmetic = options.arithmetic;
    return ops::make_cpu_backend(cpu);
}

// The number in "cuda:N"; 0 for "cuda"; nothing for anything else.
std::optional<int> cuda_number(const std::string& device) {
    if (device == "cuda") return 0;
    if (!device.starts_with("cuda:")) return std::nullopt;
    int number = -1;
    const char* const end = device.data() + device.size();
    const auto [stop, error] = std::from_chars(device.data() + 5, end, number);
    if (error != std::errc() || stop != end || number < 0) return std::nullopt;
    return number;
}

#ifdef PERCHERON_HAS_CUDA
Result<std::unique_ptr<ops::Backend>> cuda_backend(int number, const DeviceOptions& options,
                                                   const model::ModelConfig& config,
                                                   std::size_t rows) {
    if (options.arithmetic == ops::Arithmetic::fp32) {
        return Error(ErrorCode::unsupported,
                     "fp32 arithmetic is computed on the CPU only; use --device cpu");
    }
    ops::CudaBackendOptions cuda;
    cuda.device = number;
    PERCHERON_ASSIGN(auto backend, ops::make_cuda_backend(cuda));
    PERCHERON_TRY(backend->check_shape(model::shape_of(config), rows));
    return backend;
}
#endif

}  // namespace

bool is_device_name(const std::string& device) {
    return device == "auto" || device == "cpu" || cuda_number(device).has_value();
}

bool may_use_gpu(const std::string& device) {
#ifdef PERCHERON_HAS_CUDA
    std::error_code ignored;
    return cuda_number(device).has_value() ||
           (device == "auto" && std::filesystem::exists("/dev/nvidiactl", ignored));
#else
    return cuda_number(device).has_value();
#endif
}

Result<std::unique_ptr<ops::Backend>> make_backend(
    const DeviceOptions& options, [[maybe_unused]] const model::ModelConfig& config,
    [[maybe_unused]] std::size_t rows) {
    if (!is_device_name(options.device)) {
        return Error(ErrorCode::invalid_argument,
                     "--device " + options.device + " is unknown; use auto, cpu, cuda or cuda:N");
    }
    if (options.device == "cpu") return cpu_backend(options);
#ifdef PERCHERON_HAS_CUDA
    if (const auto number = cuda_number(options.device)) {
        return cuda_backend(*number, options, config, rows);
    }
    if (ops::cuda_device_count() > 0) {
        auto backend = cuda_backend(0, options, config, rows);
        if (backend.ok()) return backend;
        log_info("computing on the CPU: " + backend.error().message());
    }
    return cpu_backend(options);
#else
    if (options.device == "auto") return cpu_backend(options);
    return Error(ErrorCode::unsupported, "--device " + options.device +
                                             " is not in this build, which has no CUDA; use auto "
                                             "or cpu");
#endif
}

}  // namespace percheron::tools
