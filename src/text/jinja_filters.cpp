// The filters chat templates use.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <set>
#include <unordered_map>

#include "text/jinja_builtins.h"
#include "text/jinja_text.h"

namespace percheron::jinja {
namespace {

// One call of a filter.
struct Call {
    const std::string& name;
    const Value& value;
    const Arguments& arguments;
    Budget& budget;
};

// ---- of lists ---------------------------------------------------------------------------------

// `attribute` is a name, a dotted path or an index.
Value member(const Value& item, const Value& attribute) {
    if (attribute.is_integer()) return item_of(item, attribute);
    const MarkedText* path = attribute.as_text();
    if (path == nullptr) throw Failure("an attribute is named by a string or a number");
    Value value = item;
    const MarkedText dot(".", TextOrigin::from_template);
    for (const MarkedText& step : split(*path, &dot, -1, false)) {
        const bool number =
            !step.empty() && step.text().find_first_not_of("0123456789") == std::string::npos;
        std::int64_t index = 0;
        if (number) std::from_chars(step.text().data(), step.text().data() + step.size(), index);
        value = number ? item_of(value, Value(index)) : item_of(value, Value(MarkedText(step)));
    }
    return value;
}

// What an item is sorted or compared by: its attribute, in lower case unless cases differ.
Value sort_key(const Call& call, const Value& item, std::size_t attribute_index,
               std::size_t case_index) {
    const Value* attribute = call.arguments.find(attribute_index, "attribute");
    Value key = attribute == nullptr || attribute->is_none() ? item : member(item, *attribute);
    if (key.as_text() != nullptr && !call.arguments.flag(case_index, "case_sensitive", false)) {
        return Value(in_case(*key.as_text(), Case::lower));
    }
    return key;
}

Value sorted(const Call& call) {
    List items = items_of(call.value, call.budget);
    std::vector<std::pair<Value, Value>> keyed;
    for (const Value& item : items)
        keyed.emplace_back(sort_key(call, item, 2, 1), item);
    call.budget.charge(items.size() * 20);
    const bool reverse = call.arguments.flag(0, "reverse", false);
    std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
        return reverse ? b.first.less_than(a.first) : a.first.less_than(b.first);
    });
    for (std::size_t i = 0; i < items.size(); ++i)
        items[i] = keyed[i].second;
    return Value(std::move(items));
}

Value unique(const Call& call) {
    List kept;
    std::set<std::string> seen;
    for (const Value& item : items_of(call.value, call.budget)) {
        MarkedText key;
        sort_key(call, item, 1, 0).append_repr(key, call.budget);
        if (seen.insert(key.text()).second) kept.push_back(item);
    }
    return Value(std::move(kept));
}

Value extreme(const Call& call) {
    const List items = items_of(call.value, call.budget);
    if (items.empty()) return {};
    const Value* best = &items[0];
    for (const Value& item : items) {
        const Value key = sort_key(call, item, 1, 0);
        const Value best_key = sort_key(call, *best, 1, 0);
        if (call.name == "min" ? key.less_than(best_key) : best_key.less_than(key)) best = &item;
    }
    return *best;
}

Value sum(const Call& call) {
    const Value* attribute = call.arguments.find(0, "attribute");
    const Value* start = call.arguments.find(1, "start");
    std::int64_t whole = 0;
    double real = 0;
    bool is_whole = true;
    const auto add = [&](const Value& value) {
        if (value.is_integer() && is_whole) {
            if (__builtin_add_overflow(whole, value.integer(), &whole))
                throw Failure("sum is too large");
        } else {
            if (is_whole) real = static_cast<double>(whole);
            is_whole = false;
            real += value.number();
        }
    };
    if (start != nullptr) add(*start);
    for (const Value& item : items_of(call.value, call.budget)) {
        add(attribute == nullptr || attribute->is_none() ? item : member(item, *attribute));
    }
    return is_whole ? Value(whole) : Value(real);
}

Value join(const Call& call) {
    const Value* separator = call.arguments.find(0, "d");
    const Value* attribute = call.arguments.find(1, "attribute");
    const MarkedText between = separator == nullptr ? MarkedText() : separator->str(call.budget);
    MarkedText joined;
    bool first = true;
    for (const Value& item : items_of(call.value, call.budget)) {
        const MarkedText part =
            (attribute == nullptr ? item : member(item, *attribute)).str(call.budget);
        call.budget.charge(1 + between.size() / 64);
        call.budget.check_bytes(joined.size() + between.size() + part.size());
        if (!first) joined.append(between);
        joined.append(part);
        first = false;
    }
    return Value(std::move(joined));
}

Arguments without_first(const Arguments& arguments, std::size_t count) {
    Arguments rest = arguments;
    rest.positional.erase(rest.positional.begin(),
                          rest.positional.begin() +
                              static_cast<std::ptrdiff_t>(std::min(count, rest.positional.size())));
    return rest;
}

// The reference goes through nothing where the value counts as false, whatever its kind.
List items_if_any(const Call& call) {
    return call.value.truth() ? items_of(call.value, call.budget) : List{};
}

Value map(const Call& call) {
    List mapped;
    if (const Value* attribute = call.arguments.find(SIZE_MAX, "attribute")) {
        const Value* otherwise = call.arguments.find(SIZE_MAX, "default");
        for (const Value& item : items_if_any(call)) {
            call.budget.charge(1);
            Value value = member(item, *attribute);
            if (value.is_undefined() && otherwise != nullptr) value = *otherwise;
            mapped.push_back(std::move(value));
        }
        return Value(std::move(mapped));
    }
    const std::string filter = call.arguments.need(0, "filter", "map").str(call.budget).text();
    const Arguments rest = without_first(call.arguments, 1);
    for (const Value& item : items_if_any(call)) {
        mapped.push_back(apply_filter(filter, item, rest, call.budget));
    }
    return Value(std::move(mapped));
}

// select, reject, selectattr, rejectattr
Value chosen(const Call& call) {
    const bool by_attribute = call.name.ends_with("attr");
    const bool keep = call.name.starts_with("select");
    const std::size_t test_index = by_attribute ? 1 : 0;
    const Value* test = call.arguments.find(test_index, "test");
    const Arguments rest = without_first(call.arguments, test_index + 1);
    List kept;
    for (const Value& item : items_if_any(call)) {
        const Value value =
            by_attribute ? member(item, call.arguments.need(0, "attribute", call.name)) : item;
        const bool passes =
            test == nullptr ? value.truth()
                            : apply_test(test->str(call.budget).text(), value, rest, call.budget);
        if (passes == keep) kept.push_back(item);
    }
    return Value(std::move(kept));
}

Value first_or_last(const Call& call) {
    const List items = items_of(call.value, call.budget);
    if (items.empty()) return {};
    return call.name == "first" ? items.front() : items.back();
}

Value reversed(const Call& call) {
    List items = items_of(call.value, call.budget);
    std::reverse(items.begin(), items.end());
    if (call.value.as_text() == nullptr) return Value(std::move(items));
    MarkedText text;
    for (const Value& character : items)
        text.append(*character.as_text());
    return Value(std::move(text));
}

Value dict_items(const Call& call) {
    if (call.value.is_undefined()) return Value(List{});
    if (call.value.as_dict() == nullptr) throw Failure(call.name + ": a mapping is needed");
    const Value items = call_method(call.value, "items", {}, call.budget);
    if (call.name == "items") return items;
    const bool by_value = [&] {  // dictsort
        const Value* by = call.arguments.find(1, "by");
        return by != nullptr && by->str(call.budget).text() == "value";
    }();
    Arguments how;
    how.named.emplace_back("attribute", Value(std::int64_t{by_value ? 1 : 0}));
    how.named.emplace_back("case_sensitive",
                           Value(call.arguments.flag(0, "case_sensitive", false)));
    how.named.emplace_back("reverse", Value(call.arguments.flag(2, "reverse", false)));
    return apply_filter("sort", items, how, call.budget);
}

// ---- of strings -------------------------------------------------------------------------------

MarkedText text_of(const Call& call) {
    return call.value.str(call.budget);
}

Value trim(const Call& call) {
    const Value* characters = call.arguments.find(0, "chars");
    return Value(
        strip(text_of(call), Side::both, characters == nullptr ? nullptr : characters->as_text()));
}

Value replaced(const Call& call) {
    Arguments arguments;
    arguments.positional = {Value(call.arguments.need(0, "old", call.name).str(call.budget)),
                            Value(call.arguments.need(1, "new", call.name).str(call.budget))};
    const Value* count = call.arguments.find(2, "count");
    if (count != nullptr && !count->is_none()) arguments.positional.push_back(*count);
    return call_method(Value(text_of(call)), "replace", arguments, call.budget);
}

Value indented(const Call& call) {
    const Value* width = call.arguments.find(0, "width");
    MarkedText margin;
    if (width != nullptr && width->as_text() != nullptr) {
        margin = *width->as_text();
    } else {
        const std::int64_t spaces = width == nullptr ? 4 : width->integer();
        call.budget.charge_bytes(static_cast<std::size_t>(std::max<std::int64_t>(spaces, 0)));
        margin = MarkedText(
            std::string(static_cast<std::size_t>(std::max<std::int64_t>(spaces, 0)), ' '),
            TextOrigin::from_template);
    }
    const bool first = call.arguments.flag(1, "first", false);
    const bool blank = call.arguments.flag(2, "blank", false);
    MarkedText result;
    bool at_first = true;
    MarkedText text = text_of(call);
    text.append("\n", TextOrigin::from_template);  // as the reference: a last empty line counts
    for (const MarkedText& line : split_lines(text, false)) {
        call.budget.charge(1 + margin.size() / 64);
        call.budget.check_bytes(result.size() + margin.size() + line.size());
        if (!at_first) result.append("\n", TextOrigin::from_template);
        if (at_first ? first : blank || !line.empty()) result.append(margin);
        result.append(line);
        at_first = false;
    }
    return Value(std::move(result));
}

Value escaped(const Call& call) {
    const MarkedText text = text_of(call);
    MarkedText result;
    std::size_t begin = 0;
    for (const MarkedText::Run& run : text.runs()) {
        std::string part;
        for (std::size_t i = begin; i < run.end; ++i) {
            const char c = text.text()[i];
            if (c == '&')
                part += "&amp;";
            else if (c == '<')
                part += "&lt;";
            else if (c == '>')
                part += "&gt;";
            else if (c == '"')
                part += "&#34;";
            else if (c == '\'')
                part += "&#39;";
            else
                part += c;
        }
        result.append(part, run.origin);
        begin = run.end;
    }
    return Value(std::move(result));
}

Value as_json(const Call& call) {
    JsonStyle style;
    style.ensure_ascii = call.arguments.flag(0, "ensure_ascii", false);
    style.sort_keys = call.arguments.flag(3, "sort_keys", false);
    const Value* indent = call.arguments.find(1, "indent");
    if (indent != nullptr && !indent->is_none()) {
        style.indent = static_cast<int>(std::clamp<std::int64_t>(indent->integer(), 0, 64));
        style.item_separator.pop_back();  // the line break is separation enough
    }
    const Value* separators = call.arguments.find(2, "separators");
    if (separators != nullptr && !separators->is_none()) {
        const List pair = items_of(*separators, call.budget);
        if (pair.size() != 2) throw Failure("tojson: separators are a pair");
        style.item_separator = pair[0].str(call.budget).text();
        style.key_separator = pair[1].str(call.budget).text();
    }
    return Value(json_of(call.value, style, call.budget));
}

// ---- of numbers -------------------------------------------------------------------------------

Value to_number(const Call& call) {
    const bool whole = call.name == "int";
    const Value* otherwise = call.arguments.find(0, "default");
    const Value fallback = otherwise != nullptr ? *otherwise
                           : whole              ? Value(std::int64_t{0})
                                                : Value(0.0);
    double real = 0;
    if (const MarkedText* text = call.value.as_text()) {
        const MarkedText stripped = strip(*text, Side::both, nullptr);
        std::string_view digits = stripped.text();
        if (digits.starts_with('+')) digits.remove_prefix(1);
        const char* end = digits.data() + digits.size();
        std::int64_t value = 0;
        const auto read = std::from_chars(digits.data(), end, value);
        if (whole && read.ec == std::errc() && read.ptr == end) return Value(value);
        const auto read_real = std::from_chars(digits.data(), end, real);
        if (digits.empty() || read_real.ec != std::errc() || read_real.ptr != end) return fallback;
    } else if (call.value.is_number()) {
        if (whole && call.value.is_integer()) return Value(call.value.integer());
        real = call.value.number();
    } else {
        return fallback;
    }
    if (!whole) return Value(real);
    if (!(std::fabs(real) < 9.2e18)) return fallback;
    return Value(static_cast<std::int64_t>(real));
}

Value absolute(const Call& call) {
    if (!call.value.is_integer()) return Value(std::fabs(call.value.number()));
    const std::int64_t value = call.value.integer();
    if (value == INT64_MIN) throw Failure("abs: the number is too large");
    return Value(value < 0 ? -value : value);
}

Value rounded(const Call& call) {
    const Value* digits = call.arguments.find(0, "precision");
    const Value* how = call.arguments.find(1, "method");
    const std::string method = how == nullptr ? "common" : how->str(call.budget).text();
    const auto places = static_cast<int>(
        std::clamp<std::int64_t>(digits == nullptr ? 0 : digits->integer(), -300, 300));
    const double scale = std::pow(10.0, places);
    const double value = call.value.number();
    if (method == "ceil") return Value(std::ceil(value * scale) / scale);
    if (method == "floor") return Value(std::floor(value * scale) / scale);
    if (call.value.is_integer() && places >= 0) return Value(call.value.integer());
    if (places < 0 || !std::isfinite(value)) return Value(std::nearbyint(value * scale) / scale);
    // As Python: the decimal nearest to the exact value, halves to even.
    char written[700];
    const auto end =
        std::to_chars(written, written + sizeof written, value, std::chars_format::fixed, places);
    double result = 0;
    std::from_chars(written, end.ptr, result);
    return Value(result);
}

Value defaulted(const Call& call) {
    const bool also_false = call.arguments.flag(1, "boolean", false);
    if (!call.value.is_undefined() && !(also_false && !call.value.truth())) return call.value;
    const Value* otherwise = call.arguments.find(0, "default_value");
    return otherwise == nullptr ? Value(MarkedText()) : *otherwise;
}

using Filter = Value (*)(const Call&);

const std::unordered_map<std::string_view, Filter>& filters() {
    static const std::unordered_map<std::string_view, Filter> table = {
        {"abs", absolute},
        {"capitalize", [](const Call& c) { return Value(in_case(text_of(c), Case::capitalized)); }},
        {"count",
         [](const Call& c) { return Value(static_cast<std::int64_t>(length_of(c.value))); }},
        {"d", defaulted},
        {"default", defaulted},
        {"dictsort", dict_items},
        {"e", escaped},
        {"escape", escaped},
        {"first", first_or_last},
        {"float", to_number},
        {"indent", indented},
        {"int", to_number},
        {"items", dict_items},
        {"join", join},
        {"last", first_or_last},
        {"length",
         [](const Call& c) { return Value(static_cast<std::int64_t>(length_of(c.value))); }},
        {"list", [](const Call& c) { return Value(items_of(c.value, c.budget)); }},
        {"lower", [](const Call& c) { return Value(in_case(text_of(c), Case::lower)); }},
        {"map", map},
        {"max", extreme},
        {"min", extreme},
        {"reject", chosen},
        {"rejectattr", chosen},
        {"replace", replaced},
        {"reverse", reversed},
        {"round", rounded},
        {"safe", [](const Call& c) { return Value(text_of(c)); }},
        {"select", chosen},
        {"selectattr", chosen},
        {"sort", sorted},
        {"string", [](const Call& c) { return Value(text_of(c)); }},
        {"sum", sum},
        {"title", [](const Call& c) { return Value(in_case(text_of(c), Case::title)); }},
        {"tojson", as_json},
        {"trim", trim},
        {"unique", unique},
        {"upper", [](const Call& c) { return Value(in_case(text_of(c), Case::upper)); }},
    };
    return table;
}

}  // namespace

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments,
                   Budget& budget) {
    budget.charge(1);
    const auto filter = filters().find(name);
    if (filter == filters().end()) throw Failure("there is no filter `" + name + "`");
    return filter->second({name, value, arguments, budget});
}

}  // namespace percheron::jinja
