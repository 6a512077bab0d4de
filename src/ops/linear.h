// Matrix products with stored weights: y = W x for every input row.
//
//   out[r][n] = sum_k W[n][k] * x[r][k]      x = in, or in rounded to bf16 (`standard`)
//
// Shapes:   weight [N, K] in any WeightFormat; input [R, K], or any rows that `rows` chooses R of;
//           output [R, N].  R >= 0.
// Numerics: `standard` rounds each input element to bf16 (nearest even) before the product; `fp32`
//           does not.  The weight is its exact dequantised value, products and sums are fp32 (an
//           oracle may sum wider).  The order of the sum over k is fixed by the weight's shape and
//           format and the rows' numeric class alone: a row's bits are the same for any R and any
//           neighbours.
// Effects:  writes output.  No overlap of output with anything.
//
// A span of Linear is computed as a set: no member reads another's output, members may share an
// input, so a backend can round an input once and run all members as one parallel piece of work.
#pragma once

#include <cstdint>
#include <span>

#include "core/views.h"
#include "ops/batch.h"
#include "ops/weight_matrix.h"

namespace percheron::ops {

struct Linear {
    WeightMatrix weight;
    Rows<const float> input;
    Rows<float> output;
    Arithmetic arithmetic = Arithmetic::standard;
    NumericClass numeric_class = NumericClass::decode;
    // Not empty: row r of the product reads input row rows[r], and these are the R rows.
    std::span<const std::uint32_t> rows = {};

    std::size_t row_count() const { return rows.empty() ? input.rows : rows.size(); }
};

}  // namespace percheron::ops
