// Chat completions on the wire: streamed chunks and the whole reply, from the same calls.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/reply_writer.h"
#include "text/tokenizer.h"

namespace percheron::server {

struct ChatWriterOptions {
    std::uint32_t choices = 1;
    bool include_usage = false;
    bool continuous_usage = false;
    bool token_ids = false;
    bool logprobs = false;
};

// chat.completion.chunk events.  The first chunk of a choice carries the role and comes with its
// first token; usage comes last, alone, and only when asked for; a failure is an error event.
std::unique_ptr<ReplyWriter> make_chat_stream_writer(const WriterSetting& setting,
                                                     const ChatWriterOptions& options);

// One chat.completion object.
std::unique_ptr<ReplyWriter> make_chat_writer(const WriterSetting& setting,
                                              const ChatWriterOptions& options);

// [{"token", "bytes", "logprob", "top_logprobs"}, ...]
void append_token_logprobs(std::string& json, std::span<const TokenDetail> tokens,
                           const Tokenizer& tokenizer);

}  // namespace percheron::server
