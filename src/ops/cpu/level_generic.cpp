#include "ops/cpu/level_kernels.h"
#include "ops/cpu/levels.h"
#include "ops/cpu/vector_highway.h"

namespace percheron::ops::cpu {

const Kernels& kernels_generic() {
    static constexpr Kernels table = kernels_of<Highway>("generic");
    return table;
}

}  // namespace percheron::ops::cpu
