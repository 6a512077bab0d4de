#include "text/detokenizer.h"

#include "text/unicode.h"

namespace percheron {

namespace {

// How many bytes a character has, by its first.
std::size_t character_length(char first) {
    const auto byte = static_cast<unsigned char>(first);
    return byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
}

}  // namespace

void Detokenizer::skip_missing(std::string_view& bytes) {
    while (missing_ > 0 && !bytes.empty()) {
        const bool continues = (static_cast<unsigned char>(bytes.front()) & 0xc0) == 0x80;
        missing_ = continues ? missing_ - 1 : 0;
        if (continues) bytes.remove_prefix(1);
    }
}

void Detokenizer::append(std::string_view bytes, std::string& text) {
    skip_missing(bytes);
    // Plain ASCII after nothing held is most of what there is.
    if (held_.empty()) {
        std::size_t ascii = 0;
        while (ascii < bytes.size() && static_cast<unsigned char>(bytes[ascii]) < 0x80)
            ++ascii;
        text += bytes.substr(0, ascii);
        bytes.remove_prefix(ascii);
        if (bytes.empty()) return;
    }
    std::string joined;
    if (!held_.empty()) {
        joined = held_;
        joined += bytes;
        bytes = joined;
        held_.clear();
    }
    while (!bytes.empty()) {
        const Utf8Unit unit = next_utf8_unit(bytes);
        if (unit.kind == Utf8Unit::Kind::incomplete) {
            held_ = bytes;
            return;
        }
        text += unit.kind == Utf8Unit::Kind::character ? bytes.substr(0, unit.length)
                                                       : replacement_character;
        bytes.remove_prefix(unit.length);
    }
}

void Detokenizer::close(std::string& text) {
    if (held_.empty()) return;
    text += replacement_character;
    missing_ = character_length(held_.front()) - held_.size();
    held_.clear();
}

}  // namespace percheron
