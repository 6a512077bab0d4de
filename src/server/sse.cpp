#include "server/sse.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace percheron::server {
namespace {

constexpr auto needs_escape = [] {
    std::array<bool, 256> table{};
    for (int c = 0; c < 0x20; ++c)
        table[static_cast<std::size_t>(c)] = true;
    table['"'] = table['\\'] = true;
    return table;
}();

void append_escape(std::string& json, char c) {
    switch (c) {
        case '"':
            json += "\\\"";
            break;
        case '\\':
            json += "\\\\";
            break;
        case '\n':
            json += "\\n";
            break;
        case '\r':
            json += "\\r";
            break;
        case '\t':
            json += "\\t";
            break;
        case '\b':
            json += "\\b";
            break;
        case '\f':
            json += "\\f";
            break;
        default: {
            constexpr std::string_view digits = "0123456789abcdef";
            json += "\\u00";
            json += digits[static_cast<unsigned char>(c) >> 4];
            json += digits[static_cast<unsigned char>(c) & 15];
        }
    }
}

template <class Float>
void append_floating(std::string& json, Float value) {
    constexpr Float largest = std::numeric_limits<Float>::max();
    if (std::isnan(value)) value = 0;
    if (std::isinf(value)) value = value > 0 ? largest : -largest;
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    json.append(digits, end);
}

}  // namespace

void append_escaped(std::string& json, std::string_view text) {
    std::size_t plain = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (!needs_escape[static_cast<unsigned char>(text[i])]) continue;
        json.append(text, plain, i - plain);
        append_escape(json, text[i]);
        plain = i + 1;
    }
    json.append(text, plain, text.size() - plain);
}

void append_quoted(std::string& json, std::string_view text) {
    json += '"';
    append_escaped(json, text);
    json += '"';
}

void append_number(std::string& json, std::uint64_t value) {
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    json.append(digits, end);
}

void append_number(std::string& json, double value) {
    append_floating(json, value);
}
void append_number(std::string& json, float value) {
    append_floating(json, value);
}

void EventBuffer::clear() {
    text_.assign(framing_room, ' ');
}

std::string_view EventBuffer::piece(bool chunked) {
    const std::size_t size = text_.size() - framing_room;
    if (!chunked) return std::string_view(text_).substr(framing_room);
    char digits[16];
    const auto end = std::to_chars(digits, digits + sizeof digits, size, 16).ptr;
    const auto count = static_cast<std::size_t>(end - digits);
    const std::size_t begin = framing_room - 2 - count;
    text_.replace(begin, count, digits, count);
    text_[framing_room - 2] = '\r';
    text_[framing_room - 1] = '\n';
    text_ += "\r\n";
    return std::string_view(text_).substr(begin);
}

}  // namespace percheron::server
