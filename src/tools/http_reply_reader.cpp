#include "tools/http_reply_reader.h"

#include <algorithm>
#include <charconv>

namespace percheron::tools {
namespace {

constexpr std::size_t longest_size_line = 1024;  // of a chunk, extensions included

bool equal_without_case(std::string_view one, std::string_view other) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                      [&](char a, char b) { return lower(a) == lower(b); });
}

std::string_view without_blanks(std::string_view text) {
    constexpr std::string_view blanks = " \t";
    const std::size_t begin = text.find_first_not_of(blanks);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

// The whole text as a number, or nothing.
template <class Number>
std::optional<Number> number_of(std::string_view text, int base) {
    Number number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return number;
}

}  // namespace

void HttpReplyReader::fail(std::string problem) {
    state_ = State::broken;
    problem_ = std::move(problem);
}

void HttpReplyReader::add(std::string_view bytes) {
    bytes_.erase(0, read_);
    read_ = 0;
    bytes_.append(bytes);
    while (state_ == State::head) {
        const std::size_t before = read_;
        read_head();
        if (read_ == before) break;
    }
}

void HttpReplyReader::end() {
    if (state_ == State::body && form_ == Form::until_end && unread().empty()) {
        state_ = State::ended;
    } else if (state_ != State::ended && state_ != State::broken) {
        fail("the connection was cut before the reply's end");
    }
}

// An interim reply (1xx) leaves the state as it is: the next head is the one.
void HttpReplyReader::read_head() {
    const std::size_t end = unread().find("\r\n\r\n");
    if (std::min(end, unread().size()) > most_head_bytes)
        return fail("the reply's head has no end");
    if (end == std::string_view::npos) return;
    std::string_view head = unread().substr(0, end + 2);
    const std::string_view first = head.substr(0, head.find("\r\n"));
    const auto status = first.size() >= 12 && first.starts_with("HTTP/1.")
                            ? number_of<int>(first.substr(9, 3), 10)
                            : std::nullopt;
    if (!status || *status < 100) return fail("the reply is not HTTP");
    status_ = *status;
    form_ = Form::until_end;
    head.remove_prefix(first.size() + 2);
    while (!head.empty()) {
        const std::size_t line = head.find("\r\n");
        if (!read_field(head.substr(0, line))) return;
        head.remove_prefix(line + 2);
    }
    read_ += end + 4;
    if (status_ < 200) return;
    const bool empty = status_ == 204 || status_ == 304 || (form_ == Form::counted && left_ == 0);
    state_ = empty ? State::ended : State::body;
}

bool HttpReplyReader::read_field(std::string_view line) {
    const std::size_t colon = line.find(':');
    const std::string_view name = line.substr(0, colon);
    const std::string_view value = colon == std::string_view::npos
                                       ? std::string_view()
                                       : without_blanks(line.substr(colon + 1));
    if (equal_without_case(name, "Transfer-Encoding") && equal_without_case(value, "chunked")) {
        form_ = Form::chunked;
    } else if (equal_without_case(name, "Content-Length") && form_ != Form::chunked) {
        const auto length = number_of<std::uint64_t>(value, 10);
        if (!length) {
            fail("the reply's Content-Length is not a number");
            return false;
        }
        form_ = Form::counted;
        left_ = *length;
    }
    return true;
}

std::optional<std::string_view> HttpReplyReader::take(std::size_t size) {
    body_bytes_ += size;
    if (body_bytes_ > most_body_bytes_) {
        fail("the reply is larger than " + std::to_string(most_body_bytes_) + " bytes");
        return std::nullopt;
    }
    const std::string_view piece = unread().substr(0, size);
    read_ += size;
    return piece;
}

std::optional<std::string_view> HttpReplyReader::next_piece() {
    if (state_ != State::body || unread().empty()) return std::nullopt;
    if (form_ == Form::chunked) return next_chunk();
    if (form_ == Form::until_end) return take(unread().size());
    const std::size_t size =
        static_cast<std::size_t>(std::min<std::uint64_t>(left_, unread().size()));
    left_ -= size;
    if (left_ == 0) state_ = State::ended;
    return take(size);
}

std::optional<std::string_view> HttpReplyReader::next_chunk() {
    const std::size_t line = unread().find("\r\n");
    if (std::min(line, unread().size()) > longest_size_line) {
        fail("a chunk's size has no end");
        return std::nullopt;
    }
    if (line == std::string_view::npos) return std::nullopt;
    const std::string_view text = unread().substr(0, line);
    const auto size = number_of<std::uint64_t>(without_blanks(text.substr(0, text.find(';'))), 16);
    if (!size || *size > most_body_bytes_ - body_bytes_ ||
        *size > std::numeric_limits<std::size_t>::max() / 2) {
        fail(size ? "a chunk is too large" : "a chunk's size is not a number");
        return std::nullopt;
    }
    if (*size == 0) {
        state_ = State::ended;
        return std::nullopt;
    }
    const auto length = static_cast<std::size_t>(*size);
    if (unread().size() < line + 2 + length + 2) return std::nullopt;
    if (unread().substr(line + 2 + length, 2) != "\r\n") {
        fail("a chunk is longer than it says");
        return std::nullopt;
    }
    read_ += line + 2;
    const auto piece = take(length);
    read_ += 2;
    return piece;
}

}  // namespace percheron::tools
