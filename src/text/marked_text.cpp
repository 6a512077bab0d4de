#include "text/marked_text.h"

#include <algorithm>

namespace percheron {

MarkedText::MarkedText(std::string text, TextOrigin origin) : text_(std::move(text)) {
    if (!text_.empty()) runs_.push_back({text_.size(), origin});
}

bool MarkedText::has_input() const {
    return std::any_of(runs_.begin(), runs_.end(),
                       [](const Run& run) { return run.origin == TextOrigin::from_input; });
}

void MarkedText::append(std::string_view text, TextOrigin origin) {
    if (text.empty()) return;
    text_ += text;
    if (!runs_.empty() && runs_.back().origin == origin) {
        runs_.back().end = text_.size();
    } else {
        runs_.push_back({text_.size(), origin});
    }
}

void MarkedText::append(const MarkedText& other) {
    std::size_t begin = 0;
    for (const Run& run : other.runs_) {
        append(std::string_view(other.text_).substr(begin, run.end - begin), run.origin);
        begin = run.end;
    }
}

MarkedText MarkedText::slice(std::size_t begin, std::size_t count) const {
    MarkedText part;
    begin = std::min(begin, size());
    const std::size_t end = begin + std::min(count, size() - begin);
    auto run = std::upper_bound(runs_.begin(), runs_.end(), begin,
                                [](std::size_t at, const Run& r) { return at < r.end; });
    for (; begin < end; ++run) {
        const std::size_t stop = std::min(end, run->end);
        part.append(std::string_view(text_).substr(begin, stop - begin), run->origin);
        begin = stop;
    }
    return part;
}

bool MarkedText::operator==(const MarkedText& other) const {
    return text_ == other.text_ && std::equal(runs_.begin(), runs_.end(), other.runs_.begin(),
                                              other.runs_.end(), [](const Run& a, const Run& b) {
                                                  return a.end == b.end && a.origin == b.origin;
                                              });
}

}  // namespace percheron
