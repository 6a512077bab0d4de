// A chat body (of POST /v1/chat/completions, or what other routes make of theirs) becomes a request
// that the model and the engine understand, or one error that says what to change.  Runs on a text
// thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/chat_images.h"
#include "server/generation_fields.h"
#include "server/json_body.h"
#include "text/chat_prompt.h"

namespace percheron::server {

struct ChatDefaults {
    GenerationDefaults generation;
    std::string reasoning_effort = "max";
};

struct ChatRequest {
    GenerationFields generation;
    Json messages;                  // without the images' URLs
    std::vector<ImagePart> images;  // in reading order
    Json tools;                     // functions only; null when none may be called
    ChatOptions prompt_options;     // its reasoning_effort is the effective level
    bool parallel_tool_calls = true;
    std::vector<std::string> unknown_fields;
};

struct ParsedChat {
    ChatRequest request;
    std::optional<ApiError> error;
};

ParsedChat parse_chat_request(std::string_view body, const ChatDefaults& defaults,
                              std::uint32_t vocabulary);
// The same for a body that other routes have made of theirs.
ParsedChat parse_chat_object(Json body, const ChatDefaults& defaults, std::uint32_t vocabulary);

}  // namespace percheron::server
