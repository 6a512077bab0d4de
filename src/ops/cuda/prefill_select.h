// Which tokens a prompt's rows attend to: as select_tokens.h, with the index scores of eight rows
// at a time on the tensor core of sm_90a.
//
// Numerics.  Of a row and a pool: every head's product in fp32 in the tensor core's order, times
// the head's weight and both scales, added over the heads in a fixed order.  The same bits for
// every number and mixture of rows.
#pragma once

#include "ops/cuda/select_tokens.h"

namespace percheron::ops::cuda {

// Errors: those of select_tokens(); unsupported (no such kernel here).
Status select_prompt_tokens(const TokenSelection& op, const LaunchContext& context);

}  // namespace percheron::ops::cuda
