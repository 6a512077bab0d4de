#if defined(__x86_64__)
#include "ops/cpu/level_kernels.h"
#include "ops/cpu/levels.h"
#include "ops/cpu/vector_avx512.h"

namespace percheron::ops::cpu {

const Kernels& kernels_avx512() {
    static constexpr Kernels table = kernels_of<Avx512>("avx512");
    return table;
}

}  // namespace percheron::ops::cpu
#endif
