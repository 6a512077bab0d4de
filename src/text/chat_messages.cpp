#include "text/chat_messages.h"

#include <algorithm>
#include <array>

namespace percheron {
namespace {

using Json = nlohmann::ordered_json;
using jinja::Dict;
using jinja::List;
using jinja::Value;

constexpr auto from_input = TextOrigin::from_input;
constexpr auto from_template = TextOrigin::from_template;

Error wrong(const std::string& place, const std::string& what) {
    return Error(ErrorCode::invalid_argument, place + " " + what);
}

Value key(std::string_view name) {
    return Value::text(name, from_template);
}

// Objects and objects only: a string is parsed, nothing counts as {}.
Result<Value> read_arguments(const Json& arguments, const std::string& place) {
    if (arguments.is_null()) return Value(Dict{});
    if (arguments.is_object()) {
        auto value = jinja::value_of_json(arguments, from_input);
        if (!value.ok()) return value.error().in(place);
        return value;
    }
    if (!arguments.is_string()) return wrong(place, "must be an object or its JSON as a string");
    const auto& text = arguments.get_ref<const std::string&>();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Value(Dict{});
    auto value = jinja::value_of_json_text(text, from_input);
    if (!value.ok() || value.value().as_dict() == nullptr) {
        return wrong(place, "must be the JSON of an object");
    }
    return value;
}

// `value` with `name` set to something else, in the same place if it was there.
Result<Value> read_tool_call(const Json& call, const std::string& place) {
    if (!call.is_object()) return wrong(place, "must be an object");
    const bool wrapped = call.contains("function");
    const Json& function = wrapped ? call["function"] : call;
    const std::string function_place = wrapped ? place + ".function" : place;
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) {
        return wrong(function_place, "must be an object with a name");
    }
    Dict inner;
    for (const auto& [name, field] : function.items()) {
        if (name == "arguments") continue;
        PERCHERON_ASSIGN(Value value, jinja::value_of_json(field, from_input));
        inner.set(Value::text(name, from_input), std::move(value));
    }
    const Json none;
    PERCHERON_ASSIGN(Value arguments,
                     read_arguments(function.contains("arguments") ? function["arguments"] : none,
                                    function_place + ".arguments"));
    inner.set(key("arguments"), std::move(arguments));
    if (!wrapped) return Value(std::move(inner));
    Dict outer;
    for (const auto& [name, field] : call.items()) {
        if (name == "function") continue;
        PERCHERON_ASSIGN(Value value, jinja::value_of_json(field, from_input));
        outer.set(Value::text(name, from_input), std::move(value));
    }
    outer.set(key("function"), Value(std::move(inner)));
    return Value(std::move(outer));
}

Result<Value> read_tool_calls(const Json& calls, const std::string& place) {
    if (!calls.is_array()) return wrong(place, "must be a list");
    List list;
    for (std::size_t i = 0; i < calls.size(); ++i) {
        PERCHERON_ASSIGN(Value call,
                         read_tool_call(calls[i], place + "[" + std::to_string(i) + "]"));
        list.push_back(std::move(call));
    }
    return Value(std::move(list));
}

// Text parts of every spelling; other parts pass as they are, for the template to print.
Result<Value> read_part(const Json& part, const std::string& place, std::string& text) {
    if (part.is_string()) {
        text += part.get_ref<const std::string&>();
        return jinja::value_of_json(part, from_input);
    }
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
        return wrong(place, "must be a string or an object with a type");
    }
    const auto& type = part["type"].get_ref<const std::string&>();
    const bool is_text = type == "text" || type == "input_text" || type == "output_text";
    if (!is_text) {
        Json known = part;
        if (type == "input_image") known["type"] = "image_url";  // templates know no other
        auto value = jinja::value_of_json(known, from_input);
        if (!value.ok()) return value.error().in(place);
        return value;
    }
    if (!part.contains("text") || !part["text"].is_string()) {
        return wrong(place + ".text", "must be a string");
    }
    const auto& content = part["text"].get_ref<const std::string&>();
    text += content;
    Dict dict;
    dict.set(key("type"), Value::text("text"));
    dict.set(key("text"), Value::text(content, from_input));
    return Value(std::move(dict));
}

Result<Value> read_content(const Json& content, const std::string& place, std::string& text) {
    if (content.is_null()) return Value::text("");
    if (content.is_string()) {
        text = content.get_ref<const std::string&>();
        return Value::text(text, from_input);
    }
    if (!content.is_array()) return wrong(place, "must be a string, a list of parts or null");
    List parts;
    for (std::size_t i = 0; i < content.size(); ++i) {
        PERCHERON_ASSIGN(Value part,
                         read_part(content[i], place + "[" + std::to_string(i) + "]", text));
        parts.push_back(std::move(part));
    }
    return Value(std::move(parts));
}

Result<std::string> read_role(const Json& message, const std::string& place) {
    if (!message.is_object()) return wrong(place, "must be an object");
    if (!message.contains("role") || !message["role"].is_string()) {
        return wrong(place + ".role", "must be a string");
    }
    auto role = message["role"].get<std::string>();
    if (role == "developer") role = "system";
    if (role == "function") role = "tool";
    static constexpr std::array known = {"system", "user", "assistant", "tool"};
    if (std::find(known.begin(), known.end(), role) == known.end()) {
        return wrong(place + ".role", "must be system, developer, user, assistant or tool");
    }
    return role;
}

Result<Value> read_message(const Json& message, const std::string& place, const std::string& role,
                           std::string& text) {
    Dict dict;
    dict.set(key("role"), Value::text(role, from_template));
    const Json none;
    PERCHERON_ASSIGN(Value content,
                     read_content(message.contains("content") ? message["content"] : none,
                                  place + ".content", text));
    dict.set(key("content"), std::move(content));
    for (const auto& [name, field] : message.items()) {
        if (name == "role" || name == "content") continue;
        if (name == "tool_calls") {
            if (field.is_null()) continue;
            PERCHERON_ASSIGN(Value calls, read_tool_calls(field, place + ".tool_calls"));
            dict.set(key("tool_calls"), std::move(calls));
            continue;
        }
        if (name == "reasoning" || name == "reasoning_content") {
            // Clients echo one, the other or both; a null says nothing.
            if (field.is_null()) continue;
            if (!field.is_string()) return wrong(place + "." + name, "must be a string");
            const Value* present = dict.find(std::string_view("reasoning_content"));
            if (present != nullptr && present->truth()) continue;
            dict.set(key("reasoning_content"),
                     Value::text(field.get_ref<const std::string&>(), from_input));
            continue;
        }
        auto value = jinja::value_of_json(field, from_input);
        if (!value.ok()) return value.error().in(place + "." + name);
        dict.set(Value::text(name, from_input), std::move(value).value());
    }
    return Value(std::move(dict));
}

}  // namespace

Result<ChatMessages> read_chat_messages(const Json& messages) {
    if (!messages.is_array() || messages.empty()) {
        return wrong("messages", "must be a list of at least one message");
    }
    ChatMessages chat;
    List list;
    list.reserve(messages.size());
    for (std::size_t i = 0; i < messages.size(); ++i) {
        const std::string place = "messages[" + std::to_string(i) + "]";
        PERCHERON_ASSIGN(const std::string role, read_role(messages[i], place));
        std::string text;
        PERCHERON_ASSIGN(Value message, read_message(messages[i], place, role, text));
        list.push_back(std::move(message));
        chat.last_text = std::move(text);
        chat.ends_with_assistant = role == "assistant";
    }
    chat.messages = Value(std::move(list));
    return chat;
}

Result<Value> read_chat_tools(const Json& tools) {
    if (tools.is_null() || (tools.is_array() && tools.empty())) return Value(Value::None{});
    if (!tools.is_array()) return wrong("tools", "must be a list");
    for (std::size_t i = 0; i < tools.size(); ++i) {
        const std::string place = "tools[" + std::to_string(i) + "]";
        const Json& tool = tools[i];
        if (!tool.is_object()) return wrong(place, "must be an object");
        const bool wrapped = tool.contains("function");
        const Json& function = wrapped ? tool["function"] : tool;
        if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) {
            return wrong(wrapped ? place + ".function" : place, "must be an object with a name");
        }
    }
    return jinja::value_of_json(tools, from_input);
}

}  // namespace percheron
