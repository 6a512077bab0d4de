// What submit() refuses, in one place: every range of a request, and what could never run.
#pragma once

#include <cstdint>

#include "percheron/engine.h"

#include "core/status.h"

namespace percheron::engine {

// The most alternatives a position can be asked for.
inline constexpr int most_top_logprobs = 20;

// Errors: invalid_argument (invalid_value, context_length_exceeded), unsupported
// (unsupported_parameter).
Status check_request(const GenerationRequest& request, const RequestLimits& limits);

}  // namespace percheron::engine
