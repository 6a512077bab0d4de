#include "text/jinja_text.h"

#include <algorithm>

#include <utf8proc.h>

#include "text/jinja_value.h"
#include "text/unicode.h"

namespace percheron::jinja {
namespace {

// One character, or one byte that belongs to none.
struct Character {
    std::size_t begin = 0;
    std::size_t end = 0;
    char32_t value = 0;
};

std::vector<Character> decoded(std::string_view text) {
    std::vector<Character> characters;
    characters.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Unit unit = next_utf8_unit(text.substr(at));
        const bool good = unit.kind == Utf8Unit::Kind::character;
        characters.push_back({at, at + unit.length, good ? unit.character : 0xFFFDu});
        at += unit.length;
    }
    return characters;
}

std::vector<MarkedText> split_at_spaces(const MarkedText& text, std::int64_t most,
                                        bool from_right) {
    auto characters = decoded(text.text());
    std::vector<MarkedText> parts;
    std::int64_t splits = 0;
    if (from_right) {
        auto end = characters.size();
        while (true) {
            while (end > 0 && is_python_space(characters[end - 1].value))
                --end;
            if (end == 0) break;
            std::size_t begin = end;
            if (most >= 0 && splits == most) {
                begin = 0;
            } else {
                while (begin > 0 && !is_python_space(characters[begin - 1].value))
                    --begin;
            }
            if (begin == 0 && most >= 0 && splits == most) {
                parts.push_back(text.slice(0, characters[end - 1].end));
                break;
            }
            const std::size_t from = characters[begin].begin;
            parts.push_back(text.slice(from, characters[end - 1].end - from));
            end = begin;
            ++splits;
        }
        std::reverse(parts.begin(), parts.end());
        return parts;
    }
    std::size_t begin = 0;
    while (true) {
        while (begin < characters.size() && is_python_space(characters[begin].value))
            ++begin;
        if (begin == characters.size()) break;
        const std::size_t from = characters[begin].begin;
        if (most >= 0 && splits == most) {
            parts.push_back(text.slice(from, text.size() - from));
            break;
        }
        std::size_t end = begin;
        while (end < characters.size() && !is_python_space(characters[end].value))
            ++end;
        parts.push_back(text.slice(from, characters[end - 1].end - from));
        begin = end;
        ++splits;
    }
    return parts;
}

}  // namespace

MarkedText strip(const MarkedText& text, Side side, const MarkedText* characters) {
    std::vector<char32_t> stripped;
    if (characters != nullptr) {
        for (const Character& c : decoded(characters->text()))
            stripped.push_back(c.value);
    }
    const auto goes = [&](char32_t c) {
        if (characters == nullptr) return is_python_space(c);
        return std::find(stripped.begin(), stripped.end(), c) != stripped.end();
    };
    const std::string_view bytes = text.text();
    std::size_t begin = 0;
    std::size_t end = bytes.size();
    if (side != Side::right) {
        while (begin < end) {
            const Utf8Unit unit = next_utf8_unit(bytes.substr(begin));
            if (unit.kind != Utf8Unit::Kind::character || !goes(unit.character)) break;
            begin += unit.length;
        }
    }
    if (side != Side::left) {
        while (begin < end) {
            std::size_t start = end - 1;
            while (start > begin && end - start < 4 && (bytes[start] & 0xC0) == 0x80)
                --start;
            const Utf8Unit unit = next_utf8_unit(bytes.substr(start, end - start));
            if (unit.kind != Utf8Unit::Kind::character || start + unit.length != end ||
                !goes(unit.character)) {
                break;
            }
            end = start;
        }
    }
    return text.slice(begin, end - begin);
}

std::vector<MarkedText> split(const MarkedText& text, const MarkedText* separator,
                              std::int64_t most, bool from_right) {
    if (separator == nullptr) return split_at_spaces(text, most, from_right);
    if (separator->empty()) throw Failure("split: the separator is empty");
    const std::string& bytes = text.text();
    const std::string& sought = separator->text();
    std::vector<std::size_t> places;
    if (from_right) {
        std::size_t end = bytes.size();
        while (most < 0 || static_cast<std::int64_t>(places.size()) < most) {
            if (end < sought.size()) break;
            const std::size_t place = bytes.rfind(sought, end - sought.size());
            if (place == std::string::npos) break;
            places.push_back(place);
            end = place;
        }
        std::reverse(places.begin(), places.end());
    } else {
        for (std::size_t place = bytes.find(sought);
             place != std::string::npos &&
             (most < 0 || static_cast<std::int64_t>(places.size()) < most);
             place = bytes.find(sought, place + sought.size())) {
            places.push_back(place);
        }
    }
    std::vector<MarkedText> parts;
    std::size_t begin = 0;
    for (const std::size_t place : places) {
        parts.push_back(text.slice(begin, place - begin));
        begin = place + sought.size();
    }
    parts.push_back(text.slice(begin, bytes.size() - begin));
    return parts;
}

std::vector<MarkedText> split_lines(const MarkedText& text, bool keep_ends) {
    std::vector<MarkedText> lines;
    const auto characters = decoded(text.text());
    const auto ends_line = [](char32_t c) {
        return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
               c == 0x2029;
    };
    std::size_t begin = 0;
    for (std::size_t i = 0; i < characters.size(); ++i) {
        if (!ends_line(characters[i].value)) continue;
        const std::size_t content_end = characters[i].begin;
        if (characters[i].value == '\r' && i + 1 < characters.size() &&
            characters[i + 1].value == '\n') {
            ++i;
        }
        lines.push_back(text.slice(begin, (keep_ends ? characters[i].end : content_end) - begin));
        begin = characters[i].end;
    }
    if (begin < text.size()) lines.push_back(text.slice(begin, text.size() - begin));
    return lines;
}

MarkedText replace(const MarkedText& text, std::string_view old_part, const MarkedText& new_part,
                   std::int64_t most) {
    const std::string& bytes = text.text();
    MarkedText result;
    std::size_t begin = 0;
    std::int64_t count = 0;
    if (old_part.empty()) {  // between all characters and at both ends
        for (const Character& c : decoded(bytes)) {
            if (most < 0 || count++ < most) result.append(new_part);
            result.append(text.slice(c.begin, c.end - c.begin));
        }
        if (most < 0 || count < most) result.append(new_part);
        return result;
    }
    for (std::size_t place = bytes.find(old_part);
         place != std::string::npos && (most < 0 || count < most);
         place = bytes.find(old_part, begin), ++count) {
        result.append(text.slice(begin, place - begin));
        result.append(new_part);
        begin = place + old_part.size();
    }
    result.append(text.slice(begin, bytes.size() - begin));
    return result;
}

bool is_letter(char32_t character) {
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(character));
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

MarkedText in_case(const MarkedText& text, Case target) {
    MarkedText result;
    std::size_t begin = 0;
    bool word_start = true;
    bool first = true;
    for (const MarkedText::Run& run : text.runs()) {
        std::string mapped;
        const std::string_view part = std::string_view(text.text()).substr(begin, run.end - begin);
        for (const Character& c : decoded(part)) {
            const auto code = static_cast<utf8proc_int32_t>(c.value);
            const bool to_upper = target == Case::upper || (target == Case::title && word_start) ||
                                  (target == Case::capitalized && first);
            if (c.value == U'\u00DF' && to_upper) {
                mapped += target == Case::upper ? "SS" : "Ss";
            } else if (c.value == 0xFFFD) {
                mapped += part.substr(c.begin, c.end - c.begin);
            } else {
                append_utf8(mapped, static_cast<char32_t>(to_upper ? utf8proc_toupper(code)
                                                                   : utf8proc_tolower(code)));
            }
            word_start = !is_letter(c.value);
            first = false;
        }
        result.append(mapped, run.origin);
        begin = run.end;
    }
    return result;
}

std::size_t character_count(std::string_view text) {
    std::size_t count = 0;
    while (!text.empty()) {
        text.remove_prefix(next_utf8_unit(text).length);
        ++count;
    }
    return count;
}

std::vector<MarkedText> characters_of(const MarkedText& text) {
    std::vector<MarkedText> characters;
    for (const Character& c : decoded(text.text())) {
        characters.push_back(text.slice(c.begin, c.end - c.begin));
    }
    return characters;
}

MarkedText slice_characters(const MarkedText& text, std::optional<std::int64_t> begin,
                            std::optional<std::int64_t> end, std::int64_t step) {
    const auto characters = decoded(text.text());
    const auto indices = slice_indices(characters.size(), begin, end, step);
    if (indices.empty()) return {};
    if (step == 1) {
        const std::size_t from = characters[indices.front()].begin;
        return text.slice(from, characters[indices.back()].end - from);
    }
    MarkedText result;
    for (const std::size_t i : indices) {
        result.append(text.slice(characters[i].begin, characters[i].end - characters[i].begin));
    }
    return result;
}

std::vector<std::size_t> slice_indices(std::size_t size, std::optional<std::int64_t> begin,
                                       std::optional<std::int64_t> end, std::int64_t step) {
    if (step == 0) throw Failure("a slice cannot step by 0");
    const auto length = static_cast<std::int64_t>(size);
    const std::int64_t lowest = step > 0 ? 0 : -1;
    const std::int64_t highest = step > 0 ? length : length - 1;
    const auto bound = [&](std::optional<std::int64_t> index, std::int64_t otherwise) {
        if (!index) return otherwise;
        const std::int64_t at = *index < 0 ? std::max(*index, -length - 1) + length : *index;
        return std::clamp(at, lowest, highest);
    };
    std::int64_t at = bound(begin, step > 0 ? lowest : highest);
    const std::int64_t stop = bound(end, step > 0 ? highest : lowest);
    step = std::clamp(step, -length - 1, length + 1);
    std::vector<std::size_t> indices;
    for (; step > 0 ? at < stop : at > stop; at += step) {
        indices.push_back(static_cast<std::size_t>(at));
    }
    return indices;
}

}  // namespace percheron::jinja
