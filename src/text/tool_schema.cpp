#include "text/tool_schema.h"

#include <charconv>
#include <cmath>

#include "text/unicode.h"

namespace percheron {
namespace {

using Json = nlohmann::ordered_json;

constexpr int max_schema_depth = 16;  // references may lead in circles

std::uint8_t bit_of(const Json& name) {
    if (!name.is_string()) return 0;
    const auto& text = name.get_ref<const std::string&>();
    if (text == "string") return JsonTypes::string;
    if (text == "integer") return JsonTypes::integer;
    if (text == "number") return JsonTypes::number;
    if (text == "boolean") return JsonTypes::boolean;
    if (text == "array") return JsonTypes::array;
    if (text == "object") return JsonTypes::object;
    if (text == "null") return JsonTypes::null;
    return 0;
}

std::uint8_t bit_of_value(const Json& value) {
    if (value.is_string()) return JsonTypes::string;
    if (value.is_boolean()) return JsonTypes::boolean;
    if (value.is_number_integer()) return JsonTypes::integer;
    if (value.is_number()) return JsonTypes::number;
    if (value.is_array()) return JsonTypes::array;
    if (value.is_object()) return JsonTypes::object;
    return JsonTypes::null;
}

// "#/$defs/Name" within `root`; null if it leads elsewhere or nowhere.
const Json* resolved(const Json& reference, const Json& root) {
    if (!reference.is_string()) return nullptr;
    const auto& text = reference.get_ref<const std::string&>();
    if (!text.starts_with("#/")) return nullptr;
    try {
        const Json::json_pointer pointer(text.substr(1));
        return root.contains(pointer) ? &root.at(pointer) : nullptr;
    } catch (const Json::exception&) {
        return nullptr;  // not a pointer
    }
}

std::uint8_t types_of_schema(const Json& schema, const Json& root, int depth) {
    if (!schema.is_object() || depth > max_schema_depth) return 0;
    std::uint8_t bits = 0;
    if (schema.contains("type")) {
        const Json& type = schema["type"];
        if (type.is_array()) {
            for (const Json& one : type)
                bits |= bit_of(one);
        } else {
            bits = bit_of(type);
        }
        // OpenAPI's way of saying "or null".
        if (bits != 0 && schema.value("nullable", Json()) == true) bits |= JsonTypes::null;
        if (bits != 0) return bits;
    }
    if (schema.contains("$ref")) {
        const Json* target = resolved(schema["$ref"], root);
        if (target != nullptr) return types_of_schema(*target, root, depth + 1);
    }
    for (const char* key : {"anyOf", "oneOf"}) {
        if (!schema.contains(key) || !schema[key].is_array()) continue;
        for (const Json& one : schema[key]) {
            const std::uint8_t more = types_of_schema(one, root, depth + 1);
            if (more == 0) return 0;  // one branch allows anything
            bits |= more;
        }
        if (bits != 0) return bits;
    }
    if (schema.contains("allOf") && schema["allOf"].is_array()) {
        for (const Json& one : schema["allOf"]) {
            bits = types_of_schema(one, root, depth + 1);
            if (bits != 0) return bits;
        }
    }
    if (schema.contains("enum") && schema["enum"].is_array()) {
        for (const Json& one : schema["enum"])
            bits |= bit_of_value(one);
        if (bits != 0) return bits;
    }
    if (schema.contains("const")) return bit_of_value(schema["const"]);
    if (schema.contains("properties")) return JsonTypes::object;
    if (schema.contains("items")) return JsonTypes::array;
    return 0;
}

}  // namespace

ToolSchemas::ToolSchemas(const Json& tools) {
    if (!tools.is_array()) return;
    for (const Json& entry : tools) {
        if (!entry.is_object()) continue;
        const Json& function = entry.contains("function") ? entry["function"] : entry;
        if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) {
            continue;
        }
        auto name = function["name"].get<std::string>();
        Tool tool;
        const char* key = function.contains("parameters") ? "parameters" : "input_schema";
        if (function.contains(key) && function[key].is_object()) {
            const Json& schema = function[key];
            if (schema.contains("properties") && schema["properties"].is_object()) {
                for (const auto& [parameter, declared] : schema["properties"].items()) {
                    tool.parameters[parameter] = {types_of_schema(declared, schema, 0)};
                }
            }
            if (schema.contains("additionalProperties")) {
                tool.others = {types_of_schema(schema["additionalProperties"], schema, 0)};
            }
        }
        if (!tools_.contains(name)) names_.push_back(name);
        tools_[std::move(name)] = std::move(tool);
    }
}

bool ToolSchemas::has(std::string_view tool) const {
    return tools_.find(tool) != tools_.end();
}

bool ToolSchemas::declares(std::string_view tool, std::string_view parameter) const {
    const auto known = tools_.find(tool);
    return known != tools_.end() &&
           known->second.parameters.find(parameter) != known->second.parameters.end();
}

JsonTypes ToolSchemas::types_of(std::string_view tool, std::string_view parameter) const {
    const auto known = tools_.find(tool);
    if (known == tools_.end()) return {};
    const auto declared = known->second.parameters.find(parameter);
    return declared == known->second.parameters.end() ? known->second.others : declared->second;
}

void append_json_escaped(std::string& json, std::string_view text) {
    static constexpr char hex[] = "0123456789abcdef";
    static constexpr std::string_view named = "\"\\\n\r\t\b\f";
    std::size_t plain = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto byte = static_cast<unsigned char>(text[i]);
        if (byte >= 0x20 && text[i] != '"' && text[i] != '\\') continue;
        json += text.substr(plain, i - plain);
        plain = i + 1;
        json += '\\';
        if (const std::size_t name = named.find(text[i]); name != std::string_view::npos) {
            json += "\"\\nrtbf"[name];
        } else {
            json += "u00";
            json += hex[byte >> 4];
            json += hex[byte & 15];
        }
    }
    json += text.substr(plain);
}

namespace {

std::string json_string(std::string_view text) {
    std::string json = "\"";
    append_json_escaped(json, text);
    return json + "\"";
}

// The type of JSON text known to be well-formed.
std::uint8_t bit_of_json(std::string_view json) {
    switch (json[0]) {
        case '"':
            return JsonTypes::string;
        case '{':
            return JsonTypes::object;
        case '[':
            return JsonTypes::array;
        case 't':
        case 'f':
            return JsonTypes::boolean;
        case 'n':
            return JsonTypes::null;
        default:
            break;
    }
    // 3.0 is a whole number for JSON schemas.
    double value = 0;
    std::from_chars(json.data(), json.data() + json.size(), value);
    return value == std::floor(value) ? JsonTypes::integer : JsonTypes::number;
}

}  // namespace

bool is_json(std::string_view text) {
    // To the parser a zero byte is the end, whatever follows it.
    return text.find('\0') == std::string_view::npos && Json::accept(text);
}

std::string json_of_value(std::string_view raw, JsonTypes types) {
    if (types.only(JsonTypes::string)) return json_string(raw);
    const std::string_view text = without_blanks_around(raw);
    if (is_json(text)) {
        const std::uint8_t bit = bit_of_json(text);
        const bool number = bit == JsonTypes::integer || bit == JsonTypes::number;
        const bool allowed =
            types.unknown() || (types.bits & bit) != 0 || (number && types.has(JsonTypes::number));
        // Where a string is allowed too, JSON of a kind that is not is that string's text; so is a
        // quoted string, whose quotes were written.
        const bool is_text = types.has(JsonTypes::string) && (!allowed || bit == JsonTypes::string);
        return is_text ? json_string(raw) : std::string(text);
    }
    if (types.has(JsonTypes::string)) return json_string(raw);
    if (types.has(JsonTypes::boolean) && (text == "True" || text == "False")) {
        return text == "True" ? "true" : "false";
    }
    if (types.has(JsonTypes::null) && text == "None") return "null";
    return json_string(raw);
}

}  // namespace percheron
