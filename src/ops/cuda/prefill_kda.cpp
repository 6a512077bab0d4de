#include "ops/cuda/prefill_kda.h"

#include <string>

#include "ops/cuda/prefill_kda_launch.h"

namespace percheron::ops::cuda {
namespace {

int chunks_of(std::uint32_t rows) {
    return static_cast<int>((rows + kda_chunk_rows - 1) / kda_chunk_rows);
}

}  // namespace

std::size_t kda_prompt_bytes(int heads, int chunks) {
    return static_cast<std::size_t>(heads) * chunks * kda_chunk_bytes();
}

Status kda_prompt(const KdaPrompt& prompt, std::span<const std::uint32_t> row_counts,
                  const LaunchContext& context) {
    // As many sequences at a time as there is room for.
    for (std::size_t first = 0; first < row_counts.size();) {
        std::size_t end = first;
        int chunks = 0;
        while (end < row_counts.size() &&
               chunks + chunks_of(row_counts[end]) <= prompt.prepared_chunks)
            chunks += chunks_of(row_counts[end++]);
        if (end == first)
            return Error(ErrorCode::invalid_argument,
                         "a prompt's KDA has no room for a sequence of " +
                             std::to_string(row_counts[first]) + " rows");
        const int from = static_cast<int>(first);
        PERCHERON_TRY(launch_kda_chunks(prompt, from, chunks, context));
        PERCHERON_TRY(launch_kda_states(prompt, from, static_cast<int>(end - first), context));
        first = end;
    }
    return {};
}

}  // namespace percheron::ops::cuda
