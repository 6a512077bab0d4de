// Shorthand of the stages for the kernels' arguments.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/few_row_gemm.h"

namespace percheron::ops::cuda {

inline FewRowProduct product(const PackedMatrix& weight, const __nv_bfloat16* x, int x_stride,
                             float* y, int y_stride) {
    FewRowProduct one;
    one.weight = weight;
    one.x = x;
    one.x_stride = x_stride;
    one.y = y;
    one.y_stride = y_stride;
    return one;
}

inline FewRowProduct product(const PackedMatrix& weight, const __nv_bfloat16* x, int x_stride,
                             __nv_bfloat16* y, int y_stride) {
    FewRowProduct one = product(weight, x, x_stride, static_cast<float*>(nullptr), y_stride);
    one.y = y;
    one.y_is_bf16 = true;
    return one;
}

inline float* floats(const Activations& activations) {
    return static_cast<float*>(activations.data);
}

}  // namespace percheron::ops::cuda
