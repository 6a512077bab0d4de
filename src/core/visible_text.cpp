#include "core/visible_text.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace percheron {
namespace {

struct Letter {
    char32_t character = 0;
    std::size_t length = 0;  // 0: no well-formed character stands here
};

Letter first_letter(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
    const std::uint8_t lead = byte(0);
    if (lead < 0x80) return {lead, 1};
    const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return {};
    char32_t character = lead & (0x7fu >> length);
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return {};
        character = character << 6 | (byte(i) & 0x3fu);
    }
    constexpr char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const bool surrogate = character >= 0xd800 && character <= 0xdfff;
    if (character < least[length] || character > 0x10ffff || surrogate) return {};
    return {character, length};
}

bool is_visible(char32_t character) {
    struct Range {
        char32_t first, last;
    };
    constexpr Range hidden[] = {
        {0x00, 0x1f},       {0x7f, 0x9f},      // controls
        {0xad, 0xad},       {0x61c, 0x61c},    // soft hyphen, Arabic letter mark
        {0x180e, 0x180e},   {0x200b, 0x200f},  // zero width, marks of direction
        {0x2028, 0x202e},   {0x2060, 0x206f},  // separators, turns of direction
        {0xfeff, 0xfeff},   {0xfff9, 0xfffb},  // byte order mark, annotations
        {0xe0000, 0xe0fff},                    // tags
    };
    for (const Range& range : hidden) {
        if (character >= range.first && character <= range.last) return false;
    }
    return true;
}

std::string written_out(char32_t character, bool is_byte) {
    if (character == '\n') return "\\n";
    if (character == '\t') return "\\t";
    if (character == '\r') return "\\r";
    char text[16];
    std::snprintf(text, sizeof text, is_byte ? "\\x%02x" : "\\u{%x}",
                  static_cast<unsigned>(character));
    return text;
}

}  // namespace

std::string visible_text(std::string_view text) {
    std::string shown;
    shown.reserve(text.size());
    while (!text.empty()) {
        const Letter letter = first_letter(text);
        if (letter.length == 0) {
            shown += written_out(static_cast<std::uint8_t>(text.front()), true);
            text.remove_prefix(1);
            continue;
        }
        if (is_visible(letter.character)) {
            shown += text.substr(0, letter.length);
        } else {
            shown += written_out(letter.character, letter.length == 1);
        }
        text.remove_prefix(letter.length);
    }
    return shown;
}

}  // namespace percheron
