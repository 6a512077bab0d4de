// The launches of a prompt's KDA, whose kernels are compiled in files of their own.
#pragma once

#include "ops/cuda/prefill_kda.h"

namespace percheron::ops::cuda {

inline constexpr int kda_chunk_rows = 64;

// What a chunk of a head leaves for the second kernel.
std::size_t kda_chunk_bytes();

// The first kernel, over `chunks` chunks of the sequences from the first on, and the second, over
// `sequences` of them.
Status launch_kda_chunks(const KdaPrompt& prompt, int first_sequence, int chunks,
                         const LaunchContext& context);
Status launch_kda_states(const KdaPrompt& prompt, int first_sequence, int sequences,
                         const LaunchContext& context);

}  // namespace percheron::ops::cuda
