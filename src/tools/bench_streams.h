// Decode rate of an engine by the number of streams, in process: what batching gains.
#pragma once

#include <cstdint>
#include <vector>

#include "percheron/engine.h"

#include "core/status.h"

namespace percheron::tools {

struct StreamsRun {
    std::uint32_t streams = 0;
    double decode_tokens_per_second = 0;   // of all streams together
    double prefill_tokens_per_second = 0;  // prompt tokens over the time to the last first token
};

// Runs `streams` greedy requests of `tokens` tokens each, with prompts of `prompt_tokens` random
// ids below `ordinary_ids`.  The decode rate counts only the time in which every stream is
// decoding. Errors: of submit(), or the failure of a request.
Result<StreamsRun> run_streams(Engine& engine, std::uint32_t streams, std::uint32_t prompt_tokens,
                               std::uint32_t tokens, std::uint32_t ordinary_ids,
                               std::uint64_t seed);

double median(std::vector<double> values);

}  // namespace percheron::tools
