#include "ops/cpu/levels.h"

#include <cstdlib>

namespace percheron::ops::cpu {
namespace {

struct Level {
    std::string_view name;
    const Kernels& (*kernels)();
    bool (*runs_here)();
    // Taken without being asked for.
    bool (*preferred)();
};

#if defined(__x86_64__)
bool has_generic() {
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") &&
           __builtin_cpu_supports("aes");
}
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#else
bool has_generic() {
    return true;
}
#endif

constexpr Level levels[] = {
    {"generic", kernels_generic, has_generic, has_generic},
#if defined(__x86_64__)
    {"avx2", kernels_avx2, has_avx2, has_avx2},
    {"avx512", kernels_avx512, has_avx512, has_avx512},
#endif
};

}  // namespace

std::vector<std::string_view> available_levels() {
    std::vector<std::string_view> names;
    for (const Level& level : levels)
        if (level.runs_here()) names.push_back(level.name);
    return names;
}

Result<const Kernels*> choose_level(std::string_view name) {
    const char* const variable = std::getenv("PERCHERON_SIMD");
    const bool from_variable = name.empty() && variable != nullptr && *variable != '\0';
    if (from_variable) name = variable;
    const Level* best = nullptr;
    for (const Level& level : levels) {
        if (name.empty() ? level.preferred() : level.name == name && level.runs_here())
            best = &level;
    }
    if (best != nullptr) return &best->kernels();
    if (available_levels().empty()) {
        return Error(ErrorCode::unsupported,
                     "This processor lacks SSE4.2; use one made after 2011, or a GPU.");
    }
    std::string known;
    for (std::string_view level : available_levels())
        known += (known.empty() ? "" : ", ") + std::string(level);
    return Error(ErrorCode::invalid_argument,
                 "SIMD level '" + std::string(name) + "'" +
                     (from_variable ? " (from PERCHERON_SIMD)" : "") +
                     " is not available here; choose one of: " + known + ".");
}

}  // namespace percheron::ops::cpu
