// Numbers of JSON, within bounds.  What is written is a part of what JSON allows: no "-0", at most
// 18 digits of a whole number, so that every reader gives the same value back and no number runs on
// for ever.
#pragma once

#include <optional>
#include <string>

#include "core/status.h"

namespace percheron::grammar {

// A bound as decimal digits;
struct NumberBound {
    bool negative = false;
    std::string whole;     // no leading zeros, "0" for none
    std::string fraction;  // no trailing zeros
    bool exclusive = false;
};

// Nothing: not a decimal number of at most 15 digits, 6 of them behind the point.
std::optional<NumberBound> read_bound(double value, bool exclusive);

struct NumberRange {
    std::optional<NumberBound> least;
    std::optional<NumberBound> most;
};

// The expression of the whole numbers or of all numbers in a range.
// Errors (invalid_argument): no number lies in it.
Result<std::string> integer_rule(const NumberRange& range);
Result<std::string> number_rule(const NumberRange& range);

}  // namespace percheron::grammar
