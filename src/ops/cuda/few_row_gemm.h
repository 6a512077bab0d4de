// The matrix product of the decode class: y[r, o] = sum over i of x[r, i] W[o, i], for any number
// of rows, several matrices in one launch.
//
// Numerics.  x is bf16, products are exact, sums fp32.  A row of y is a function of its row of x
// and of W alone: the same bits for every number and mixture of rows and on every device.
//   * The k / 128 blocks of a matrix are cut into slice_count(k) runs of blocks (slice s holds
//     blocks [s b / S, (s + 1) b / S)); the count depends on k only.
//   * Inside a slice the tensor core adds 16 columns after the other; for fp8_block and w4a16 a
//     block is summed from zero and added to the slice times its scale by one fused multiply-add.
//   * The slices' sums are added in order; nvfp4's global scale multiplies the result.
//
// With `up` the two matrices are multiplied by the same x and
//   y[r, o] = silu(min(gate, limit)) * clamp(up, -limit, limit)   (fp32, then bf16)
#pragma once

#include <span>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "core/status.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/packed_matrix.h"

namespace percheron::ops::cuda {

struct FewRowProduct {
    PackedMatrix weight;
    PackedMatrix up;                   // data == nullptr: a plain product
    const __nv_bfloat16* x = nullptr;  // [rows][x_stride], see below
    int x_stride = 0;
    void* y = nullptr;  // [rows][y_stride]
    int y_stride = 0;
    bool y_is_bf16 = false;  // else fp32; with `up` always bf16
};

inline constexpr int largest_product_count = 8;

constexpr int slice_count(int k) {
    const int blocks = (k + block_columns - 1) / block_columns;
    return blocks >= 16 ? 8 : blocks >= 8 ? 4 : blocks >= 4 ? 2 : 1;
}

// At most largest_product_count products of one format and one k, all plain or all with `up`.
// x is 16-byte aligned; x_stride is a multiple of 8 and at least k rounded up to 128, and what lies
// beyond k in a row is finite.  Errors: invalid_argument, internal (launch).
Status few_row_gemm(std::span<const FewRowProduct> products, int rows, float swiglu_limit,
                    const LaunchContext& context);

}  // namespace percheron::ops::cuda
