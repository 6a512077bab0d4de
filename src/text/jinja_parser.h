// Tokens into the syntax tree.
#pragma once

#include <string_view>

#include "text/jinja_syntax.h"

namespace percheron::jinja {

// Throws Failure with the line and what was expected.  Tags that belong to Jinja but not to the
// subset (include, import, extends, block, call, autoescape) are named in the message.
Block parse_template(std::string_view source);

}  // namespace percheron::jinja
