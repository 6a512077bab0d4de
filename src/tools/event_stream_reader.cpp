#include "tools/event_stream_reader.h"

#include <nlohmann/json.hpp>

namespace percheron::tools {
namespace {

constexpr std::string_view content_mark = "\"content\":\"";
constexpr std::string_view reasoning_mark = "\"reasoning_content\":\"";

// Appends the JSON string that begins at `text`, up to its closing quote.
void append_string(std::string_view text, std::string& target) {
    const std::size_t plain = text.find_first_of("\"\\");
    if (plain != std::string_view::npos && text[plain] == '"') {
        target.append(text, 0, plain);
        return;
    }
    std::size_t end = 0;
    while (end < text.size() && text[end] != '"')
        end += text[end] == '\\' ? 2 : 1;
    std::string quoted(1, '"');
    quoted.append(text, 0, end).push_back('"');
    const auto value = nlohmann::json::parse(quoted, nullptr, false);
    if (value.is_string()) target += value.get_ref<const std::string&>();
}

}  // namespace

void EventStreamReader::fail(std::string problem) {
    broken_ = true;
    problem_ = std::move(problem);
}

EventStreamReader::State EventStreamReader::state() const {
    return broken_ ? State::broken : http_.state();
}

std::uint32_t EventStreamReader::feed(std::string_view bytes) {
    text_events_ = 0;
    http_.add(bytes);
    while (!broken_) {
        const auto piece = http_.next_piece();
        if (!piece) break;
        if (status() == 200 && http_.chunked()) {
            read_events(*piece);
        } else {
            fail("status " + std::to_string(status()) + ": " + std::string(piece->substr(0, 300)));
        }
    }
    if (http_.state() == State::broken && !broken_) fail(http_.problem());
    return text_events_;
}

void EventStreamReader::read_events(std::string_view data) {
    while (!data.empty() && !broken_) {
        const std::size_t end = data.find("\n\n");
        if (end == std::string_view::npos || data.substr(0, 6) != "data: ") {
            fail("an event is not \"data: ...\" and a blank line: " +
                 std::string(data.substr(0, 100)));
            return;
        }
        read_event(data.substr(6, end - 6));
        data.remove_prefix(end + 2);
    }
}

void EventStreamReader::read_event(std::string_view event) {
    if (event == "[DONE]") {
        done_ = true;
        return;
    }
    if (const std::size_t at = event.find(content_mark); at != std::string_view::npos) {
        append_string(event.substr(at + content_mark.size()), content_);
        ++text_events_;
    } else if (event.find(reasoning_mark) != std::string_view::npos) {
        ++text_events_;
    } else if (event.substr(0, 9) == "{\"error\":") {
        fail(std::string(event));
    } else {
        const auto json = nlohmann::json::parse(event, nullptr, false);
        if (json.is_discarded()) {
            fail("an event is not JSON: " + std::string(event.substr(0, 100)));
        } else if (json.contains("usage")) {
            completion_tokens_ = json["usage"].value("completion_tokens", std::uint64_t{0});
        } else {
            finished_ = true;
        }
    }
}

}  // namespace percheron::tools
