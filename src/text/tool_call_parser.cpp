#include "text/tool_call_parser.h"

#include <nlohmann/json.hpp>

#include "text/unicode.h"

namespace percheron {
namespace {

using Json = nlohmann::ordered_json;

bool is_json_object(std::string_view text) {
    return text.starts_with('{') && is_json(text);
}

// A value that is a string or null is held while it may still turn out to be null.
constexpr std::size_t longest_held_null = 64;

bool may_become_null(std::string_view raw) {
    if (raw.size() > longest_held_null) return false;
    const std::string_view text = without_blanks_around(raw);
    if (text == "null") return true;
    const bool ended = !text.empty() && is_blank(raw.substr(raw.size() - 1));
    return !ended && std::string_view("null").starts_with(text);
}

}  // namespace

ToolCallParser::State ToolCallParser::push(ReplyTag tag, std::string_view bytes,
                                           ReplyEventWriter& events) {
    switch (place_) {
        case Place::name:
            return in_name(tag, bytes, events);
        case Place::key:
            return in_key(tag, bytes, events);
        case Place::after_key:
            return after_key(tag, bytes, events);
        case Place::value:
            return in_value(tag, bytes, events);
        case Place::value_closing:
            return value_closing(tag, bytes, events);
        case Place::call_closing:
            return call_closing(tag, bytes, events);
        case Place::after_value:
            return after_value(tag, events);
    }
    return State::open;
}

void ToolCallParser::end(bool complete, ReplyEventWriter& events) {
    if (complete) {
        close(events);
        return;
    }
    detokenizer_.drop();
    // The tag that was read last most likely closed the value; nothing else is known.
    if (place_ == Place::value_closing) end_value(events);
}

// ---- name ---------------------------------------------------------------------------------------

ToolCallParser::State ToolCallParser::in_name(ReplyTag tag, std::string_view bytes,
                                              ReplyEventWriter& events) {
    switch (tag) {
        case ReplyTag::none:
            detokenizer_.append(bytes, name_);
            return State::open;
        case ReplyTag::key_open: {
            detokenizer_.close(name_);
            std::string name(without_blanks_around(name_));
            if (!schemas_->has(name)) {
                // `name>` is a slip for the tag that was to follow.
                if (name.ends_with('>')) name.pop_back();
                const std::string first(name.substr(0, name.find_first_of("> \t\r\n")));
                if (schemas_->has(first)) name = first;
            }
            if (!name.empty()) begin(std::move(name), events);
            begin_key();
            return State::open;
        }
        case ReplyTag::call_close:
            close(events);
            return State::closed;
        case ReplyTag::call_open:
            if (is_blank(name_)) return State::open;
            close(events);
            return State::closed_before;
        default:
            // A wrong tag behind the name: what follows may be JSON, as after `name>`.
            detokenizer_.close(name_);
            if (!is_blank(name_) && name_.find_first_of(">{") == std::string::npos) name_ += '>';
            return State::open;
    }
}

void ToolCallParser::begin(std::string name, ReplyEventWriter& events) {
    name_ = std::move(name);
    begun_ = true;
    events.add({ReplyEvent::Kind::tool_begin, index_, call_id_, name_});
}

// The call ends and had no keys: a function without arguments, or one of the malformed spellings.
bool ToolCallParser::begin_without_keys(ReplyEventWriter& events) {
    detokenizer_.close(name_);
    const std::string_view text = without_blanks_around(name_);
    if (text.empty()) return false;
    std::string_view name = text;
    std::string arguments;
    if (is_json_object(text)) {
        const Json call = Json::parse(text);
        if (!call.contains("name") || !call["name"].is_string()) return false;
        const char* key = call.contains("arguments") ? "arguments" : "parameters";
        const Json given = call.value(key, Json::object());
        arguments = given.is_string() ? given.get<std::string>() : given.dump();
        if (!is_json_object(arguments)) return false;
        begin(call["name"].get<std::string>(), events);
    } else {
        const std::size_t end =
            schemas_->has(text) ? std::string_view::npos : text.find_first_of(">{ \t\r\n");
        if (end != std::string_view::npos) {
            name = text.substr(0, end);
            std::string_view rest = without_blanks_around(text.substr(end));
            if (rest.starts_with('>')) rest = without_blanks_around(rest.substr(1));
            if (name.empty() || !(rest.empty() || is_json_object(rest))) return false;
            arguments = rest;
        }
        begin(std::string(name), events);
    }
    put(arguments.empty() ? "{}" : arguments, events);
    return true;
}

// Ends the call wherever it stands.  False: nothing in it names a function.
bool ToolCallParser::close(ReplyEventWriter& events) {
    switch (place_) {
        case Place::name:
            if (!begin_without_keys(events)) return false;
            break;
        case Place::key:
            finish_key();
            if (!key_.empty()) key_without_value(events);
            break;
        case Place::after_key:
            key_without_value(events);
            break;
        case Place::value:
        case Place::value_closing:
        case Place::call_closing:
            end_value(events);
            break;
        case Place::after_value:
            break;
    }
    if (!begun_) return false;
    if (place_ != Place::name) put(has_members_ ? "}" : "{}", events);
    complete_ = true;
    events.add({ReplyEvent::Kind::tool_end, index_, {}, {}});
    return true;
}

// ---- keys ---------------------------------------------------------------------------------------

ToolCallParser::State ToolCallParser::in_key(ReplyTag tag, std::string_view bytes,
                                             ReplyEventWriter& events) {
    switch (tag) {
        case ReplyTag::none:
            detokenizer_.append(bytes, key_);
            return State::open;
        case ReplyTag::key_close:
            finish_key();
            place_ = Place::after_key;
            return State::open;
        case ReplyTag::value_open:
            finish_key();
            begin_value(events);
            return State::open;
        case ReplyTag::value_close:
            finish_key();
            if (key_.find('=') == std::string::npos) {
                place_ = Place::after_key;  // the wrong closing tag
            } else {
                key_without_value(events);
                place_ = Place::after_value;
            }
            return State::open;
        case ReplyTag::key_open:
            finish_key();
            if (!key_.empty()) key_without_value(events);
            begin_key();
            return State::open;
        case ReplyTag::call_close:
            close(events);
            return State::closed;
        default:
            return State::open;
    }
}

void ToolCallParser::finish_key() {
    detokenizer_.close(key_);
    key_ = std::string(without_blanks_around(key_));
}

// `key=value` in key_ becomes its two halves; false if key_ is no such thing.
bool ToolCallParser::split_key(std::string& value) {
    const std::size_t equals = key_.find('=');
    if (equals == std::string::npos || equals == 0) return false;
    value = key_.substr(equals + 1);
    key_ = std::string(without_blanks_around(std::string_view(key_).substr(0, equals)));
    return true;
}

// Another key or the call's end follows a key that got no value of its own.
void ToolCallParser::key_without_value(ReplyEventWriter& events) {
    std::string value;
    if (!schemas_->declares(name_, key_)) split_key(value);
    begin_value(events);
    value_text(value, events);
    end_value(events);
}

ToolCallParser::State ToolCallParser::after_key(ReplyTag tag, std::string_view bytes,
                                                ReplyEventWriter& events) {
    switch (tag) {
        case ReplyTag::none:
            if (is_blank(bytes)) return State::open;
            begin_value(events);  // without its opening tag
            return in_value(tag, bytes, events);
        case ReplyTag::value_open:
            begin_value(events);
            return State::open;
        case ReplyTag::value_close:
            key_without_value(events);
            place_ = Place::after_value;
            return State::open;
        case ReplyTag::key_open:
            key_without_value(events);
            begin_key();
            return State::open;
        case ReplyTag::call_close:
            close(events);
            return State::closed;
        default:
            return State::open;
    }
}

// ---- values -------------------------------------------------------------------------------------

void ToolCallParser::begin_value(ReplyEventWriter& events) {
    std::string json = has_members_ ? ",\"" : "{\"";
    append_json_escaped(json, key_);
    json += "\":";
    has_members_ = true;
    types_ = schemas_->types_of(name_, key_);
    streaming_ = types_.only(JsonTypes::string);
    if (streaming_) json += '"';
    put(json, events);
    raw_.clear();
    place_ = Place::value;
}

void ToolCallParser::value_bytes(std::string_view bytes, ReplyEventWriter& events) {
    std::string text;
    detokenizer_.append(bytes, text);
    value_text(text, events);
}

void ToolCallParser::value_text(std::string_view text, ReplyEventWriter& events) {
    if (!streaming_) {
        raw_ += text;
        if (!types_.only(JsonTypes::string | JsonTypes::null) || may_become_null(raw_)) return;
        streaming_ = true;
        put("\"", events);
        text = raw_;
    }
    std::string json;
    append_json_escaped(json, text);
    put(json, events);
}

void ToolCallParser::end_value(ReplyEventWriter& events) {
    std::string rest;
    detokenizer_.close(rest);
    value_text(rest, events);
    put(streaming_ ? "\"" : json_of_value(raw_, types_), events);
    held_.clear();
    raw_.clear();
    place_ = Place::after_value;
}

ToolCallParser::State ToolCallParser::in_value(ReplyTag tag, std::string_view bytes,
                                               ReplyEventWriter& events) {
    if (tag == ReplyTag::value_close || tag == ReplyTag::call_close) {
        held_ = bytes;
        place_ = tag == ReplyTag::value_close ? Place::value_closing : Place::call_closing;
        return State::open;
    }
    value_bytes(bytes, events);
    return State::open;
}

ToolCallParser::State ToolCallParser::value_closing(ReplyTag tag, std::string_view bytes,
                                                    ReplyEventWriter& events) {
    if (tag == ReplyTag::none && !bytes.empty() && is_blank(bytes)) {
        held_ += bytes;
        return State::open;
    }
    if (tag == ReplyTag::key_open) {
        end_value(events);
        begin_key();
        return State::open;
    }
    if (tag == ReplyTag::call_close) {
        close(events);
        return State::closed;
    }
    place_ = Place::value;
    value_bytes(held_, events);
    return in_value(tag, bytes, events);
}

ToolCallParser::State ToolCallParser::call_closing(ReplyTag tag, std::string_view bytes,
                                                   ReplyEventWriter& events) {
    if (tag == ReplyTag::none && !bytes.empty() && is_blank(bytes)) {
        held_ += bytes;
        return State::open;
    }
    if (tag == ReplyTag::call_open) {
        close(events);
        return State::closed_before;
    }
    place_ = Place::value;
    value_bytes(held_, events);
    return in_value(tag, bytes, events);
}

ToolCallParser::State ToolCallParser::after_value(ReplyTag tag, ReplyEventWriter& events) {
    switch (tag) {
        case ReplyTag::key_open:
            begin_key();
            return State::open;
        case ReplyTag::call_close:
            close(events);
            return State::closed;
        case ReplyTag::call_open:
            close(events);
            return State::closed_before;
        default:
            return State::open;
    }
}

}  // namespace percheron
