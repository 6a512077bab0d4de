// From a parsed chat to what the engine takes: template, tokenizer, images, limits.  Runs on a text
// thread.
#pragma once

#include <optional>
#include <vector>

#include "server/chat_request.h"
#include "server/generation.h"
#include "text/chat_prompt.h"

namespace percheron::server {

ChatDefaults chat_defaults(const GenerationSetting& setting);

// The prompt of a chat with its pictures in place.
struct RenderedChat {
    std::optional<ApiError> error;
    ChatPrompt prompt;
    std::vector<PromptImage> images;
};
RenderedChat render_chat(ChatRequest& chat, const GenerationSetting& setting);

// All of a PreparedGeneration but its writer and its id's prefix.
PreparedGeneration prepare_chat(const GenerationSetting& setting, ParsedChat parsed);

}  // namespace percheron::server
