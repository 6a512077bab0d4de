// The matrix product of the prefill class on sm_90a: y[r, o] = sum over i of x[r, i] W[o, i], for
// many rows, several matrices in one launch, from the same packed weights as the decode class.
//
// Numerics.  x is bf16, products are exact, sums fp32.  A row of y is a function of its row of x
// and of W alone: the same bits for every number and mixture of rows.
//   * k is not split.  The tensor core adds 16 columns after the other; of fp8_block and w4a16 a
//     block of 128 columns is summed from zero and added times its scale by one fused multiply-add.
//   * Weights are widened to bf16 without loss: w4a16 codes minus 8, e4m3 codes, and of nvfp4 the
//     code times its block's scale, whose global scale multiplies the result.
//   * Tiles are of 128 or 256 rows; an expert's last tile is multiplied as one of 64 or 32 where
//     it has no more, which changes no row's sums.
//
// With `up` the two matrices are multiplied by the same x and
//   y[r, o] = silu(min(gate, limit)) * clamp(up, -limit, limit)   (fp32, then bf16)
//
// Rows of x are ordered rows (prefill_rows.h), and so may be rows of y.
#pragma once

#include <span>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "core/status.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/packed_matrix.h"
#include "ops/cuda/router.h"

namespace percheron::ops::cuda {

// Rows of one expert that are computed together.
inline constexpr int prefill_group_rows = 128;

// What a row of y is kept as.
enum class PrefillRows : std::uint8_t { f32, bf16, ordered_bf16 };

struct PrefillProduct {
    PackedMatrix weight;
    PackedMatrix up;                   // data == nullptr: a plain product
    const __nv_bfloat16* x = nullptr;  // [rows][x_stride], ordered
    int x_stride = 0;                  // a multiple of 8
    void* y = nullptr;                 // [rows][y_stride]
    int y_stride = 0;
    PrefillRows y_rows = PrefillRows::f32;  // with `up` one of bf16
    // More than 0: a batch of products, one a head.  Outputs [h p, (h + 1) p) with p =
    // outputs_per_input (a multiple of 128) take their inputs from x + h * input_step.
    int outputs_per_input = 0;
    int input_step = 0;
};

inline constexpr int largest_prefill_count = 8;

// Whether the current device has these kernels (compute capability 9.0).
bool has_prefill_kernels();

// At most largest_prefill_count products of one format and one k (a multiple of 32), all plain or
// all with `up`.  x is 16-byte aligned; rows of bf16 y are 16-byte aligned and have n % 8 == 0, of
// ordered y n % 32 == 0.
// Errors: invalid_argument; unsupported (no such kernels here); internal (launch).
Status prefill_gemm(std::span<const PrefillProduct> products, int rows, float swiglu_limit,
                    const LaunchContext& context);

// The same product for pairs of a row and an expert, grouped by expert (PairGrouping with
// prefill_group_rows).  Row i of x is that of pair pair_order[i].  Every array is device memory;
// the matrices are packed, of one format and shape.
struct PrefillExperts {
    WeightFormat format = WeightFormat::bf16;
    int n = 0, k = 0;
    const std::uint8_t* const* weights = nullptr;  // [experts]
    const std::uint8_t* const* ups = nullptr;      // [experts], or nullptr: a plain product
    const float* scales = nullptr;                 // [experts], global scales
    const float* up_scales = nullptr;
    const __nv_bfloat16* x = nullptr;  // [pairs][x_stride], ordered
    int x_stride = 0;
    int pairs = 0;
    const ExpertGroup* groups = nullptr;
    const std::int32_t* group_count = nullptr;
    // With `ups`: row i of y, ordered bf16, is that of row i of x.  Else: y is fp32, and row
    // pair_order[i] that of row i.
    const std::uint32_t* pair_order = nullptr;
    void* y = nullptr;
    int y_stride = 0;
};

Status prefill_experts(const PrefillExperts& product, float swiglu_limit,
                       const LaunchContext& context);

}  // namespace percheron::ops::cuda
