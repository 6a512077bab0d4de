// The structure of a reply: thinking, answer, tool calls.
//
//   reply := thinking "</think>" content? call*       (the prompt may already hold "<think>")
//
// Tags count by token id alone; a tag spelled in ordinary tokens is text.  Inside the thinking
// nothing but </think> is a tag: a call there is not a call.  In content, stray closing tags and
// tags of calls are dropped, a <think> before any word opens the thinking again, and a call whose
// opening tag is missing is recognised by the known tool's name before its first key, or alone on
// its line before the closing tag.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/content_gate.h"
#include "text/detokenizer.h"
#include "text/reply_event.h"
#include "text/reply_tags.h"
#include "text/stop_strings.h"
#include "text/tool_call_parser.h"
#include "text/tool_schema.h"

namespace percheron {

class ReplyParser {
  public:
    struct Settings {
        bool starts_in_reasoning = true;
        bool parse_tool_calls = true;
        std::string call_id_prefix;
        // No structure: all is content, and none of it is layout that has to wait for what follows.
        bool verbatim = false;
    };
    // `tools` and `stops` must outlive the parser.
    ReplyParser(const ToolSchemas& tools, const StopStrings& stops, Settings settings);

    // One token.  Returns the stop string that it completes: the reply ends there.
    const std::string* push(ReplyTag tag, std::string_view bytes, ReplyEventWriter& events);

    // The reply ends.  `complete`: the model ended it.
    void end(bool complete, ReplyEventWriter& events);

    bool in_reasoning() const { return place_ == Place::reasoning; }
    bool in_call() const { return call_.has_value(); }
    std::uint32_t calls() const { return calls_; }
    std::uint32_t complete_calls() const { return complete_calls_; }
    std::uint32_t dropped_calls() const { return dropped_calls_; }

  private:
    enum class Place { reasoning, content, call, ended };

    const std::string* reasoning_token(ReplyTag tag, std::string_view bytes,
                                       ReplyEventWriter& events);
    const std::string* content_token(ReplyTag tag, std::string_view bytes,
                                     ReplyEventWriter& events);
    const std::string* call_token(ReplyTag tag, std::string_view bytes, ReplyEventWriter& events);

    const std::string* reasoning_text(std::string_view text, ReplyEventWriter& events);
    const std::string* content_text(std::string_view text, ReplyEventWriter& events);
    void close_reasoning(bool cut, ReplyEventWriter& events);
    void settle_content(ReplyEventWriter& events);
    void begin_call(ReplyEventWriter& events);
    const std::string* finish_call(ReplyEventWriter& events);

    const ToolSchemas* tools_;
    Settings settings_;
    Place place_;
    bool reasoning_seen_ = false;  // a word of it
    Detokenizer detokenizer_;      // of the channel being written
    StopMatcher stops_;            // likewise
    ContentGate gate_;
    std::optional<ToolCallParser> call_;
    std::uint32_t calls_ = 0;
    std::uint32_t complete_calls_ = 0;
    std::uint32_t dropped_calls_ = 0;
};

}  // namespace percheron
