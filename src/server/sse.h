// Server-sent events, written without a JSON library and without an allocation a token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace percheron::server {

// Appends `text` as the inside of a JSON string.  `text` must be valid UTF-8; every character but
// `"`, `\` and the controls below U+0020 stays as it is.
void append_escaped(std::string& json, std::string_view text);
// With the quotes.
void append_quoted(std::string& json, std::string_view text);
void append_number(std::string& json, std::uint64_t value);
// The shortest form that reads back as the same number.  JSON knows no infinities: they become the
// largest finite number, NaN becomes 0.
void append_number(std::string& json, double value);
void append_number(std::string& json, float value);

// Builds one piece of an HTTP body at a time: one or more events, with the chunk's framing around
// it when the connection needs that.  The memory is kept from piece to piece.
class EventBuffer {
  public:
    EventBuffer() { clear(); }

    void clear();
    bool empty() const { return text_.size() == framing_room; }
    // Where events are appended: "data: {...}\n\n".
    std::string& text() { return text_; }
    // The finished piece; valid until the next change.
    std::string_view piece(bool chunked);

  private:
    static constexpr std::size_t framing_room = 10;  // eight hex digits, CR, LF
    std::string text_;
};

}  // namespace percheron::server
