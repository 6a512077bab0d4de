// Shorthand of the stages for the kernels' arguments.
#pragma once

#include <span>

#include "ops/backend.h"
#include "ops/cuda/few_row_gemm.h"
#include "ops/cuda/prefill_gemm.h"

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

// Products that share their rows and k, one launch a format, which asks for the weights `ahead`;
// `note` takes every launch's status.
template <class Note>
void multiply_by_format(std::span<const FewRowProduct> products, int rows, float swiglu_limit,
                        const LaunchContext& context, const Note& note,
                        const WeightsAhead& ahead = {}) {
    constexpr WeightFormat formats[] = {WeightFormat::bf16, WeightFormat::fp8_block,
                                        WeightFormat::w4a16, WeightFormat::nvfp4};
    FewRowProduct same[largest_product_count];
    for (const WeightFormat format : formats) {
        std::size_t count = 0;
        for (const FewRowProduct& one : products) {
            if (one.weight.format == format) same[count++] = one;
        }
        if (count > 0)
            note(few_row_gemm(std::span<const FewRowProduct>(same, count), rows, swiglu_limit,
                              context, ahead));
    }
}

// The same products in the prefill class, whose rows of x are ordered.
inline PrefillProduct prompt_product(const FewRowProduct& product) {
    PrefillProduct one;
    one.weight = product.weight;
    one.up = product.up;
    one.x = product.x;
    one.x_stride = product.x_stride;
    one.y = product.y;
    one.y_stride = product.y_stride;
    const bool bf16 = product.y_is_bf16 || product.up.data != nullptr;
    one.y_rows = !bf16                ? PrefillRows::f32
                 : product.y_is_input ? PrefillRows::ordered_bf16
                                      : PrefillRows::bf16;
    one.outputs_per_input = product.outputs_per_input;
    one.input_step = product.input_step;
    return one;
}

template <class Note>
void multiply_prompt_by_format(std::span<const FewRowProduct> products, int rows,
                               float swiglu_limit, const LaunchContext& context, const Note& note) {
    constexpr WeightFormat formats[] = {WeightFormat::bf16, WeightFormat::fp8_block,
                                        WeightFormat::w4a16, WeightFormat::nvfp4};
    PrefillProduct same[largest_prefill_count];
    for (const WeightFormat format : formats) {
        std::size_t count = 0;
        for (const FewRowProduct& one : products) {
            if (one.weight.format == format) same[count++] = prompt_product(one);
        }
        if (count > 0)
            note(prefill_gemm(std::span<const PrefillProduct>(same, count), rows, swiglu_limit,
                              context));
    }
}

inline float* floats(const Activations& activations) {
    return static_cast<float*>(activations.data);
}

}  // namespace percheron::ops::cuda
