// The levels this build has, from the plainest to the newest, and which of them this machine runs.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "ops/cpu/kernels.h"

namespace percheron::ops::cpu {

const Kernels& kernels_generic();
#if defined(__x86_64__)
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();
#endif

// Names of the levels this machine runs; the last one is not always the fastest.
std::vector<std::string_view> available_levels();

// The level called `name`; empty: the one PERCHERON_SIMD names, else the fastest.
// Errors: invalid_argument, naming the available levels.
Result<const Kernels*> choose_level(std::string_view name);

}  // namespace percheron::ops::cpu
