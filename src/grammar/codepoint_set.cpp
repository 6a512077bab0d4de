#include "grammar/codepoint_set.h"

#include <algorithm>
#include <array>

namespace percheron::grammar {
namespace {

constexpr std::uint32_t first_surrogate = 0xd800;
constexpr std::uint32_t last_surrogate = 0xdfff;

void append_codepoint(std::string& text, std::uint32_t codepoint) {
    const bool plain = (codepoint >= '0' && codepoint <= '9') ||
                       (codepoint >= 'A' && codepoint <= 'Z') ||
                       (codepoint >= 'a' && codepoint <= 'z');
    if (plain) {
        text += static_cast<char>(codepoint);
        return;
    }
    static constexpr char hex[] = "0123456789abcdef";
    text += "\\U";
    for (int shift = 28; shift >= 0; shift -= 4)
        text += hex[codepoint >> shift & 15];
}

}  // namespace

void CodepointSet::add(std::uint32_t first, std::uint32_t last) {
    if (first < first_surrogate) add_range(first, std::min(last, first_surrogate - 1));
    if (last > last_surrogate) add_range(std::max(first, last_surrogate + 1), last);
}

void CodepointSet::add_range(std::uint32_t first, std::uint32_t last) {
    // Everything that overlaps or touches becomes one range.
    const auto from = std::find_if(ranges_.begin(), ranges_.end(),
                                   [first](const Range& range) { return first <= range.last + 1; });
    auto to = from;
    while (to != ranges_.end() && to->first <= last + 1) {
        first = std::min(first, to->first);
        last = std::max(last, to->last);
        ++to;
    }
    ranges_.insert(ranges_.erase(from, to), {first, last});
}

void CodepointSet::add(const CodepointSet& other) {
    for (const Range& range : other.ranges_)
        add_range(range.first, range.last);
}

CodepointSet CodepointSet::complement() const {
    CodepointSet result;
    std::uint32_t next = 0;
    for (const Range& range : ranges_) {
        if (range.first > next) result.add(next, range.first - 1);
        next = range.last + 1;
    }
    if (next <= last) result.add(next, last);
    return result;
}

CodepointSet CodepointSet::without(const CodepointSet& other) const {
    CodepointSet kept = complement();
    kept.add(other);
    return kept.complement();
}

bool CodepointSet::contains(std::uint32_t codepoint) const {
    return contains_all(codepoint, codepoint);
}

bool CodepointSet::contains_all(std::uint32_t first, std::uint32_t last) const {
    return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& range) {
        return range.first <= first && last <= range.last;
    });
}

std::string CodepointSet::rule_text() const {
    std::string text = "[";
    for (const Range& range : ranges_) {
        append_codepoint(text, range.first);
        if (range.last != range.first) {
            text += '-';
            append_codepoint(text, range.last);
        }
    }
    text += "]";
    return text;
}

}  // namespace percheron::grammar
