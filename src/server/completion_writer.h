// Completions on the wire: streamed chunks and the whole reply.  Choice c of prompt p has the index
// p * n + c.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "server/completion_request.h"
#include "server/generation.h"
#include "server/reply_writer.h"

namespace percheron::server {

struct CompletionWriterOptions {
    std::uint32_t choices = 1;  // a prompt
    bool include_usage = false;
    bool continuous_usage = false;
    bool token_ids = false;
    bool logprobs = false;
    bool echo = false;  // the prompt, with its log-probs if logprobs is set, before its reply
    std::shared_ptr<const std::vector<CompletionPrompt>> prompts;
};

// text_completion events; usage last, alone, and only when asked for.
std::unique_ptr<ReplyWriter> make_completion_stream_writer(const WriterSetting& setting,
                                                           const CompletionWriterOptions& options);

// One text_completion object.
std::unique_ptr<ReplyWriter> make_completion_writer(const WriterSetting& setting,
                                                    const CompletionWriterOptions& options);

}  // namespace percheron::server
