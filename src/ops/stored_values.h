// One element of a cache as it is stored: float, bfloat16 or float8.
#pragma once

#include <cassert>
#include <cstddef>

#include "core/dtype.h"

namespace percheron::ops {

// data[index] widened to float.
inline float load_stored(const void* data, DType dtype, std::size_t index) {
    switch (dtype) {
        case DType::f32:
            return static_cast<const float*>(data)[index];
        case DType::bf16:
            return static_cast<float>(static_cast<const BFloat16*>(data)[index]);
        default:
            assert(dtype == DType::f8_e4m3);
            return static_cast<float>(static_cast<const Float8E4M3*>(data)[index]);
    }
}

// data[index] = value, rounded to nearest even.
inline void store_rounded(void* data, DType dtype, std::size_t index, float value) {
    switch (dtype) {
        case DType::f32:
            static_cast<float*>(data)[index] = value;
            return;
        case DType::bf16:
            static_cast<BFloat16*>(data)[index] = BFloat16(value);
            return;
        default:
            assert(dtype == DType::f8_e4m3);
            static_cast<Float8E4M3*>(data)[index] = Float8E4M3(value);
    }
}

}  // namespace percheron::ops
