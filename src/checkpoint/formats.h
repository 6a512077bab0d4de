// How one weight is stored, decided from what is in the files and from nothing else.
//
//   bf16, f32    STEM.weight, or a tensor named STEM itself
//   fp8_block    STEM.weight F8_E4M3 [n, k] and STEM.weight_scale_inv F32 [ceil(n/128),
//   ceil(k/128)]
//                (a bare STEM has STEM_scale_inv); w = f8 * scale in spite of the name
//   w4a16        STEM.weight_packed I32 [n, k/8], STEM.weight_scale BF16 [n, k/128],
//                STEM.weight_shape I64 [2] = (n, k)
//   nvfp4        ModelOpt: STEM.weight U8 [n, k/2], STEM.weight_scale F8_E4M3 [n, k/16],
//                STEM.weight_scale_2 F32 scalar, the factor itself.
//                compressed-tensors: STEM.weight_packed, STEM.weight_scale, and
//                STEM.weight_global_scale F32, one over that factor.
// Activation scales (input_scale, input_global_scale) may lie beside and are not used.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/shards.h"
#include "core/status.h"
#include "ops/weight_matrix.h"

namespace percheron::checkpoint {

// The stored tensors that make up one weight.
struct WeightParts {
    ops::WeightFormat format = ops::WeightFormat::bf16;
    TensorPlace data;
    TensorPlace scales;        // fp8_block, w4a16, nvfp4
    TensorPlace global_scale;  // nvfp4
    bool global_scale_is_inverse = false;
    TensorPlace shape;                // w4a16
    std::vector<TensorPlace> unused;  // known, but of no use here

    // Every stored tensor of the weight.
    std::vector<TensorPlace> all() const;
};

// Whether any tensor of the stem is stored.
bool has_weight(const ShardSet& shards, std::string_view stem);

// Finds the parts of a weight whose unquantised shape is `shape` and checks their types and shapes.
// Quantised formats need a matrix, i.e. two extents.
// Errors: not_found (names the stem), corrupt (names file and tensor), unsupported.
Result<WeightParts> find_weight(const ShardSet& shards, std::string_view stem, const Shape& shape);

// Reads an F8_E4M3 tensor's codes once.  The two that mean NaN never come out of a sound
// conversion, and every sum they enter would be lost: they are refused, the first by its place.
// Errors: corrupt (names file, tensor and element).
Status check_codes(const TensorPlace& place);

// The factor of an nvfp4 weight.  Errors: corrupt (not finite or not positive).
Result<float> global_scale(const WeightParts& parts);

}  // namespace percheron::checkpoint
