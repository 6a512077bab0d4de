#include "grammar/number_rules.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "grammar/rule_writer.h"

namespace percheron::grammar {
namespace {

constexpr std::size_t most_fraction_digits = 6;
constexpr std::size_t most_whole_digits = 9;  // of bounds, and of bounded numbers with a fraction
constexpr std::size_t most_integer_digits = 18;

std::string digit_range(char first, char last) {
    return joined({"[", std::string_view(&first, 1), "-", std::string_view(&last, 1), "]"});
}

std::string digits(std::size_t least, std::size_t most) {
    if (most == 0) return "\"\"";
    return joined({"[0-9]{", std::to_string(least), ",", std::to_string(most), "}"});
}

using Parts = std::vector<std::string>;

// Strings of as many digits as `low` and `high` have, between them.
void equal_length(std::string_view low, std::string_view high, const std::string& prefix,
                  Parts& parts) {
    const auto with = [&](const std::string& rest) {
        return RuleWriter::sequence({RuleWriter::literal(prefix), rest});
    };
    if (low.empty()) {
        parts.push_back(RuleWriter::literal(prefix));
        return;
    }
    const std::string_view low_rest = low.substr(1);
    const std::string_view high_rest = high.substr(1);
    const auto all = [](std::string_view text, char digit) {
        return text.find_first_not_of(digit) == std::string_view::npos;
    };
    if (low[0] == high[0]) {
        equal_length(low_rest, high_rest, prefix + low[0], parts);
        return;
    }
    char from = low[0];
    char to = high[0];
    if (!all(low_rest, '0')) {
        equal_length(low_rest, std::string(low_rest.size(), '9'), prefix + from, parts);
        ++from;
    }
    const bool split_high = !all(high_rest, '9');
    if (split_high) --to;
    if (from <= to) {
        parts.push_back(with(RuleWriter::sequence(
            {digit_range(from, to), digits(low_rest.size(), low_rest.size())})));
    }
    if (split_high) {
        equal_length(std::string(high_rest.size(), '0'), high_rest, prefix + high[0], parts);
    }
}

// Whole numbers from `low` to `high`, both without sign; `high` empty: up to `most_digits`.
void whole_between(const std::string& low, const std::string& high, std::size_t most_digits,
                   Parts& parts) {
    const std::size_t longest = high.empty() ? most_digits : high.size();
    for (std::size_t length = low.size(); length <= longest; ++length) {
        const std::string least = length == low.size() ? low
                                  : length == 1        ? "0"
                                                : joined({"1", std::string(length - 1, '0')});
        const std::string most =
            length == high.size() && !high.empty() ? high : std::string(length, '9');
        if (least <= most) equal_length(least, most, "", parts);
    }
}

std::string plus_one(std::string number) {
    for (auto digit = number.rbegin(); digit != number.rend(); ++digit) {
        if (*digit != '9') {
            ++*digit;
            return number;
        }
        *digit = '0';
    }
    return joined({"1", number});
}

// Of a number above 0.
std::string minus_one(std::string number) {
    for (auto digit = number.rbegin(); digit != number.rend(); ++digit) {
        if (*digit != '0') {
            --*digit;
            break;
        }
        *digit = '9';
    }
    const std::size_t first = number.find_first_not_of('0');
    return first == std::string::npos ? "0" : number.substr(first);
}

bool less(const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
}

// Fractions behind the point, with the point, that are at least (more than) `low` and at most (less
// than) `high`; `low` empty: 0, `high` missing: below 1.  `room`: digits left.
void fraction_between(const std::string& low, bool above, const std::optional<std::string>& high,
                      bool below, std::size_t room, const std::string& prefix, Parts& parts) {
    const bool low_done = low.empty();
    const bool high_done = high && high->empty();
    const std::string written = prefix.empty() ? std::string() : joined({".", prefix});
    // The digits so far and nothing more.
    if (low_done && !above && !(high_done && below)) {
        parts.push_back(RuleWriter::literal(written));
    }
    if (room == 0) return;
    const char low_digit = low_done ? '0' : low[0];
    const char high_digit = !high ? '9' : high_done ? '0' : (*high)[0];
    for (char digit = low_digit; digit <= high_digit; ++digit) {
        const bool at_low = digit == low_digit && (!low_done || above);
        const bool at_high = high && digit == high_digit;
        const std::string next = prefix + digit;
        if (!at_low && !at_high) {
            // All further digits are free: join the digits that are so.
            char last = digit;
            while (last < high_digit && !(high && last + 1 == high_digit))
                ++last;
            parts.push_back(RuleWriter::sequence({RuleWriter::literal(joined({".", prefix})),
                                                  digit_range(digit, last), digits(0, room - 1)}));
            digit = last;
            continue;
        }
        const std::string low_rest = at_low && !low_done ? low.substr(1) : "";
        const std::optional<std::string> high_rest =
            at_high ? std::optional<std::string>(high_done ? "" : high->substr(1)) : std::nullopt;
        fraction_between(low_rest, at_low && above, high_rest, below, room - 1, next, parts);
    }
}

// Numbers without sign from `low` to `high` (missing: no end).
void decimal_between(const NumberBound& low, const std::optional<NumberBound>& high, Parts& parts) {
    const auto numbers = [&](const std::string& whole, const std::string& from, bool above,
                             const std::optional<std::string>& to, bool below) {
        Parts fractions;
        fraction_between(from, above, to, below, most_fraction_digits, "", fractions);
        if (fractions.empty()) return;
        parts.push_back(RuleWriter::sequence(
            {RuleWriter::literal(whole), RuleWriter::alternatives(fractions)}));
    };
    if (high && high->whole == low.whole) {
        numbers(low.whole, low.fraction, low.exclusive, high->fraction, high->exclusive);
        return;
    }
    numbers(low.whole, low.fraction, low.exclusive, std::nullopt, false);
    Parts wholes;
    const std::string first = plus_one(low.whole);
    if (!high) {
        whole_between(first, "", most_whole_digits, wholes);
    } else if (const std::string last = minus_one(high->whole); !less(last, first)) {
        whole_between(first, last, 0, wholes);
    }
    if (!wholes.empty()) {
        parts.push_back(
            RuleWriter::sequence({RuleWriter::alternatives(wholes),
                                  joined({"(\".\" ", digits(1, most_fraction_digits), ")?"})}));
    }
    if (high) numbers(high->whole, "", false, high->fraction, high->exclusive);
}

bool is_zero(const NumberBound& bound) {
    return bound.whole == "0" && bound.fraction.empty();
}

bool less(const NumberBound& a, const NumberBound& b) {
    if (a.whole != b.whole) return less(a.whole, b.whole);
    return a.fraction < b.fraction;
}

// low > high, or both equal and one of them excluded.
bool none_between(const NumberBound& low, const NumberBound& high) {
    return less(high, low) || (!less(low, high) && (low.exclusive || high.exclusive));
}

const NumberBound zero{false, "0", "", false};
const NumberBound above_zero{false, "0", "", true};

// Calls `between` for the numbers from zero up and, with a minus sign, for those below zero.
template <class Between>
Result<std::string> both_signs(const NumberRange& range, Between between) {
    Parts positive;
    Parts negative;
    const std::optional<NumberBound>& least = range.least;
    const std::optional<NumberBound>& most = range.most;
    if (!most || !most->negative) {
        const NumberBound low = least && !least->negative ? *least : zero;
        if (!most || !none_between(low, *most)) between(low, most, positive);
    }
    if (!least || least->negative) {
        const NumberBound low = most && most->negative && !is_zero(*most) ? *most : above_zero;
        if (!least || !none_between(low, *least)) between(low, least, negative);
    }
    Parts parts = positive;
    if (!negative.empty()) {
        parts.push_back(RuleWriter::sequence({"\"-\"", RuleWriter::alternatives(negative)}));
    }
    if (parts.empty()) return Error(ErrorCode::invalid_argument, "no number lies in this range");
    return RuleWriter::alternatives(parts);
}

}  // namespace

std::optional<NumberBound> read_bound(double value, bool exclusive) {
    char buffer[64];
    const auto written =
        std::to_chars(buffer, buffer + sizeof buffer, std::abs(value), std::chars_format::fixed);
    if (!std::isfinite(value) || written.ec != std::errc{}) return std::nullopt;
    const std::string text(buffer, written.ptr);
    NumberBound bound;
    bound.exclusive = exclusive;
    const std::size_t point = text.find('.');
    bound.whole = text.substr(0, point);
    if (point != std::string::npos) bound.fraction = text.substr(point + 1);
    bound.negative = value < 0;
    if (bound.fraction.size() > most_fraction_digits) return std::nullopt;
    if (bound.whole.size() > (bound.fraction.empty() ? 15 : most_whole_digits)) return std::nullopt;
    return bound;
}

Result<std::string> integer_rule(const NumberRange& range) {
    if (!range.least && !range.most) {
        return joined(
            {"(\"0\" | \"-\"? [1-9] [0-9]{0,", std::to_string(most_integer_digits - 1), "})"});
    }
    return both_signs(
        range, [](const NumberBound& low, const std::optional<NumberBound>& high, Parts& parts) {
            std::string first = low.whole;
            if (!low.fraction.empty() || low.exclusive) first = plus_one(first);
            std::string last;
            if (high) {
                last = high->whole;
                if (high->fraction.empty() && high->exclusive) {
                    if (last == "0") return;
                    last = minus_one(last);
                }
                if (less(last, first)) return;
            }
            whole_between(first, last, most_integer_digits, parts);
        });
}

Result<std::string> number_rule(const NumberRange& range) {
    if (!range.least && !range.most) {
        return std::string(
            "(\"-\"? (\"0\" | [1-9] [0-9]{0,17}) (\".\" [0-9]{1,17})? ([eE] [+\\-]? [0-9]{1,2})?)");
    }
    for (const std::optional<NumberBound>& bound : {range.least, range.most}) {
        if (bound && bound->whole.size() > most_whole_digits) {
            return Error(ErrorCode::unsupported,
                         "bounds of numbers that need not be whole must have at most 9 digits "
                         "before the point");
        }
    }
    return both_signs(range, decimal_between);
}

}  // namespace percheron::grammar
