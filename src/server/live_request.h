// A request that runs or waits, as /status shows it: counts and names, no text of anybody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace percheron::server {

struct LiveRequest {
    enum class Phase {
        queued,
        prefill,   // admitted, no token yet
        thinking,  // some choice is inside its thinking
        answer,
    };
    std::string id;
    std::string route;
    Phase phase = Phase::queued;
    std::uint32_t prompt_tokens = 0;
    std::uint32_t cached_tokens = 0;
    std::uint32_t generated_tokens = 0;  // of all choices
    std::uint32_t choices = 0;
    double seconds = 0;            // since the request came
    double tokens_per_second = 0;  // what came after the first step, over the time since then
    std::uint32_t rounds = 0;      // of speculation, and the tokens of them
    std::uint32_t drafted = 0;
    std::uint32_t accepted = 0;
};

struct LiveRequests {
    std::vector<LiveRequest> oldest;  // first come, first shown
    std::size_t left_out = 0;         // younger ones
};

}  // namespace percheron::server
