#include "tools/event_stream_reader.h"

#include <charconv>

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
    state_ = State::broken;
    problem_ = std::move(problem);
}

std::uint32_t EventStreamReader::feed(std::string_view bytes) {
    text_events_ = 0;
    pending_.append(bytes);
    while (true) {
        if (state_ == State::head) {
            if (!read_head()) break;
        } else if (state_ == State::body) {
            if (!read_chunk()) break;
        } else {
            break;
        }
    }
    return text_events_;
}

bool EventStreamReader::read_head() {
    const std::size_t end = pending_.find("\r\n\r\n");
    if (end == std::string::npos) return false;
    const std::string_view head = std::string_view(pending_).substr(0, end);
    if (head.size() > 12) std::from_chars(head.data() + 9, head.data() + 12, status_);
    if (status_ != 200 || head.find("Transfer-Encoding: chunked") == std::string_view::npos) {
        fail("status " + std::to_string(status_) + ": " + pending_.substr(end + 4, 300));
        return false;
    }
    pending_.erase(0, end + 4);
    state_ = State::body;
    return true;
}

// Takes all whole chunks; what is left waits.
bool EventStreamReader::read_chunk() {
    std::string_view rest = pending_;
    while (state_ == State::body) {
        const std::size_t line = rest.find("\r\n");
        if (line == std::string_view::npos) break;
        std::size_t size = 0;
        const auto parsed = std::from_chars(rest.data(), rest.data() + line, size, 16);
        if (parsed.ec != std::errc{}) {
            fail("a chunk's size is not a number");
            break;
        }
        if (rest.size() < line + 2 + size + 2) break;
        if (size == 0) state_ = State::ended;
        read_events(rest.substr(line + 2, size));
        rest.remove_prefix(line + 2 + size + 2);
    }
    pending_.erase(0, pending_.size() - rest.size());
    return false;
}

void EventStreamReader::read_events(std::string_view data) {
    while (!data.empty() && state_ != State::broken) {
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
