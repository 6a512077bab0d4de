// Attention among the patches of one picture: every patch sees every other one, and knows where it
// lies by a rotation of its queries and keys.
//
// store_patch_heads: from the projected rows [q | k | v], each H heads of d values,
//   q' = rotate(RMS(q; q_norm, eps)),  k' = rotate(RMS(k; k_norm, eps)),  v as it is
// For a patch in grid row y and column x the d/2 angles are y f_0 .. y f_(d/4-1), x f_0 ..
// x f_(d/4-1) with f_i = theta^(-4i/d); channel j < d/2 is turned together with channel j + d/2:
//   out_j = a_j cos(angle_j) - a_(j+d/2) sin(angle_j)
//   out_(j+d/2) = a_(j+d/2) cos(angle_j) + a_j sin(angle_j)
//
// patch_attention: for query rows [first, first + R)
//   out_h = sum over all patches s of softmax_s(q'_h . k'_h(s) d^-1/2) v_h(s)
//
// Shapes:   rows [R, 3 H d]; places [R]; output [R, H d]; d a multiple of 4.
// Numerics: `standard` keeps q', k' and v rounded to bf16 (PatchHeads::dtype bf16), `fp32` in fp32;
//           norms, angles, scores, softmax and sums are fp32 (an oracle may work wider).  A row's
//           bits depend on the picture alone, not on how its rows are cut.
// Effects:  store_patch_heads writes rows [first, first + R) of the heads; patch_attention its
//           output.  Nothing overlaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/views.h"

namespace percheron::ops {

// Where a patch lies in the picture's grid of patches.
struct PatchPlace {
    std::uint32_t y = 0;
    std::uint32_t x = 0;
};

// Queries, keys and values of a whole picture, each [head][patch][dim].
struct PatchHeads {
    void* query = nullptr;
    void* key = nullptr;
    void* value = nullptr;
    DType dtype = DType::bf16;  // or f32
    std::size_t heads = 0;
    std::size_t dim = 0;
    std::size_t patches = 0;
};

struct StorePatchHeads {
    Rows<const float> rows;
    const float* query_norm = nullptr;  // [d]
    const float* key_norm = nullptr;    // [d]
    float eps = 1e-5f;
    float theta = 10000.0f;
    std::span<const PatchPlace> places;
    std::size_t first = 0;
    PatchHeads heads;
};

struct PatchAttention {
    PatchHeads heads;
    std::size_t first = 0;
    Rows<float> output;
};

}  // namespace percheron::ops
