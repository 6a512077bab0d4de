// Template source into tokens, white space already handled.
//
// As Jinja with trim_blocks and lstrip_blocks on: a line feed right after a block or comment tag
// goes, and so do blanks between the line's start and such a tag; `-` beside a tag strips all white
// space on that side, `+` none.  One line feed at the source's end goes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace percheron::jinja {

struct Token {
    enum class Kind {
        text,
        output_begin,  // {{
        output_end,    // }}
        block_begin,   // {%
        block_end,     // %}
        name,
        string,
        integer,
        number,
        symbol,  // an operator or bracket
        end,
    };
    Kind kind = Kind::end;
    int line = 1;
    std::string text;  // of a string: its content
};

// Throws Failure.  The last token is `end`.
std::vector<Token> tokens_of(std::string_view source);

}  // namespace percheron::jinja
