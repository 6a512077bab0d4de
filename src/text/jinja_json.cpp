// JSON in and out of template values.
#include <algorithm>
#include <cmath>

#include "text/jinja_value.h"
#include "text/unicode.h"

namespace percheron::jinja {
namespace {

using Json = nlohmann::ordered_json;

Value converted(const Json& json, TextOrigin origin, int depth) {
    if (depth > max_value_depth) throw Failure("JSON is nested too deeply");
    switch (json.type()) {
        case Json::value_t::boolean:
            return Value(json.get<bool>());
        case Json::value_t::number_integer:
            return Value(json.get<std::int64_t>());
        case Json::value_t::number_unsigned: {
            const auto value = json.get<std::uint64_t>();
            if (value <= INT64_MAX) return Value(static_cast<std::int64_t>(value));
            return Value(
                Value::BigInteger{std::make_shared<const std::string>(std::to_string(value))});
        }
        case Json::value_t::number_float:
            return Value(json.get<double>());
        case Json::value_t::string:
            return Value::text(json.get_ref<const std::string&>(), origin);
        case Json::value_t::array: {
            List list;
            list.reserve(json.size());
            for (const Json& item : json)
                list.push_back(converted(item, origin, depth + 1));
            return Value(std::move(list));
        }
        case Json::value_t::object: {
            Dict dict;
            dict.entries.reserve(json.size());
            for (const auto& [key, value] : json.items()) {
                dict.set(Value::text(key, origin), converted(value, origin, depth + 1));
            }
            return Value(std::move(dict));
        }
        default:
            return Value(Value::None{});
    }
}

// Builds values straight from the text, which nlohmann's own values cannot hold without loss.
class ValueBuilder : public nlohmann::json_sax<Json> {
  public:
    explicit ValueBuilder(TextOrigin origin) : origin_(origin) {}

    bool null() override { return put(Value(Value::None{})); }
    bool boolean(bool value) override { return put(Value(value)); }
    bool number_integer(number_integer_t value) override {
        return put(Value(static_cast<std::int64_t>(value)));
    }
    bool number_unsigned(number_unsigned_t value) override {
        if (value <= INT64_MAX) return put(Value(static_cast<std::int64_t>(value)));
        return put(big(std::to_string(value)));
    }
    bool number_float(number_float_t value, const string_t& written) override {
        if (written.find_first_of(".eE") == std::string::npos) return put(big(written));
        return put(Value(value));
    }
    bool string(string_t& value) override { return put(Value::text(value, origin_)); }
    bool binary(binary_t&) override { return false; }
    bool start_object(std::size_t) override { return open(true); }
    bool key(string_t& name) override {
        open_.back().key = Value::text(name, origin_);
        return true;
    }
    bool end_object() override { return close(); }
    bool start_array(std::size_t) override { return open(false); }
    bool end_array() override { return close(); }
    bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
        return false;
    }

    Value take() { return std::move(root_); }

  private:
    struct Open {
        bool is_object = false;
        Value key;
        List list;
        Dict dict;
    };

    static Value big(std::string digits) {
        return Value(Value::BigInteger{std::make_shared<const std::string>(std::move(digits))});
    }
    bool put(Value value) {
        if (open_.empty()) {
            root_ = std::move(value);
        } else if (open_.back().is_object) {
            open_.back().dict.set(open_.back().key, std::move(value));
        } else {
            open_.back().list.push_back(std::move(value));
        }
        return true;
    }
    bool open(bool is_object) {
        if (open_.size() >= max_value_depth) return false;
        open_.emplace_back().is_object = is_object;
        return true;
    }
    bool close() {
        Open done = std::move(open_.back());
        open_.pop_back();
        return put(done.is_object ? Value(std::move(done.dict)) : Value(std::move(done.list)));
    }

    TextOrigin origin_;
    std::vector<Open> open_;
    Value root_;
};

class JsonWriter {
  public:
    JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

    void write(const Value& value, int level) {
        budget_.charge(1);
        budget_.check_bytes(out_.size());
        if (value.is_none()) return put("null");
        if (const bool* boolean = value.get_if<bool>()) return put(*boolean ? "true" : "false");
        if (const double* number = value.get_if<double>()) return write_number(*number);
        if (value.is_integer()) return value.append_repr(out_, no_charge_);
        if (const MarkedText* text = value.as_text()) return write_text(*text);
        if (const List* list = value.as_list()) return write_list(*list, level);
        if (const Dict* dict = value.as_dict()) return write_dict(*dict, level);
        throw Failure("tojson: a " + std::string(value.kind()) + " cannot be written as JSON");
    }

    MarkedText take() { return std::move(out_); }

  private:
    void put(std::string_view text) { out_.append(text, TextOrigin::from_template); }

    void write_number(double number) {
        if (std::isnan(number)) return put("NaN");
        if (std::isinf(number)) return put(number < 0 ? "-Infinity" : "Infinity");
        put(float_repr(number));
    }

    void write_text(const MarkedText& text) {
        budget_.charge_bytes(text.size());
        put("\"");
        std::size_t begin = 0;
        for (const MarkedText::Run& run : text.runs()) {
            std::string escaped;
            escape(std::string_view(text.text()).substr(begin, run.end - begin), escaped);
            out_.append(escaped, run.origin);
            begin = run.end;
        }
        put("\"");
    }

    void escape(std::string_view text, std::string& escaped) const {
        static constexpr char hex[] = "0123456789abcdef";
        const auto put_unit = [&](std::uint32_t unit) {
            escaped += "\\u";
            for (int shift = 12; shift >= 0; shift -= 4)
                escaped += hex[(unit >> shift) & 15];
        };
        for (std::size_t i = 0; i < text.size();) {
            const auto byte = static_cast<unsigned char>(text[i]);
            static constexpr std::string_view named = "\"\\\n\r\t\b\f";
            const std::size_t name = named.find(text[i]);
            if (name != std::string_view::npos) {
                escaped += '\\';
                escaped += "\"\\nrtbf"[name];
            } else if (byte < 0x20) {
                put_unit(byte);
            } else if (byte < 0x80 || !style_.ensure_ascii) {
                escaped += text[i];
            } else {
                const Utf8Unit unit = next_utf8_unit(text.substr(i));
                const char32_t c = unit.kind == Utf8Unit::Kind::character ? unit.character : 0xFFFD;
                if (c >= 0x10000) {
                    put_unit(0xD800 + ((c - 0x10000) >> 10));
                    put_unit(0xDC00 + ((c - 0x10000) & 0x3FF));
                } else {
                    put_unit(c);
                }
                i += unit.length;
                continue;
            }
            ++i;
        }
    }

    void break_line(int level) {
        if (style_.indent < 0) return;
        put("\n");
        put(std::string(static_cast<std::size_t>(style_.indent) * level, ' '));
    }

    void write_list(const List& list, int level) {
        if (list.empty()) return put("[]");
        put("[");
        for (std::size_t i = 0; i < list.size(); ++i) {
            if (i > 0) put(style_.item_separator);
            break_line(level + 1);
            write(list[i], level + 1);
        }
        break_line(level);
        put("]");
    }

    void write_dict(const Dict& dict, int level) {
        if (dict.entries.empty()) return put("{}");
        auto entries = dict.entries;
        if (style_.sort_keys) {
            std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
                return a.first.less_than(b.first);
            });
        }
        put("{");
        for (std::size_t i = 0; i < entries.size(); ++i) {
            if (i > 0) put(style_.item_separator);
            break_line(level + 1);
            write_key(entries[i].first);
            put(style_.key_separator);
            write(entries[i].second, level + 1);
        }
        break_line(level);
        put("}");
    }

    void write_key(const Value& key) {
        if (key.as_text() != nullptr) return write_text(*key.as_text());
        if (!key.is_number() && !key.is_none()) throw Failure("tojson: this key is no JSON key");
        put("\"");
        write(key, 0);
        put("\"");
    }

    const JsonStyle& style_;
    Budget& budget_;
    Budget no_charge_{UINT64_MAX, SIZE_MAX};
    MarkedText out_;
};

}  // namespace

Result<Value> value_of_json(const Json& json, TextOrigin origin) {
    try {
        return converted(json, origin, 0);
    } catch (const Failure& failure) {
        return Error(ErrorCode::invalid_argument, failure.what());
    }
}

Result<Value> value_of_json_text(std::string_view json, TextOrigin origin) {
    ValueBuilder builder(origin);
    // To the parser a zero byte is the end, whatever follows it.
    if (json.find('\0') != std::string_view::npos || !Json::sax_parse(json, &builder)) {
        return Error(ErrorCode::invalid_argument, "this is not JSON, or nested too deeply");
    }
    return builder.take();
}

MarkedText json_of(const Value& value, const JsonStyle& style, Budget& budget) {
    JsonWriter writer(style, budget);
    writer.write(value, 0);
    return writer.take();
}

}  // namespace percheron::jinja
