#include "text/unicode.h"

#include <simdjson.h>
#include <utf8proc.h>

namespace percheron {

Utf8Unit next_utf8_unit(std::string_view bytes) {
    using Kind = Utf8Unit::Kind;
    const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
    const std::uint8_t first = at(0);
    if (first < 0x80) return {Kind::character, 1, first};
    // The second byte's range excludes overlong forms, surrogates and what lies past U+10FFFF.
    std::uint8_t low = 0x80;
    std::uint8_t high = 0xBF;
    std::uint8_t length = 0;
    char32_t character = 0;
    if (first >= 0xC2 && first <= 0xDF) {
        length = 2;
        character = first & 0x1Fu;
    } else if (first >= 0xE0 && first <= 0xEF) {
        length = 3;
        character = first & 0x0Fu;
        if (first == 0xE0) low = 0xA0;
        if (first == 0xED) high = 0x9F;
    } else if (first >= 0xF0 && first <= 0xF4) {
        length = 4;
        character = first & 0x07u;
        if (first == 0xF0) low = 0x90;
        if (first == 0xF4) high = 0x8F;
    } else {
        return {Kind::invalid, 1, 0};
    }
    for (std::uint8_t i = 1; i < length; ++i) {
        if (i == bytes.size()) return {Kind::incomplete, i, 0};
        if (at(i) < low || at(i) > high) return {Kind::invalid, i, 0};
        character = (character << 6) | (at(i) & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    return {Kind::character, length, character};
}

bool is_valid_utf8(std::string_view bytes) {
    return simdjson::validate_utf8(bytes.data(), bytes.size());
}

std::string with_replacements(std::string_view bytes) {
    if (is_valid_utf8(bytes)) return std::string(bytes);
    std::string text;
    text.reserve(bytes.size() + 8);
    while (!bytes.empty()) {
        const Utf8Unit unit = next_utf8_unit(bytes);
        text += unit.kind == Utf8Unit::Kind::character ? bytes.substr(0, unit.length)
                                                       : replacement_character;
        bytes.remove_prefix(unit.length);
    }
    return text;
}

void append_utf8(std::string& text, char32_t character) {
    const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
    if (character < 0x80) {
        put(character);
    } else if (character < 0x800) {
        put(0xC0 | (character >> 6));
        put(0x80 | (character & 0x3F));
    } else if (character < 0x10000) {
        put(0xE0 | (character >> 12));
        put(0x80 | ((character >> 6) & 0x3F));
        put(0x80 | (character & 0x3F));
    } else {
        put(0xF0 | (character >> 18));
        put(0x80 | ((character >> 12) & 0x3F));
        put(0x80 | ((character >> 6) & 0x3F));
        put(0x80 | (character & 0x3F));
    }
}

bool is_python_space(char32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_python_printable(char32_t character) {
    if (character == ' ') return true;
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(character))) {
        case UTF8PROC_CATEGORY_CC:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_CS:
        case UTF8PROC_CATEGORY_CO:
        case UTF8PROC_CATEGORY_CN:
        case UTF8PROC_CATEGORY_ZL:
        case UTF8PROC_CATEGORY_ZP:
        case UTF8PROC_CATEGORY_ZS:
            return false;
        default:
            return true;
    }
}

bool is_blank(std::string_view bytes) {
    return bytes.find_first_not_of(" \t\n\r") == std::string_view::npos;
}

std::string_view without_blanks_around(std::string_view bytes) {
    const std::size_t first = bytes.find_first_not_of(" \t\n\r");
    if (first == std::string_view::npos) return {};
    return bytes.substr(first, bytes.find_last_not_of(" \t\n\r") - first + 1);
}

}  // namespace percheron
