// Regular expressions as JSON Schema's `pattern` and clients' `regex` write them (ECMA-262 with the
// u flag, what describes a language): characters, classes, ., \d \w \s and their complements,
// groups, alternatives, * + ? {m,n}, and ^ $ at the ends.  What only a matcher can do (look-around,
// back-references, \b, \p) is refused by name, and so is what would become too large.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "grammar/codepoint_set.h"

namespace percheron::grammar {

struct Regex {
    enum class Kind { set, sequence, alternatives, repeat };
    Kind kind = Kind::sequence;  // an empty sequence is the empty text
    CodepointSet set;
    std::vector<Regex> parts;  // one for a repeat
    std::uint32_t least = 0;   // of a repeat
    std::optional<std::uint32_t> most;
};

enum class RegexMatch {
    whole,   // the text as a whole, ^ and $ at the ends say nothing more
    search,  // anywhere in the text but where ^ and $ hold it
};

inline constexpr std::size_t longest_regex = 8192;         // bytes
inline constexpr std::uint32_t largest_count = 10000;      // of {m,n}
inline constexpr std::uint64_t largest_expansion = 50000;  // characters, counts multiplied out

// Errors (invalid_argument, unsupported): where the expression stops to make sense, and why.
Result<Regex> parse_regex(std::string_view pattern, RegexMatch match);

}  // namespace percheron::grammar
