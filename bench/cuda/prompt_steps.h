// Whole prompts of 4K to 262K tokens through full-size layers with random weights: tokens a second
// by rows of a step, and where the time goes, stage by stage, at several places of the longest.
// Stages are timed in steps of their own, with a wait behind each.
#pragma once

#include <cstddef>

#include "ops/weight_matrix.h"

namespace percheron::bench {

// Prints.  Prompts of more than `longest` tokens are left out.
void bench_prompts(std::size_t layers, ops::WeightFormat experts, std::size_t longest);

}  // namespace percheron::bench
