// Grammars that clients write themselves, in the EBNF of xgrammar and llama.cpp: checked for size
// before they are compiled.
#pragma once

#include <string_view>

#include "core/status.h"

namespace percheron::grammar {

inline constexpr std::size_t longest_grammar = 64 * 1024;  // bytes

// Errors: invalid_argument (too long, too deep, counts too large), unsupported (macros such as
// Token(...), and options of rules).  Whether the rules make sense, the compiler says.
Status check_grammar_text(std::string_view text);

}  // namespace percheron::grammar
