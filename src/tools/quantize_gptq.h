// Rounds matrices so that the outputs of calibration rows change least (GPTQ; Frantar et al. 2022).
//
// With H' = U diag(d) UT of quantize_hessian.h, a row w is rounded column by column in the places'
// order, every column after what the earlier ones left over:
//   e_i = w_i - q_i,   c_j = w_j + sum_{i<j} e_i U_ij,   q_j = the format's nearest value to c_j
// which makes the row's error sum_j d_j (c_j - q_j)^2: the same values as the published form with
// the Cholesky factor of the inverse, without the inverse.  The scale of a group is chosen when its
// first column is reached: of the candidates, the one whose group error, feedback inside the group
// included, is smallest (ties to the smaller scale).
//
// Rows of a matrix do not depend on one another: any number of threads gives the same bytes.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/thread_pool.h"
#include "core/views.h"
#include "tools/quantize_hessian.h"

namespace percheron::tools {

// weights [n, k], k a multiple of 128, finite; words [n][k / 8]; scales [n][k / 128], as
// round_to_w4a16.  Candidates: bfloat16 values from max|c| / 14 to max|c| / 7 of the group.  The
// factor's groups have 128 columns.
void solve_w4a16(Rows<const float> weights, const HessianFactor& factor, ThreadPool& pool,
                 std::span<std::uint32_t> words, std::span<BFloat16> scales);

// codes [n][k / 2]; scales [n][k / 16]; `global_scale` as round_to_nvfp4.  Candidates: the FP8
// values around max|c| / 6 of the group.  The factor's groups have 16 columns.
void solve_nvfp4(Rows<const float> weights, const HessianFactor& factor, float global_scale,
                 ThreadPool& pool, std::span<std::uint8_t> codes, std::span<Float8E4M3> scales);

}  // namespace percheron::tools
