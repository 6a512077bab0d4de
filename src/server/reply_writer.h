// One model of a reply for every route: what a reply consists of, and who writes it down.
//
// A Reply (reply.h) turns engine events into the calls below; a writer turns them into the bytes of
// one wire format, streamed or whole.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "percheron/engine.h"
#include "percheron/types.h"

#include "server/api_error.h"
#include "text/reply_stream.h"

namespace percheron::server {

// Fixed when the request is accepted.
struct ReplyIdentity {
    std::string id;                // "chatcmpl-..."
    std::string model;             // the served name
    std::uint64_t created = 0;     // Unix seconds
    std::string reasoning_effort;  // the effective level
};

struct TokenDetail {
    TokenId id{};
    std::optional<EngineEvents::Logprobs> logprobs;
};

// A piece of the reply with the tokens it took since the piece before.  `tokens` is empty unless
// the request asked for ids or log-probs.
struct ReplyPiece {
    ReplyEvent event;
    std::vector<TokenDetail> tokens;
};

struct ChoiceEnd {
    std::string_view finish_reason;  // stop, length, tool_calls
    std::string_view
        stop_reason;          // eos, stop_string, max_tokens, context, loop, deadline, tool_calls
    std::string stop_string;  // with stop_reason stop_string: which
    std::uint64_t seed = 0;
    std::vector<TokenDetail> rest;  // tokens that belong to no piece (a stop id, a cut character)
};

struct ReplyUsage {
    std::uint32_t prompt_tokens = 0;
    std::uint32_t image_tokens = 0;  // of the prompt's
    std::uint32_t cached_tokens = 0;
    std::uint32_t completion_tokens = 0;  // over all choices
    std::uint32_t reasoning_tokens = 0;
    ChoiceStatistics draft;  // its draft_ fields, over all choices; `proposer` empty: none
};

// How far the prompt is.
struct PromptProgress {
    std::uint32_t total = 0;  // tokens
    std::uint32_t cached = 0;
    std::uint32_t processed = 0;     // the cached ones among them
    std::uint64_t milliseconds = 0;  // since the request came
};

class ReplyWriter {
  public:
    virtual ~ReplyWriter() = default;

    // The engine has begun with the prompt.
    virtual void begin() = 0;
    // From time to time until the first piece, only where the request asked for it.
    virtual void progress(const PromptProgress& /*progress*/) {}
    // Log-probs of the prompt's tokens from its second on, in order, some at a time, before the
    // first piece; only where the request asked for them.  `choice`: the prompt's first.
    virtual void prompt_scores(std::uint32_t /*choice*/,
                               std::span<const EngineEvents::Logprobs> /*scores*/) {}
    // What one engine step added to one choice.  `usage` is what has been counted so far.
    virtual void pieces(std::uint32_t choice, std::span<const ReplyPiece> pieces,
                        const ReplyUsage& usage) = 0;
    virtual void end_choice(std::uint32_t choice, const ChoiceEnd& end,
                            const ReplyUsage& usage) = 0;
    // All choices have ended.
    virtual void end(const ReplyUsage& usage) = 0;
    // The reply ends here, without end().
    virtual void fail(const ApiError& error) = 0;
    // Nothing has been sent for a while.
    virtual void keep_alive() {}
};

// Adds what another choice drafted.
void add_draft(ChoiceStatistics& sum, const ChoiceStatistics& more);

// The pieces that routes share.
void append_usage(std::string& json, const ReplyUsage& usage);
// "prompt_progress":{...}
void append_progress(std::string& json, const PromptProgress& progress);
void append_token_ids(std::string& json, std::span<const TokenDetail> tokens);

}  // namespace percheron::server
