// POST /v1/completions: a body becomes prompts that are continued as they stand, without template
// and without a reply's structure, or one error that says what to change.  Runs on a text thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "percheron/types.h"

#include "server/generation.h"

namespace percheron::server {

// A prompt as echo gives it back.
struct CompletionPrompt {
    std::string text;
    std::vector<TokenId> ids;
};

struct ParsedCompletion {
    std::optional<ApiError> error;
    GenerationFields fields;
    std::vector<CompletionPrompt> prompts;  // at least one, each with at least one token
    bool echo = false;
    std::vector<std::string> unknown_fields;
};

// With logprobs, fields.request.sampling.top_logprobs says how many alternatives a token gets; with
// echo fields.request.prompt_logprobs is the same.
ParsedCompletion parse_completion_request(std::string_view body, const GenerationSetting& setting);

PreparedGeneration prepare_completion(const GenerationSetting& setting, std::string_view body);

}  // namespace percheron::server
