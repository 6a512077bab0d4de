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
//
// Two stored forms are rewritten in memory as f32 when a weight is asked for:
//   f16            as bf16; in folders that also hold exl3, whose converter makes it of BF16
//   exl3           STEM.trellis and what belongs to it (trellis.h)
// Of these and of bf16 and f32, a weight may also be a share of a stack, or lie in pieces
// (fused_names.h).
//
// The scale of a weight's inputs (ModelOpt: STEM.input_scale F32, the factor itself;
// compressed-tensors: STEM.input_global_scale F32, one over it) may lie beside; it is used of nvfp4
// where inputs are to be rounded, and of nothing else.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/shards.h"
#include "core/status.h"
#include "ops/weight_matrix.h"

namespace percheron::checkpoint {

// The stored tensors that make up one weight.
struct WeightParts {
    // What the network computes from; f32 of a weight that is rewritten.
    ops::WeightFormat format = ops::WeightFormat::bf16;
    // Name of the form in the file: that of `format`, "f16" or "exl3".
    std::string_view stored_as = ops::name_of(ops::WeightFormat::bf16);
    TensorPlace data;
    TensorPlace scales;        // fp8_block, w4a16, nvfp4
    TensorPlace global_scale;  // nvfp4
    bool global_scale_is_inverse = false;
    TensorPlace shape;  // w4a16
    // exl3: scales or signs of inputs and outputs, and which codebook (empty: 3inst).
    TensorPlace input_scales, output_scales, codebook;
    std::size_t first_row = 0;  // of the stored matrix, where this weight is a share of a stack
    std::vector<WeightParts> pieces;  // in the order of their rows; then the places above are empty
    std::vector<TensorPlace> unused;  // known, but of no use here

    // Every stored tensor of the weight.
    std::vector<TensorPlace> all() const;
    // Whether the weight is not computed from the bytes of the file.
    bool rewritten() const { return !pieces.empty() || stored_as != ops::name_of(format); }
    // The first of its tensors, for messages about it.
    const TensorPlace& first() const { return pieces.empty() ? data : pieces.front().first(); }
};

// Whether any tensor of the stem is stored.
bool has_weight(const ShardSet& shards, std::string_view stem);

// Finds the parts of a weight whose unquantised shape is `shape` and checks their types and shapes.
// Quantised formats need a matrix, i.e. two extents.
// Errors: not_found (names the stem), corrupt (names file and tensor), unsupported.
Result<WeightParts> find_weight(const ShardSet& shards, std::string_view stem, const Shape& shape);

// Elements of a BF16, F16 or F32 tensor from the `first` on, widened.
void widen_elements(const TensorPlace& place, std::size_t first, std::span<float> out);

// Row-major values of a weight that is rewritten, `shape` as find_weight had it.
// Errors: corrupt (a scale that is not finite, named).
Result<std::vector<float>> rewritten_values(const WeightParts& parts, const Shape& shape);
// The first F8_E4M3 code that means NaN.
std::optional<std::size_t> find_nan(std::span<const std::byte> codes);

// The first BF16, F16 or F32 number that is infinite or NaN; nothing of other types.
std::optional<std::size_t> find_not_finite(std::span<const std::byte> values, DType dtype);

// Whether an F8_E4M3 code or a scale of these rows, in host memory, is NaN or infinite.
bool is_damaged(const ops::WeightMatrix& rows);

// Reads a tensor's numbers, or its F8_E4M3 codes, once.  NaN and infinity never come out of a sound
// conversion, and every sum they enter would be lost: they are refused, the first by its place.
// Errors: corrupt (names file, tensor and element).
Status check_values(const TensorPlace& place);

// The factor of an nvfp4 weight.  Errors: corrupt (not finite or not positive).
Result<float> global_scale(const WeightParts& parts);

// The inverse of that factor where the file holds it, else 0.
float global_inverse(const WeightParts& parts);

// The factor of an nvfp4 weight's inputs.  Errors: not_found; corrupt (no F32 number, or not
// finite, or not positive).
Result<float> input_scale(const WeightParts& parts);

}  // namespace percheron::checkpoint
