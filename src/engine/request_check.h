// What submit() refuses, in one place: every range of a request, and what could never run.
#pragma once

#include <cstdint>

#include "percheron/engine.h"

#include "core/status.h"

namespace percheron::engine {

struct RequestLimits {
    std::uint32_t vocabulary = 0;
    std::uint32_t context_tokens = 0;  // prompt and reply of one choice
    std::uint32_t most_choices = 0;    // that the engine holds, running and waiting together
    bool has_think_tags = false;
    bool has_vision = false;
    // With vision:
    TokenId image_token{-1};
    std::size_t patch = 0;           // pixels of a patch's side
    std::size_t merge = 0;           // patches of a token's side
    std::uint32_t image_tokens = 0;  // of one image at most
    std::size_t feature_row_bytes = 0;
    Bytes image_memory = 0;  // for the feature rows of all who wait and run
};

// The most alternatives a position can be asked for.
inline constexpr int most_top_logprobs = 20;

// Errors: invalid_argument (invalid_value, context_length_exceeded), unsupported
// (unsupported_parameter).
Status check_request(const GenerationRequest& request, const RequestLimits& limits);

}  // namespace percheron::engine
