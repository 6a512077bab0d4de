// Anthropic's form of a chat (POST /v1/messages, /v1/messages/count_tokens) as a chat body.
//
// Blocks become messages in their order: thinking, text and tool_use of an assistant one message, a
// tool_result a message of its own.  A conversation that ends with an assistant's text is continued
// from there.  Lines of the system prompt that begin with "x-anthropic-billing-header:" are left
// out: they change with every request, and nothing behind them could be reused.
#pragma once

#include <string_view>

#include "server/converted_body.h"

namespace percheron::server {

ConvertedBody chat_of_messages(std::string_view body);

}  // namespace percheron::server
