// The stages on a CPU: straight from the stored weights, SIMD chosen at run time, work split over a
// pool of threads.
//
// Bits: within one level (`simd`) and one arithmetic, a row's results are the same for any number
// of rows in the step, any mixture of sequences and any number of threads.  Levels differ from one
// another in the last bits, because each sums in the order that suits its vectors.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/status.h"
#include "ops/backend.h"

namespace percheron::ops {

struct CpuBackendOptions {
    // Threads that compute, the caller's included.  0: as many as the process may run on.
    std::size_t threads = 0;
    Arithmetic arithmetic = Arithmetic::standard;
    // "generic", "avx2", "avx512".  Empty: what the environment variable
    // PERCHERON_SIMD names, else the best that this machine runs.
    std::string simd;
};

// Errors: invalid_argument for a level that does not exist or that this machine lacks; the message
// names those it has.
Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuBackendOptions& options);

}  // namespace percheron::ops
