// Rows as matrix products read them.
//
// A row of fp32 values is kept as three rows of bf16, [row][part][columns]: the value rounded, what
// that left rounded, and what those left rounded.  Products read the first part, rows being
// row_parts times their width apart.  The router, whose product is of unrounded rows, reads all
// parts as rows of their own and adds the results: 3 x 8 bits are a float's 24.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace percheron::ops::cuda {

inline constexpr int row_parts = 3;

// Products of w4a16 weights, whose codes are tiny numbers, read rows that have been multiplied by
// this; routed experts find such rows ready, other products multiply as they read.
inline constexpr float raised_by = 0x1p64f;

#ifdef __CUDACC__
// Four values into the parts of a row; `to` is the place in the first part.  `raised`: the place of
// the rounded values times raised_by, or nullptr.
__device__ inline void write_parts(float4 v, __nv_bfloat16* to, int columns,
                                   __nv_bfloat16* raised) {
    if (raised != nullptr) {
        const __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(v.x * raised_by, v.y * raised_by),
                                        __floats2bfloat162_rn(v.z * raised_by, v.w * raised_by)};
        *reinterpret_cast<uint2*>(raised) = *reinterpret_cast<const uint2*>(pair);
    }
#pragma unroll
    for (int part = 0; part < row_parts; ++part) {
        const __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(v.x, v.y),
                                        __floats2bfloat162_rn(v.z, v.w)};
        *reinterpret_cast<uint2*>(to + part * columns) = *reinterpret_cast<const uint2*>(pair);
        v.x -= __low2float(pair[0]), v.y -= __high2float(pair[0]);
        v.z -= __low2float(pair[1]), v.w -= __high2float(pair[1]);
    }
}
#endif

}  // namespace percheron::ops::cuda
