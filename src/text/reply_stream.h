// Token ids of one reply in, what a client sees out: reasoning, content and tool calls in order.
//
// Joins parser, detokenizer, stop strings and counting.  The joined text of each kind, the calls
// and the counts depend only on the ids, never on how they were cut into pushes: a streamed reply
// and a whole one are the same.  Linear time.  One object a choice; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "percheron/types.h"

#include "text/reply_event.h"
#include "text/tokenizer.h"
#include "text/tool_schema.h"

namespace percheron {

struct ReplyOptions {
    // Where the prompt ended (ChatPrompt::starts_in_reasoning).
    bool starts_in_reasoning = true;
    // False: no tools were offered, and call tags are text like any other.
    bool parse_tool_calls = true;
    // True: the reply has no structure; all of it is content, tags included.
    bool verbatim = false;
    // Ids that end a reply: they give no text.  The engine's stop_tokens and extra_stop_tokens.
    std::vector<TokenId> stop_tokens;
    // Looked for in reasoning and in content, never across the two.  Empty strings are ignored.
    std::vector<std::string> stop_strings;
    // The n-th call of the reply gets this with n behind it as its id.
    std::string call_id_prefix = "call_";
};

struct ReplySummary {
    std::uint32_t tokens = 0;            // consumed, a closing stop id included
    std::uint32_t reasoning_tokens = 0;  // of those, the ones inside the thinking
    std::uint32_t tool_calls = 0;        // begun
    std::uint32_t complete_tool_calls = 0;
    std::uint32_t dropped_tool_calls = 0;  // call tags around nothing that names a function
    bool open_tool_call = false;           // the reply was cut inside a call
    bool in_reasoning = false;             // the thinking is still open
    bool stop_token_seen = false;
    std::string stop_string;  // the one that ended the reply; empty if none did

    // The reply may finish as "tool_calls".
    bool only_complete_calls() const {
        return tool_calls > 0 && complete_tool_calls == tool_calls && !open_tool_call;
    }
};

class ReplyStream {
  public:
    // `tokenizer` and `tools` must outlive the stream; tools may be shared by many.
    ReplyStream(const Tokenizer& tokenizer, const ToolSchemas& tools, ReplyOptions options);
    ReplyStream(ReplyStream&&) noexcept;
    ReplyStream& operator=(ReplyStream&&) noexcept;
    ~ReplyStream();

    struct Step {
        std::size_t consumed = 0;  // tokens that belong to the reply; the rest must be forgotten
        bool stop = false;         // a stop id or stop string was met: cancel the choice
    };
    // Appends to `events`.  After a step with `stop`, further pushes consume nothing.
    Step push(std::span<const TokenId> ids, std::vector<ReplyEvent>& events);

    // Why no more tokens come.
    enum class End {
        stopped,  // the model ended its reply: a call it left open is closed if it makes sense
        cut,      // by length, deadline, cancel: a call left open stays incomplete
    };
    // Gives out what was held back.  Call once, after the last push, with or without `stop`.
    void finish(End end, std::vector<ReplyEvent>& events);

    const ReplySummary& summary() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace percheron
