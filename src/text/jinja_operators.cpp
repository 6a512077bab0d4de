#include "text/jinja_operators.h"

#include <algorithm>
#include <cmath>

#include "text/jinja_builtins.h"

namespace percheron::jinja {

Value negative(const Value& value) {
    if (!value.is_integer()) return Value(-value.number());
    std::int64_t result = 0;
    if (__builtin_sub_overflow(std::int64_t{0}, value.integer(), &result)) {
        throw Failure("a number is too large");
    }
    return Value(result);
}

namespace {

Value repeated(const Value& value, std::int64_t times, Budget& budget) {
    const auto count = static_cast<std::uint64_t>(std::max<std::int64_t>(times, 0));
    const std::size_t size =
        std::max<std::size_t>(value.as_text() != nullptr ? value.as_text()->size()
                                                         : value.as_list()->size() * sizeof(Value),
                              1);
    if (count > SIZE_MAX / size) throw Failure("the template makes too much text of this request");
    budget.charge_bytes(size * count);
    budget.charge(count);
    if (value.as_text() != nullptr) {
        MarkedText text;
        for (std::uint64_t i = 0; i < count; ++i)
            text.append(*value.as_text());
        return Value(std::move(text));
    }
    List list;
    for (std::uint64_t i = 0; i < count; ++i) {
        list.insert(list.end(), value.as_list()->begin(), value.as_list()->end());
    }
    return Value(std::move(list));
}

Value whole(const std::string& symbol, std::int64_t left, std::int64_t right) {
    std::int64_t result = 0;
    bool overflow = false;
    if (symbol == "+") {
        overflow = __builtin_add_overflow(left, right, &result);
    } else if (symbol == "-") {
        overflow = __builtin_sub_overflow(left, right, &result);
    } else if (symbol == "*") {
        overflow = __builtin_mul_overflow(left, right, &result);
    } else if (symbol == "**") {
        if (right < 0)
            return Value(std::pow(static_cast<double>(left), static_cast<double>(right)));
        result = 1;
        const std::int64_t most =
            left >= -1 && left <= 1 ? std::min<std::int64_t>(right, 2 + right % 2) : right;
        for (std::int64_t i = 0; i < most && !overflow; ++i) {
            overflow = __builtin_mul_overflow(result, left, &result);
        }
    } else {
        if (right == 0) throw Failure("a division by 0");
        if (right == -1) return negative(symbol == "%" ? Value(std::int64_t{0}) : Value(left));
        const bool down = (left % right != 0) && ((left < 0) != (right < 0));
        result = symbol == "%" ? left % right + (down ? right : 0) : left / right - (down ? 1 : 0);
    }
    if (overflow) throw Failure("a number is too large");
    return Value(result);
}

Value real(const std::string& symbol, double left, double right) {
    if (symbol == "+") return Value(left + right);
    if (symbol == "-") return Value(left - right);
    if (symbol == "*") return Value(left * right);
    if (symbol == "**") return Value(std::pow(left, right));
    if (right == 0) throw Failure("a division by 0");
    if (symbol == "/") return Value(left / right);
    const double quotient = std::floor(left / right);
    return Value(symbol == "//" ? quotient : left - quotient * right);
}

}  // namespace

Value calculate(const std::string& symbol, const Value& left, const Value& right, Budget& budget) {
    if (symbol == "+") {
        if (left.as_text() != nullptr && right.as_text() != nullptr) {
            budget.charge_bytes(left.as_text()->size() + right.as_text()->size());
            MarkedText joined = *left.as_text();
            joined.append(*right.as_text());
            return Value(std::move(joined));
        }
        if (left.as_list() != nullptr && right.as_list() != nullptr) {
            budget.charge((left.as_list()->size() + right.as_list()->size()) / 4);
            budget.check_bytes((left.as_list()->size() + right.as_list()->size()) * sizeof(Value));
            List joined = *left.as_list();
            joined.insert(joined.end(), right.as_list()->begin(), right.as_list()->end());
            return Value(std::move(joined));
        }
    }
    if (symbol == "*" && (left.as_text() != nullptr || left.as_list() != nullptr)) {
        return repeated(left, right.integer(), budget);
    }
    if (!left.is_number() || !right.is_number()) {
        throw Failure("`" + symbol + "` does not work on a " + std::string(left.kind()) +
                      " and a " + std::string(right.kind()));
    }
    if (left.is_integer() && right.is_integer() && symbol != "/") {
        return whole(symbol, left.integer(), right.integer());
    }
    return real(symbol, left.number(), right.number());
}

bool holds(const std::string& symbol, const Value& left, const Value& right, Budget& budget) {
    if (symbol == "==") return left.equals(right);
    if (symbol == "!=") return !left.equals(right);
    if (symbol == "in") return contains(right, left, budget);
    if (symbol == "not in") return !contains(right, left, budget);
    if (symbol == "<") return left.less_than(right);
    if (symbol == ">") return right.less_than(left);
    if (symbol == "<=") return !right.less_than(left);
    return !left.less_than(right);  // >=
}

}  // namespace percheron::jinja
