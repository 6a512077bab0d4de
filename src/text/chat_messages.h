// OpenAI messages and tools as the values that chat templates expect.
//
// Clients write the same thing in several ways; templates know one.  A `developer` message becomes
// a `system` one in its place, tool-call arguments become objects, `reasoning` becomes
// `reasoning_content`, an absent content becomes "".  Text keeps the mark of input everywhere but
// in a role, which is one of a few known words.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "core/status.h"
#include "text/jinja_value.h"

namespace percheron {

struct ChatMessages {
    jinja::Value messages;  // a list of mappings
    bool ends_with_assistant = false;
    std::string last_text;  // of the last message, its text parts joined
};

// Errors: invalid_argument, naming the message: "messages[3].content must be ...".
Result<ChatMessages> read_chat_messages(const nlohmann::ordered_json& messages);

// A list of tools, or none for null and an empty list.
Result<jinja::Value> read_chat_tools(const nlohmann::ordered_json& tools);

}  // namespace percheron
