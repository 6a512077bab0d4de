// The turn of the hyper-connections (mhc_turn.h) for a prompt's rows: in two kernels that read and
// write what they must, where the one for few rows reads fn again for every row.
//
// The first takes 16 rows at a time and a slice of the hidden channels, whose part of fn stays in
// shared memory: it updates the streams and multiplies them by fn.  The second has a block a row:
// gates from the sums of all slices, the mixed and normalised input.
//
// Numerics.  As mhc_turn.h but for the product with fn: the streams go to the tensor core in three
// bf16 parts, which are all 24 bits of them, fn is bf16, sums are fp32.  A row depends on no other.
#pragma once

#include "ops/cuda/mhc_turn.h"

namespace percheron::ops::cuda {

// Floats that a row's parts of the gates take on their way from the first kernel to the second.
std::size_t prompt_turn_floats(int hidden);

// partial: prompt_turn_floats() for every row, scratch.
// Errors: unsupported (hidden is no multiple of 64), internal (launch).
Status prompt_turn(const HyperConnectionTurn& turn, float* partial, const LaunchContext& context);

}  // namespace percheron::ops::cuda
