// What a reply gives out, and the list it is collected in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace percheron {

// One piece of a reply.  Pieces of the same kind that follow each other in one push are joined.
struct ReplyEvent {
    enum class Kind {
        reasoning,       // text: more of the thinking
        content,         // text: more of the answer
        tool_begin,      // tool_index, call_id, text: the whole name of a function
        tool_arguments,  // tool_index, text: more of the arguments' JSON
        tool_end,        // tool_index: the pieces of its arguments now join to one JSON object
    };
    Kind kind = Kind::content;
    std::uint32_t tool_index = 0;  // 0, 1, ... in order of the calls
    std::string call_id;
    std::string text;  // always whole characters
};

// Appends to a list of events that belongs to somebody else, joining what it appended itself.
class ReplyEventWriter {
  public:
    explicit ReplyEventWriter(std::vector<ReplyEvent>& events)
        : events_(events), first_(events.size()) {}

    void text(ReplyEvent::Kind kind, std::string_view text, std::uint32_t tool_index = 0) {
        if (text.empty()) return;
        if (events_.size() > first_ && events_.back().kind == kind &&
            events_.back().tool_index == tool_index) {
            events_.back().text += text;
            return;
        }
        events_.push_back({kind, tool_index, {}, std::string(text)});
    }
    void add(ReplyEvent event) { events_.push_back(std::move(event)); }

  private:
    std::vector<ReplyEvent>& events_;
    std::size_t first_;
};

}  // namespace percheron
