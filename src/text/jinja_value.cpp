#include "text/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "text/jinja_callable.h"
#include "text/unicode.h"

namespace percheron::jinja {

void Budget::charge(std::uint64_t steps) {
    if (steps > steps_) throw Failure("the template takes too many steps for this request");
    steps_ -= steps;
}

void Budget::charge_bytes(std::size_t bytes) {
    check_bytes(bytes);
    charge(bytes / 64 + 1);
}

void Budget::check_bytes(std::size_t bytes) const {
    if (bytes > text_bytes_) throw Failure("the template makes too much text of this request");
}

namespace {

int deeper(int depth) {
    if (depth >= max_value_depth) throw Failure("values are nested too deeply");
    return depth + 1;
}

}  // namespace

Value::Value(List list) {
    for (const Value& item : list)
        depth_ = std::max(depth_, item.depth());
    depth_ = deeper(depth_);
    content_ = std::make_shared<const List>(std::move(list));
}

Value Value::tuple(List list) {
    Value value(std::move(list));
    value.tuple_ = true;
    return value;
}

Value::Value(Dict dict) {
    for (const auto& [key, value] : dict.entries) {
        depth_ = std::max({depth_, key.depth(), value.depth()});
    }
    depth_ = deeper(depth_);
    content_ = std::make_shared<const Dict>(std::move(dict));
}

bool Value::is_number() const {
    return get_if<bool>() != nullptr || get_if<std::int64_t>() != nullptr ||
           get_if<double>() != nullptr;
}

bool Value::is_integer() const {
    return get_if<bool>() != nullptr || get_if<std::int64_t>() != nullptr ||
           get_if<BigInteger>() != nullptr;
}

const MarkedText* Value::as_text() const {
    const auto* text = get_if<TextPointer>();
    return text == nullptr ? nullptr : text->get();
}

const List* Value::as_list() const {
    const auto* list = get_if<std::shared_ptr<const List>>();
    return list == nullptr ? nullptr : list->get();
}

const Dict* Value::as_dict() const {
    const auto* dict = get_if<std::shared_ptr<const Dict>>();
    return dict == nullptr ? nullptr : dict->get();
}

Namespace* Value::as_namespace() const {
    const auto* space = get_if<std::shared_ptr<Namespace>>();
    return space == nullptr ? nullptr : space->get();
}

const Callable* Value::as_callable() const {
    const auto* callable = get_if<std::shared_ptr<const Callable>>();
    return callable == nullptr ? nullptr : callable->get();
}

LoopState* Value::as_loop() const {
    const auto* loop = get_if<std::shared_ptr<LoopState>>();
    return loop == nullptr ? nullptr : loop->get();
}

int Value::depth() const {
    return depth_;
}

bool Value::truth() const {
    if (is_undefined() || is_none()) return false;
    if (const bool* value = get_if<bool>()) return *value;
    if (const auto* value = get_if<std::int64_t>()) return *value != 0;
    if (const double* value = get_if<double>()) return *value != 0;
    if (const MarkedText* value = as_text()) return !value->empty();
    if (const List* value = as_list()) return !value->empty();
    if (const Dict* value = as_dict()) return !value->entries.empty();
    return true;
}

double Value::number() const {
    if (const bool* value = get_if<bool>()) return *value ? 1 : 0;
    if (const auto* value = get_if<std::int64_t>()) return static_cast<double>(*value);
    if (const double* value = get_if<double>()) return *value;
    throw Failure("a number is needed where a " + std::string(kind()) + " stands");
}

std::int64_t Value::integer() const {
    if (const bool* value = get_if<bool>()) return *value ? 1 : 0;
    if (const auto* value = get_if<std::int64_t>()) return *value;
    throw Failure("a whole number is needed where a " + std::string(kind()) + " stands");
}

std::string_view Value::kind() const {
    static constexpr std::string_view names[] = {
        "undefined value", "none", "boolean", "number",    "number",   "number",
        "string",          "list", "mapping", "namespace", "function", "loop"};
    return names[content_.index()];
}

bool Value::equals(const Value& other) const {
    if (is_number() && other.is_number()) {
        if (is_integer() && other.is_integer()) return integer() == other.integer();
        return number() == other.number();
    }
    if (content_.index() != other.content_.index()) return false;
    if (is_undefined() || is_none()) return true;
    if (const auto* value = get_if<BigInteger>()) {
        return *value->digits == *other.get_if<BigInteger>()->digits;
    }
    if (const MarkedText* value = as_text()) return value->text() == other.as_text()->text();
    if (const List* value = as_list()) {
        return tuple_ == other.tuple_ &&
               std::equal(value->begin(), value->end(), other.as_list()->begin(),
                          other.as_list()->end(),
                          [](const Value& a, const Value& b) { return a.equals(b); });
    }
    if (const Dict* value = as_dict()) {
        const Dict& with = *other.as_dict();
        return value->entries.size() == with.entries.size() &&
               std::all_of(value->entries.begin(), value->entries.end(), [&](const auto& entry) {
                   const Value* same = with.find(entry.first);
                   return same != nullptr && entry.second.equals(*same);
               });
    }
    if (as_namespace() != nullptr) return as_namespace() == other.as_namespace();
    if (as_callable() != nullptr) return as_callable() == other.as_callable();
    return as_loop() == other.as_loop();
}

bool Value::less_than(const Value& other) const {
    if (is_number() && other.is_number()) {
        if (is_integer() && other.is_integer()) return integer() < other.integer();
        return number() < other.number();
    }
    // UTF-8 sorts as its code points do.
    if (as_text() != nullptr && other.as_text() != nullptr) {
        return as_text()->text() < other.as_text()->text();
    }
    if (as_list() != nullptr && other.as_list() != nullptr) {
        const List& left = *as_list();
        const List& right = *other.as_list();
        for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
            if (!left[i].equals(right[i])) return left[i].less_than(right[i]);
        }
        return left.size() < right.size();
    }
    throw Failure("a " + std::string(kind()) + " and a " + std::string(other.kind()) +
                  " have no order");
}

const Value* Dict::find(std::string_view key) const {
    if (text_keys_.empty()) {
        for (const auto& [name, value] : entries) {
            if (name.as_text() != nullptr && name.as_text()->text() == key) return &value;
        }
        return nullptr;
    }
    const auto found = text_keys_.find(std::string(key));
    return found == text_keys_.end() ? nullptr : &entries[found->second].second;
}

const Value* Dict::find(const Value& key) const {
    if (key.as_text() != nullptr) return find(key.as_text()->text());
    for (const auto& [name, value] : entries) {
        if (name.equals(key)) return &value;
    }
    return nullptr;
}

void Dict::set(Value key, Value value) {
    if (const Value* present = find(key)) {
        *const_cast<Value*>(present) = std::move(value);
        return;
    }
    entries.emplace_back(std::move(key), std::move(value));
    constexpr std::size_t scanned_entries = 12;
    if (entries.size() < scanned_entries) return;
    const std::size_t first = text_keys_.empty() ? 0 : entries.size() - 1;
    for (std::size_t i = first; i < entries.size(); ++i) {
        if (const MarkedText* text = entries[i].first.as_text()) text_keys_[text->text()] = i;
    }
}

Value* Namespace::find(std::string_view name) {
    for (auto& [key, value] : attributes) {
        if (key == name) return &value;
    }
    return nullptr;
}

std::string float_repr(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    char buffer[64];
    // Shortest digits that read back to the same number: d.ddde+XX
    const auto end =
        std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
    std::string_view written(buffer, static_cast<std::size_t>(end.ptr - buffer));
    std::string text;
    if (written[0] == '-') {
        text = "-";
        written.remove_prefix(1);
    }
    const std::size_t e = written.find('e');
    int exponent = 0;
    const std::string_view exponent_text = written.substr(e + (written[e + 1] == '+' ? 2 : 1));
    std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
    std::string digits(1, written[0]);
    if (e > 2) digits += written.substr(2, e - 2);
    const int count = static_cast<int>(digits.size());
    if (exponent < -4 || exponent >= 16) {
        text += digits[0];
        if (count > 1) text.append(".").append(digits, 1);
        text += exponent < 0 ? "e-" : "e+";
        const std::string size = std::to_string(std::abs(exponent));
        return text + (size.size() < 2 ? "0" : "") + size;
    }
    if (exponent < 0)
        return text + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
    if (count <= exponent + 1) {
        return text + digits + std::string(static_cast<std::size_t>(exponent + 1 - count), '0') +
               ".0";
    }
    return text + digits.substr(0, static_cast<std::size_t>(exponent) + 1) + "." +
           digits.substr(static_cast<std::size_t>(exponent) + 1);
}

MarkedText Value::str(Budget& budget) const {
    if (const MarkedText* value = as_text()) {
        budget.charge_bytes(value->size());
        return *value;
    }
    if (is_undefined()) return {};
    MarkedText out;
    append_repr(out, budget);
    return out;
}

namespace {

void append_hex(std::string& escaped, char32_t value, int digits) {
    static constexpr char hex[] = "0123456789abcdef";
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4)
        escaped += hex[(value >> shift) & 15];
}

// One character as it stands between quotes.
void append_escaped(std::string& escaped, const Utf8Unit& unit, std::string_view bytes,
                    char quote) {
    const char32_t c = unit.character;
    if (c == static_cast<char32_t>(quote) || c == '\\') {
        escaped += '\\';
        escaped += bytes;
    } else if (c == '\n' || c == '\r' || c == '\t') {
        escaped += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (unit.kind != Utf8Unit::Kind::character || is_python_printable(c)) {
        escaped += bytes;
    } else if (c < 0x100) {
        append_hex(escaped += "\\x", c, 2);
    } else if (c < 0x10000) {
        append_hex(escaped += "\\u", c, 4);
    } else {
        append_hex(escaped += "\\U", c, 8);
    }
}

// Python prefers single quotes unless the text has some and no double ones.
void append_text_repr(MarkedText& out, const MarkedText& text) {
    const bool single = text.text().find('\'') != std::string::npos;
    const bool doubled = text.text().find('"') != std::string::npos;
    const char quote = single && !doubled ? '"' : '\'';
    const auto put_quote = [&] {
        out.append(std::string_view(&quote, 1), TextOrigin::from_template);
    };
    put_quote();
    std::size_t begin = 0;
    for (const MarkedText::Run& run : text.runs()) {
        std::string escaped;
        std::string_view rest = std::string_view(text.text()).substr(begin, run.end - begin);
        while (!rest.empty()) {
            const Utf8Unit unit = next_utf8_unit(rest);
            append_escaped(escaped, unit, rest.substr(0, unit.length), quote);
            rest.remove_prefix(unit.length);
        }
        out.append(escaped, run.origin);
        begin = run.end;
    }
    put_quote();
}

}  // namespace

void Value::append_repr(MarkedText& out, Budget& budget) const {
    const auto put = [&](std::string_view text) {
        budget.charge(1);
        budget.check_bytes(out.size() + text.size());
        out.append(text, TextOrigin::from_template);
    };
    if (is_undefined()) return put("Undefined");
    if (is_none()) return put("None");
    if (const bool* value = get_if<bool>()) return put(*value ? "True" : "False");
    if (const auto* value = get_if<std::int64_t>()) return put(std::to_string(*value));
    if (const double* value = get_if<double>()) return put(float_repr(*value));
    if (const auto* value = get_if<BigInteger>()) return put(*value->digits);
    if (const MarkedText* value = as_text()) {
        budget.charge_bytes(value->size());
        budget.check_bytes(out.size() + value->size());
        return append_text_repr(out, *value);
    }
    if (const List* value = as_list()) {
        put(tuple_ ? "(" : "[");
        for (std::size_t i = 0; i < value->size(); ++i) {
            if (i > 0) put(", ");
            (*value)[i].append_repr(out, budget);
        }
        if (tuple_ && value->size() == 1) put(",");
        return put(tuple_ ? ")" : "]");
    }
    if (const Dict* value = as_dict()) {
        put("{");
        for (std::size_t i = 0; i < value->entries.size(); ++i) {
            if (i > 0) put(", ");
            value->entries[i].first.append_repr(out, budget);
            put(": ");
            value->entries[i].second.append_repr(out, budget);
        }
        return put("}");
    }
    put("<");
    put(kind());
    put(">");
}

}  // namespace percheron::jinja
