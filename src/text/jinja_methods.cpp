// Methods of strings, mappings, lists and loops, and the global functions.
#include <algorithm>
#include <array>

#include "text/jinja_builtins.h"
#include "text/jinja_text.h"
#include "text/unicode.h"

namespace percheron::jinja {
namespace {

constexpr std::array text_methods = {
    "capitalize", "count",      "endswith",   "find",      "format",       "index",
    "isalnum",    "isalpha",    "isdigit",    "islower",   "isspace",      "isupper",
    "join",       "lower",      "lstrip",     "partition", "removeprefix", "removesuffix",
    "replace",    "rfind",      "rpartition", "rsplit",    "rstrip",       "split",
    "splitlines", "startswith", "strip",      "title",     "upper"};
constexpr std::array dict_methods = {"get", "items", "keys", "values", "copy"};
constexpr std::array list_methods = {"count", "index", "copy"};

template <class Names>
bool is_among(const Names& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

const MarkedText& need_text(const Arguments& arguments, std::size_t index, std::string_view name,
                            const std::string& of) {
    const MarkedText* text = arguments.need(index, name, of).as_text();
    if (text == nullptr) throw Failure(of + ": a string is needed as " + std::string(name));
    return *text;
}

const MarkedText* optional_text(const Arguments& arguments, std::size_t index,
                                std::string_view name, const std::string& of) {
    const Value* value = arguments.find(index, name);
    if (value == nullptr || value->is_none()) return nullptr;
    return &need_text(arguments, index, name, of);
}

std::int64_t number_or(const Arguments& arguments, std::size_t index, std::string_view name,
                       std::int64_t otherwise) {
    const Value* value = arguments.find(index, name);
    return value == nullptr ? otherwise : value->integer();
}

Value list_of(std::vector<MarkedText> texts) {
    List list;
    list.reserve(texts.size());
    for (MarkedText& text : texts)
        list.emplace_back(std::move(text));
    return Value(std::move(list));
}

// `startswith` and `endswith` take one string or a list of them.
bool begins_or_ends(const MarkedText& text, const Value& part, bool begins, const std::string& of) {
    if (const List* list = part.as_list()) {
        return std::any_of(list->begin(), list->end(),
                           [&](const Value& one) { return begins_or_ends(text, one, begins, of); });
    }
    if (part.as_text() == nullptr) throw Failure(of + ": a string is needed");
    const std::string& sought = part.as_text()->text();
    return begins ? text.text().starts_with(sought) : text.text().ends_with(sought);
}

Value place_of(const MarkedText& text, const MarkedText& part, bool last, bool must_be) {
    const std::size_t place = last ? text.text().rfind(part.text()) : text.text().find(part.text());
    if (place == std::string::npos) {
        if (must_be) throw Failure("index: the part is not in the string");
        return Value(std::int64_t{-1});
    }
    return Value(
        static_cast<std::int64_t>(character_count(std::string_view(text.text()).substr(0, place))));
}

Value partition(const MarkedText& text, const MarkedText& separator, bool from_right) {
    auto parts = split(text, &separator, 1, from_right);
    if (parts.size() == 2) {
        return Value::tuple({Value(parts[0]), Value(separator), Value(parts[1])});
    }
    const Value whole{MarkedText(text)};
    const Value nothing{MarkedText()};
    return Value::tuple(from_right ? List{nothing, nothing, whole} : List{whole, nothing, nothing});
}

bool all_characters(const MarkedText& text, bool (*is)(char32_t)) {
    std::string_view rest = text.text();
    if (rest.empty()) return false;
    while (!rest.empty()) {
        const Utf8Unit unit = next_utf8_unit(rest);
        if (unit.kind != Utf8Unit::Kind::character || !is(unit.character)) return false;
        rest.remove_prefix(unit.length);
    }
    return true;
}

bool is_ascii_digit(char32_t c) {
    return c >= '0' && c <= '9';
}
bool is_letter_or_digit(char32_t c) {
    return is_ascii_digit(c) || is_letter(c);
}

// `{}`, `{0}` and `{name}`, `{{` and `}}`; no format specifications.
Value formatted(const MarkedText& text, const Arguments& arguments, Budget& budget) {
    const std::string& bytes = text.text();
    MarkedText result;
    std::size_t next = 0;
    for (std::size_t at = 0; at < bytes.size();) {
        const std::size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
        result.append(text.slice(at, brace - at));
        at = brace;
        if (at == bytes.size()) break;
        if (at + 1 < bytes.size() && bytes[at + 1] == bytes[at]) {
            result.append(text.slice(at, 1));
            at += 2;
            continue;
        }
        const std::size_t end = bytes.find('}', at);
        if (bytes[at] == '}' || end == std::string::npos) throw Failure("format: a lone brace");
        const std::string field = bytes.substr(at + 1, end - at - 1);
        const bool index = field.find_first_not_of("0123456789") == std::string::npos;
        if (index && field.size() > 4)
            throw Failure("format: a field that is not understood: " + field);
        std::size_t place = SIZE_MAX;
        if (field.empty()) place = next++;
        if (!field.empty() && index) place = static_cast<std::size_t>(std::stoi(field));
        const MarkedText value = arguments.need(place, field, "format").str(budget);
        budget.check_bytes(result.size() + value.size());
        result.append(value);
        at = end + 1;
    }
    return Value(std::move(result));
}

Value call_text_method(const MarkedText& text, const std::string& name, const Arguments& arguments,
                       Budget& budget) {
    budget.charge_bytes(text.size());
    if (name == "strip" || name == "lstrip" || name == "rstrip") {
        const Side side = name == "strip"    ? Side::both
                          : name == "lstrip" ? Side::left
                                             : Side::right;
        return Value(strip(text, side, optional_text(arguments, 0, "chars", name)));
    }
    if (name == "split" || name == "rsplit") {
        return list_of(split(text, optional_text(arguments, 0, "sep", name),
                             number_or(arguments, 1, "maxsplit", -1), name == "rsplit"));
    }
    if (name == "splitlines")
        return list_of(split_lines(text, arguments.flag(0, "keepends", false)));
    if (name == "startswith" || name == "endswith") {
        return Value(
            begins_or_ends(text, arguments.need(0, "prefix", name), name == "startswith", name));
    }
    if (name == "replace") {
        const MarkedText& part = need_text(arguments, 0, "old", name);
        const MarkedText& by = need_text(arguments, 1, "new", name);
        // The result can be larger than both by far.
        budget.charge_bytes(text.size() +
                            (text.size() / std::max<std::size_t>(part.size(), 1) + 1) * by.size());
        return Value(replace(text, part.text(), by, number_or(arguments, 2, "count", -1)));
    }
    if (name == "format") return formatted(text, arguments, budget);
    if (name == "upper") return Value(in_case(text, Case::upper));
    if (name == "lower") return Value(in_case(text, Case::lower));
    if (name == "title") return Value(in_case(text, Case::title));
    if (name == "capitalize") return Value(in_case(text, Case::capitalized));
    if (name == "find" || name == "rfind" || name == "index") {
        return place_of(text, need_text(arguments, 0, "sub", name), name == "rfind",
                        name == "index");
    }
    if (name == "count") {
        const MarkedText& part = need_text(arguments, 0, "sub", name);
        if (part.empty()) return Value(static_cast<std::int64_t>(character_count(text.text()) + 1));
        return Value(static_cast<std::int64_t>(split(text, &part, -1, false).size() - 1));
    }
    if (name == "partition" || name == "rpartition") {
        return partition(text, need_text(arguments, 0, "sep", name), name == "rpartition");
    }
    if (name == "removeprefix" || name == "removesuffix") {
        const MarkedText& part = need_text(arguments, 0, "part", name);
        const bool front = name == "removeprefix";
        if (!begins_or_ends(text, Value(MarkedText(part)), front, name))
            return Value(MarkedText(text));
        return Value(text.slice(front ? part.size() : 0, text.size() - part.size()));
    }
    if (name == "join") {
        return apply_filter("join", arguments.need(0, "iterable", name),
                            {{Value(MarkedText(text))}, {}}, budget);
    }
    if (name == "isdigit") return Value(all_characters(text, is_ascii_digit));
    if (name == "isspace") return Value(all_characters(text, is_python_space));
    if (name == "isalpha") return Value(all_characters(text, is_letter));
    if (name == "isalnum") return Value(all_characters(text, is_letter_or_digit));
    const std::string lower = in_case(text, Case::lower).text();
    const std::string upper = in_case(text, Case::upper).text();
    if (name == "islower") return Value(text.text() == lower && lower != upper);
    return Value(text.text() == upper && lower != upper);  // isupper
}

Value call_dict_method(const Value& object, const std::string& name, const Arguments& arguments,
                       Budget& budget) {
    const Dict& dict = *object.as_dict();
    budget.charge(dict.entries.size());
    if (name == "copy") return object;
    if (name == "get") {
        const Value* found = dict.find(arguments.need(0, "key", name));
        if (found != nullptr) return *found;
        const Value* otherwise = arguments.find(1, "default");
        return otherwise == nullptr ? Value(Value::None{}) : *otherwise;
    }
    List list;
    list.reserve(dict.entries.size());
    for (const auto& [key, value] : dict.entries) {
        if (name == "items") list.push_back(Value::tuple({key, value}));
        if (name == "keys") list.push_back(key);
        if (name == "values") list.push_back(value);
    }
    return Value(std::move(list));
}

Value call_list_method(const Value& object, const std::string& name, const Arguments& arguments,
                       Budget& budget) {
    const List& list = *object.as_list();
    if (name == "copy") return object;
    const Value& sought = arguments.need(0, "value", name);
    budget.charge(list.size());
    if (name == "count") {
        return Value(static_cast<std::int64_t>(std::count_if(
            list.begin(), list.end(), [&](const Value& item) { return item.equals(sought); })));
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
        if (list[i].equals(sought)) return Value(static_cast<std::int64_t>(i));
    }
    throw Failure("index: the value is not in the list");
}

Value call_loop_method(LoopState& loop, const std::string& name, const Arguments& arguments) {
    if (name == "cycle") {
        if (arguments.positional.empty()) throw Failure("loop.cycle needs something to go through");
        return arguments.positional[loop.index % arguments.positional.size()];
    }
    if (name != "changed") throw Failure("a loop has no method `" + name + "`");
    const auto& now = arguments.positional;
    const bool same = loop.last_changed && loop.last_changed->size() == now.size() &&
                      std::equal(now.begin(), now.end(), loop.last_changed->begin(),
                                 [](const Value& a, const Value& b) { return a.equals(b); });
    if (!same) loop.last_changed = now;
    return Value(!same);
}

Value range(const Arguments& arguments, Budget& budget) {
    const auto& bounds = arguments.positional;
    if (bounds.empty() || bounds.size() > 3) throw Failure("range takes one to three numbers");
    const std::int64_t begin = bounds.size() > 1 ? bounds[0].integer() : 0;
    const std::int64_t end = bounds.size() > 1 ? bounds[1].integer() : bounds[0].integer();
    const std::int64_t step = bounds.size() > 2 ? bounds[2].integer() : 1;
    if (step == 0) throw Failure("range cannot step by 0");
    constexpr std::size_t most = 100000;  // as the reference's sandbox
    List list;
    for (std::int64_t at = begin; step > 0 ? at < end : at > end;) {
        if (list.size() == most) throw Failure("range is longer than 100,000");
        list.emplace_back(at);
        if (__builtin_add_overflow(at, step, &at)) break;
    }
    budget.charge(list.size());
    return Value(std::move(list));
}

}  // namespace

bool has_method(const Value& object, std::string_view name) {
    if (object.as_text() != nullptr) return is_among(text_methods, name);
    if (object.as_dict() != nullptr) return is_among(dict_methods, name);
    if (object.as_list() != nullptr) return is_among(list_methods, name);
    return false;
}

Value call_method(const Value& object, const std::string& name, const Arguments& arguments,
                  Budget& budget) {
    if (LoopState* loop = object.as_loop()) return call_loop_method(*loop, name, arguments);
    if (!has_method(object, name)) {
        throw Failure("a " + std::string(object.kind()) + " has no method `" + name + "`");
    }
    if (const MarkedText* text = object.as_text()) {
        return call_text_method(*text, name, arguments, budget);
    }
    if (object.as_dict() != nullptr) return call_dict_method(object, name, arguments, budget);
    return call_list_method(object, name, arguments, budget);
}

bool is_global(std::string_view name) {
    static constexpr std::array names = {"range", "namespace", "dict", "raise_exception",
                                         "strftime_now"};
    return is_among(names, name);
}

Value call_global(const std::string& name, const Arguments& arguments, std::time_t now,
                  Budget& budget) {
    if (name == "range") return range(arguments, budget);
    if (name == "namespace") {
        auto space = std::make_shared<Namespace>();
        if (!arguments.positional.empty()) {
            const Dict* dict = arguments.positional[0].as_dict();
            if (dict == nullptr) throw Failure("namespace takes a mapping or named values");
            for (const auto& [key, value] : dict->entries) {
                space->attributes.emplace_back(key.str(budget).text(), value);
            }
        }
        for (const auto& [key, value] : arguments.named)
            space->attributes.emplace_back(key, value);
        return Value(std::move(space));
    }
    if (name == "dict") {
        Dict dict;
        for (const auto& [key, value] : arguments.named)
            dict.set(Value::text(key), value);
        return Value(std::move(dict));
    }
    if (name == "raise_exception") {
        throw Failure("the chat template says: " +
                      arguments.need(0, "message", name).str(budget).text());
    }
    const std::string format = need_text(arguments, 0, "format", name).text();
    std::tm local{};
    localtime_r(&now, &local);
    char buffer[512];
    const std::size_t length = std::strftime(buffer, sizeof buffer, format.c_str(), &local);
    return Value::text(std::string_view(buffer, length));
}

}  // namespace percheron::jinja
