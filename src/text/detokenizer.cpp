#include "text/detokenizer.h"

#include "text/unicode.h"

namespace percheron {

void Detokenizer::append(std::string_view bytes, std::string& text) {
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
    held_.clear();
}

}  // namespace percheron
