// UTF-8 and the few character classes that text handling needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace percheron {

// What stands at the front of some bytes.
struct Utf8Unit {
    enum class Kind {
        character,   // a well-formed character of `length` bytes
        invalid,     // `length` bytes that no continuation can make well-formed
        incomplete,  // all `length` bytes left are the start of a character
    };
    Kind kind = Kind::invalid;
    std::uint8_t length = 0;
    char32_t character = 0;
};

// The first unit of `bytes` (not empty).  An invalid unit is the longest prefix of a well-formed
// character, at least one byte: the unit that Unicode advises to replace by one U+FFFD.
Utf8Unit next_utf8_unit(std::string_view bytes);

bool is_valid_utf8(std::string_view bytes);

// The same text with every invalid or incomplete unit replaced by U+FFFD.
std::string with_replacements(std::string_view bytes);

void append_utf8(std::string& text, char32_t character);

// White space as Python's str.isspace and str.strip see it.
bool is_python_space(char32_t character);
// What Python's repr leaves as it is.
bool is_python_printable(char32_t character);

// Space, tab, line feed, carriage return: the blanks between tags and around JSON.
bool is_blank(std::string_view bytes);
std::string_view without_blanks_around(std::string_view bytes);

inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

}  // namespace percheron
