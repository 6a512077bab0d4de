// Python's string methods on marked text.  Places and counts are in characters, as in Python.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/marked_text.h"

namespace percheron::jinja {

enum class Side { left = 1, right = 2, both = 3 };

// Without `characters`, white space is stripped.
MarkedText strip(const MarkedText& text, Side side, const MarkedText* characters);

// At every `separator`, at most `most` times (below 0: always), from the right on request.  Without
// separator: at runs of white space, with none at the ends.  An empty separator is a Failure.
std::vector<MarkedText> split(const MarkedText& text, const MarkedText* separator,
                              std::int64_t most, bool from_right);
std::vector<MarkedText> split_lines(const MarkedText& text, bool keep_ends);

MarkedText replace(const MarkedText& text, std::string_view old_part, const MarkedText& new_part,
                   std::int64_t most);

enum class Case { lower, upper, title, capitalized };
bool is_letter(char32_t character);
MarkedText in_case(const MarkedText& text, Case target);

std::size_t character_count(std::string_view text);
std::vector<MarkedText> characters_of(const MarkedText& text);
// Characters [begin, end) with a step, as Python slices; absent bounds are Python's.
MarkedText slice_characters(const MarkedText& text, std::optional<std::int64_t> begin,
                            std::optional<std::int64_t> end, std::int64_t step);

// The indices that a Python slice of `size` items takes, in order.
std::vector<std::size_t> slice_indices(std::size_t size, std::optional<std::int64_t> begin,
                                       std::optional<std::int64_t> end, std::int64_t step);

}  // namespace percheron::jinja
