// Arithmetic and comparisons, as Python does them.
#pragma once

#include <string>

#include "text/jinja_value.h"

namespace percheron::jinja {

// All throw Failure for kinds an operator does not work on, for numbers beyond 64 bits and for
// divisions by 0.

// `symbol`: + - * / // % **
Value calculate(const std::string& symbol, const Value& left, const Value& right, Budget& budget);
Value negative(const Value& value);
// `symbol`: == != < <= > >= in, not in
bool holds(const std::string& symbol, const Value& left, const Value& right, Budget& budget);

}  // namespace percheron::jinja
