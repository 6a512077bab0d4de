#include "tools/styled_lines.h"

#include <algorithm>

namespace percheron::tools {
namespace {

constexpr std::string_view column_gap = "   ";

std::string_view sequence_of(Style style) {
    switch (style) {
        case Style::plain:
            return "";
        case Style::label:
            return "\033[2m";
        case Style::strong:
            return "\033[1m";
        case Style::accent:
            return "\033[36m";
        case Style::warning:
            return "\033[31m";
        case Style::heading:
            return "\033[1;4m";
    }
    return "";
}

bool continues(char byte) {
    return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

std::size_t item_columns(const Item& item) {
    std::size_t columns = 0;
    for (const Span& span : item.spans)
        columns += columns_of(span.text);
    return columns;
}

}  // namespace

std::size_t columns_of(std::string_view text) {
    return text.size() -
           static_cast<std::size_t>(std::count_if(text.begin(), text.end(), continues));
}

std::string_view first_columns(std::string_view text, std::size_t columns) {
    std::size_t end = 0;
    while (end < text.size() && (columns > 0 || continues(text[end]))) {
        columns -= continues(text[end]) ? 0 : 1;
        ++end;
    }
    return text.substr(0, end);
}

void StyledLines::add(std::vector<Span> line) {
    if (rows_left() == 0) return;
    std::size_t left = columns_;
    for (Span& span : line) {
        span.text = std::string(first_columns(span.text, left));
        left -= columns_of(span.text);
    }
    lines_.push_back(std::move(line));
}

void StyledLines::flow(const std::vector<Item>& items) {
    std::vector<Span> line;
    std::size_t used = 0;
    for (const Item& item : items) {
        const std::size_t size = item_columns(item);
        if (!line.empty() && used + column_gap.size() + size > columns_) {
            add(std::move(line));
            line.clear();
            used = 0;
        }
        if (!line.empty()) {
            line.push_back({std::string(column_gap), Style::plain});
            used += column_gap.size();
        }
        line.insert(line.end(), item.spans.begin(), item.spans.end());
        used += size;
    }
    if (!line.empty()) add(std::move(line));
}

void StyledLines::wrap(std::string_view sentence, Style style) {
    while (!sentence.empty() && rows_left() > 0 && columns_ > 0) {
        std::string_view line = first_columns(sentence, columns_);
        if (line.size() < sentence.size() && sentence[line.size()] != ' ') {
            const std::size_t blank = line.rfind(' ');
            if (blank != std::string_view::npos && blank > 0) line = line.substr(0, blank);
        }
        add({{std::string(line), style}});
        sentence.remove_prefix(line.size());
        sentence.remove_prefix(std::min(sentence.find_first_not_of(' '), sentence.size()));
    }
}

std::vector<std::string> StyledLines::text(bool colour) const {
    std::vector<std::string> text;
    for (const std::vector<Span>& line : lines_) {
        std::string& made = text.emplace_back();
        for (const Span& span : line) {
            const bool styled = colour && span.style != Style::plain && !span.text.empty();
            if (styled) made += sequence_of(span.style);
            made += span.text;
            if (styled) made += "\033[0m";
        }
        // Blanks at the end are nothing to see.
        made.erase(made.find_last_not_of(' ') + 1);
    }
    return text;
}

}  // namespace percheron::tools
