// `value is test`.
#include <cmath>
#include <unordered_map>

#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

namespace percheron::jinja {
namespace {

struct Call {
    const Value& value;
    const Arguments& arguments;
    Budget& budget;

    const Value& other() const { return arguments.need(0, "other", "the test"); }
};

bool is_remainder(const Call& call, std::int64_t divisor, std::int64_t remainder) {
    if (divisor == 0) throw Failure("nothing is divisible by 0");
    if (divisor == -1) return remainder == 0;
    return (call.value.integer() % divisor + divisor) % divisor == remainder;
}

bool is_iterable(const Call& call) {
    return call.value.is_undefined() || call.value.as_text() != nullptr ||
           call.value.as_list() != nullptr || call.value.as_dict() != nullptr;
}

// Python asks for a length and for items by key: strings and mappings have both.
bool is_sequence(const Call& call) {
    return is_iterable(call);
}

bool is_boolean(const Call& call) {
    return call.value.get_if<bool>() != nullptr;
}

bool is_in_case(const Call& call, Case wanted) {
    const MarkedText text = call.value.str(call.budget);
    const std::string lower = in_case(text, Case::lower).text();
    const std::string upper = in_case(text, Case::upper).text();
    return lower != upper && text.text() == (wanted == Case::lower ? lower : upper);
}

bool is_same(const Call& call) {
    const Value& a = call.value;
    const Value& b = call.other();
    const bool boolean = a.get_if<bool>() != nullptr;
    return boolean == (b.get_if<bool>() != nullptr) && a.equals(b);
}

using Test = bool (*)(const Call&);

const std::unordered_map<std::string_view, Test>& tests() {
    static constexpr Test equal = [](const Call& c) { return c.value.equals(c.other()); };
    static constexpr Test unequal = [](const Call& c) { return !c.value.equals(c.other()); };
    static constexpr Test less = [](const Call& c) { return c.value.less_than(c.other()); };
    static constexpr Test greater = [](const Call& c) { return c.other().less_than(c.value); };
    static constexpr Test at_most = [](const Call& c) { return !c.other().less_than(c.value); };
    static constexpr Test at_least = [](const Call& c) { return !c.value.less_than(c.other()); };
    static const std::unordered_map<std::string_view, Test> table = {
        {"==", equal},
        {"eq", equal},
        {"equalto", equal},
        {"!=", unequal},
        {"ne", unequal},
        {"<", less},
        {"lt", less},
        {"lessthan", less},
        {">", greater},
        {"gt", greater},
        {"greaterthan", greater},
        {"<=", at_most},
        {"le", at_most},
        {">=", at_least},
        {"ge", at_least},
        {"boolean", is_boolean},
        {"callable", [](const Call& c) { return c.value.as_callable() != nullptr; }},
        {"defined", [](const Call& c) { return !c.value.is_undefined(); }},
        {"divisibleby", [](const Call& c) { return is_remainder(c, c.other().integer(), 0); }},
        {"even", [](const Call& c) { return is_remainder(c, 2, 0); }},
        {"false", [](const Call& c) { return is_boolean(c) && !c.value.truth(); }},
        {"filter",
         [](const Call& c) {
             try {
                 (void)apply_filter(c.value.str(c.budget).text(), Value(), {}, c.budget);
                 return true;
             } catch (const Failure& failure) {
                 return !std::string_view(failure.what()).starts_with("there is no filter");
             }
         }},
        {"float", [](const Call& c) { return c.value.get_if<double>() != nullptr; }},
        {"in", [](const Call& c) { return contains(c.other(), c.value, c.budget); }},
        {"integer", [](const Call& c) { return c.value.is_integer() && !is_boolean(c); }},
        {"iterable", is_iterable},
        {"lower", [](const Call& c) { return is_in_case(c, Case::lower); }},
        {"mapping", [](const Call& c) { return c.value.as_dict() != nullptr; }},
        {"none", [](const Call& c) { return c.value.is_none(); }},
        {"number",
         [](const Call& c) {
             return c.value.is_number() || c.value.get_if<Value::BigInteger>() != nullptr;
         }},
        {"odd", [](const Call& c) { return is_remainder(c, 2, 1); }},
        {"sameas", is_same},
        {"sequence", is_sequence},
        {"string", [](const Call& c) { return c.value.as_text() != nullptr; }},
        {"true", [](const Call& c) { return is_boolean(c) && c.value.truth(); }},
        {"undefined", [](const Call& c) { return c.value.is_undefined(); }},
        {"upper", [](const Call& c) { return is_in_case(c, Case::upper); }},
    };
    return table;
}

}  // namespace

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments,
                Budget& budget) {
    budget.charge(1);
    const auto test = tests().find(name);
    if (test == tests().end()) throw Failure("there is no test `" + name + "`");
    return test->second({value, arguments, budget});
}

}  // namespace percheron::jinja
