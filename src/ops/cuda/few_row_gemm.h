// The matrix product of the decode class: y[r, o] = sum over i of x[r, i] W[o, i], for any number
// of rows, several matrices in one launch.
//
// Numerics.  x is bf16, products are exact, sums fp32.  A row of y is a function of its row of x
// and of W alone: the same bits for every number and mixture of rows and on every device.
//   * The k / 128 blocks of a matrix are cut into slice_count() runs of blocks (slice s holds
//     blocks [s b / S, (s + 1) b / S)); the count depends on format and k only.
//   * Inside a slice the tensor core adds 16 columns after the other; for fp8_block and w4a16 a
//     block is summed from zero and added to the slice times its scale by one fused multiply-add.
//     A w4a16 block is the sum of code * x plus that of -8 * x.
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
#include "ops/cuda/router.h"
#include "ops/cuda/weight_prefetch.h"

namespace percheron::ops::cuda {

struct FewRowProduct {
    PackedMatrix weight;
    PackedMatrix up;                   // data == nullptr: a plain product
    const __nv_bfloat16* x = nullptr;  // [rows][x_stride], see below
    int x_stride = 0;
    void* y = nullptr;  // [rows][y_stride]
    int y_stride = 0;
    bool y_is_bf16 = false;   // else fp32; with `up` always bf16
    bool y_is_input = false;  // of a further product: of prompts it is ordered (prefill_rows.h)
    // More than 0: a batch of products, one a head.  Outputs [h p, (h + 1) p) with p =
    // outputs_per_input (a multiple of 32) take their inputs from x + h * input_step.
    int outputs_per_input = 0;
    int input_step = 0;
};

inline constexpr int largest_product_count = 8;

// Slices of at least two blocks; of 4-bit weights, whose blocks are small, of at least eight, so
// that the meeting of the slices costs little beside them.
constexpr int slice_count(WeightFormat format, int k) {
    const int blocks = (k + block_columns - 1) / block_columns;
    const int least = format == WeightFormat::w4a16 || format == WeightFormat::nvfp4 ? 8 : 2;
    return blocks >= 8 * least ? 8 : blocks >= 4 * least ? 4 : blocks >= 2 * least ? 2 : 1;
}

// At most largest_product_count products of one format and one k, all plain or all with `up`.
// x is 16-byte aligned; x_stride is a multiple of 8 and at least k rounded up to 128, and what lies
// beyond k in a row is finite.  With up to 8 rows, thread blocks that are out of work ask for
// the weights `ahead`.
// Errors: invalid_argument, internal (launch).
Status few_row_gemm(std::span<const FewRowProduct> products, int rows, float swiglu_limit,
                    const LaunchContext& context, const WeightsAhead& ahead = {});

// The same product for the pairs (row, choice) that a router made: pair p, which chose expert e,
// gives y row p = W_e x, x being row p / pairs_per_row.  Every array is device memory; the matrices
// are packed, of one format and shape.  A pair's bits depend on its own row alone.
struct ExpertProduct {
    WeightFormat format = WeightFormat::bf16;
    int n = 0, k = 0;
    const std::uint8_t* const* weights = nullptr;  // [experts]
    const std::uint8_t* const* ups = nullptr;      // [experts], or nullptr: a plain product
    const float* scales = nullptr;                 // [experts], global scales
    const float* up_scales = nullptr;
    const __nv_bfloat16* x = nullptr;  // of w4a16 matrices times raised_by (row_parts.h)
    int x_stride = 0;
    int pairs_per_row = 1;
    void* y = nullptr;  // [pairs][y_stride]: bf16 with `ups`, else fp32
    int y_stride = 0;
    bool y_is_raised = false;  // with `ups`: y is multiplied by raised_by before it is rounded
    // The kernel in front is not the one that chose: weights are fetched without waiting for it.
    bool choice_is_older = false;
};

Status expert_gemm(const ExpertProduct& product, const ExpertChoice& choice, float swiglu_limit,
                   const LaunchContext& context);

// What a row's experts gave: sum over j, ascending, of weights[r c + j] * output[r c + j]; fp32.
struct ExpertPairs {
    int chosen = 0;
    const float* weights = nullptr;  // [rows * chosen]
    const float* output = nullptr;   // [rows * chosen][hidden]
};

// y[r] = that sum + shared[r].  The turn of the hyper-connections that follows does the same by
// itself.
struct ExpertSum {
    int rows = 0, hidden = 0;
    ExpertPairs pairs;
    const float* shared = nullptr;  // [rows][hidden]
    float* y = nullptr;             // [rows][hidden]
};

Status sum_experts(const ExpertSum& sum, const LaunchContext& context);

}  // namespace percheron::ops::cuda
