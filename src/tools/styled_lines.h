// Lines of a terminal that are never wider or more than it has room for.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace percheron::tools {

enum class Style { plain, label, strong, accent, warning, heading };

// A piece of text in one style.  Text holds no control characters, one column a character.
struct Span {
    std::string text;
    Style style = Style::plain;
};

// Spans that belong together and stay on one line.
struct Item {
    std::vector<Span> spans;
};

std::size_t columns_of(std::string_view text);
// The first so many columns.
std::string_view first_columns(std::string_view text, std::size_t columns);

class StyledLines {
  public:
    StyledLines(std::size_t columns, std::size_t rows) : columns_(columns), rows_(rows) {}

    std::size_t columns() const { return columns_; }
    std::size_t rows_left() const { return rows_ - lines_.size(); }

    // What does not fit is cut off: spans behind the last column, lines below the last row.
    void add(std::vector<Span> line);
    // Items with a gap between them, as many a line as fit.
    void flow(const std::vector<Item>& items);
    // A sentence over as many lines as it needs.
    void wrap(std::string_view sentence, Style style);

    // With colour: SGR sequences around what has a style.
    std::vector<std::string> text(bool colour) const;

  private:
    std::size_t columns_;
    std::size_t rows_;
    std::vector<std::vector<Span>> lines_;
};

}  // namespace percheron::tools
