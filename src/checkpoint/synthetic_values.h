// Values of made-up tensors: element e of a stored tensor is a fixed function of (seed, the
// tensor's name, e), so that any part of any tensor can be made anywhere, in any order, by any
// number of threads, with the same bytes.
//
// The words of block b are Philox4x32-10 with the counter (b, seed) and the 64-bit FNV-1a hash of
// the name as its key.  From words to values only integers, one multiplication and one rounding are
// used, so every machine makes the same bytes.
//
//   normal       offset + scale * s, s the sum of four random bytes less 510, of mean square
//                normal_square; nearly normal                                    F32, BF16
//   uniform      offset + scale * [0, 1)                                         F32, BF16
//   constant     offset                                                          F32, BF16
//   fp8_codes    16 * (the sum of two random nibbles less 15)                    F8_E4M3
//   int4_words   eight nibbles less 8; the code of -8 is replaced by that of 0   I32
//   fp4_codes    two random codes                                                U8
//   scales       scale * (0.75 + byte / 512)                                     F32, BF16
//   fp8_scales   one of 1, 1.125, ..., 1.875                                     F8_E4M3
//   extents      the two extents of the matrix                                   I64
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/safetensors_writer.h"

namespace percheron::checkpoint {

enum class ValueKind : std::uint8_t {
    normal,
    uniform,
    constant,
    fp8_codes,
    int4_words,
    fp4_codes,
    scales,
    fp8_scales,
    extents,
};

// Mean squares of what `scale` multiplies, or of the codes: scales of unit variance follow from
// them.
inline constexpr double normal_square = 21845.0;
inline constexpr double fp8_code_square = 256.0 * 42.5;
inline constexpr double int4_code_square = 17.5;
inline constexpr double fp4_code_square = 8.5625;
inline constexpr double scales_square = 1.018880844116211;
inline constexpr double fp8_scales_square = 2.1484375;

struct SyntheticTensor {
    TensorHeader header;
    ValueKind kind = ValueKind::constant;
    float scale = 1.0f;
    float offset = 0.0f;
    std::size_t extents[2] = {};  // of `extents` only
};

// Makes elements first, first + 1, ... of the tensor until `out` is full.  `out` holds whole
// elements of the tensor's type.
void make_values(const SyntheticTensor& tensor, std::uint64_t seed, std::size_t first,
                 std::span<std::byte> out);

}  // namespace percheron::checkpoint
