#include "grammar/schema_node.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "percheron/engine.h"

namespace percheron::grammar {
namespace {

constexpr std::array<std::string_view, 18> annotations{"title",
                                                       "description",
                                                       "default",
                                                       "examples",
                                                       "example",
                                                       "deprecated",
                                                       "readOnly",
                                                       "writeOnly",
                                                       "$comment",
                                                       "$schema",
                                                       "$id",
                                                       "$defs",
                                                       "xml",
                                                       "definitions",
                                                       "externalDocs",
                                                       "contentMediaType",
                                                       "contentEncoding",
                                                       "discriminator"};

constexpr std::array<std::string_view, 26> held{"type",
                                                "enum",
                                                "const",
                                                "anyOf",
                                                "oneOf",
                                                "allOf",
                                                "$ref",
                                                "nullable",
                                                "properties",
                                                "required",
                                                "additionalProperties",
                                                "minProperties",
                                                "maxProperties",
                                                "items",
                                                "prefixItems",
                                                "minItems",
                                                "maxItems",
                                                "uniqueItems",
                                                "minLength",
                                                "maxLength",
                                                "pattern",
                                                "format",
                                                "minimum",
                                                "maximum",
                                                "exclusiveMinimum",
                                                "exclusiveMaximum"};

constexpr std::array<std::string_view, 7> type_names{"object",  "array",   "string", "number",
                                                     "integer", "boolean", "null"};

template <class List>
bool among(const List& list, std::string_view name) {
    return std::find(list.begin(), list.end(), name) != list.end();
}

std::string escaped(std::string_view name) {
    std::string text;
    for (const char c : name) {
        if (c == '~') {
            text += "~0";
        } else if (c == '/') {
            text += "~1";
        } else {
            text += c;
        }
    }
    return text;
}

std::string message(const std::string& path, std::string_view keyword, const std::string& why) {
    std::string text = "#" + path;
    if (!keyword.empty()) {
        text += '/';
        text += escaped(keyword);
    }
    text += ' ';
    text += why;
    return text;
}

bool fits_type(const Json& value, const std::string& type) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "null") return value.is_null();
    if (!value.is_number()) return false;
    return type == "number" || value.is_number_integer() ||
           value.get<double>() == std::floor(value.get<double>());
}

}  // namespace

const Json* SchemaNode::find(const char* keyword) const {
    if (!json->is_object()) return nullptr;
    const auto found = json->find(keyword);
    return found == json->end() ? nullptr : &*found;
}

SchemaNode SchemaNode::at(std::string_view keyword) const {
    return {&json->at(std::string(keyword)), path + "/" + escaped(keyword)};
}

SchemaNode SchemaNode::at(std::string_view keyword, std::size_t index) const {
    const SchemaNode list = at(keyword);
    return {&list.json->at(index), list.path + "/" + std::to_string(index)};
}

SchemaNode SchemaNode::at(std::string_view keyword, std::string_view member) const {
    return at(keyword).at(member);
}

Error SchemaNode::unsupported(std::string_view keyword, const std::string& why) const {
    return Error(ErrorCode::unsupported, message(path, keyword, why),
                 reasons::unsupported_parameter);
}

Error SchemaNode::wrong(std::string_view keyword, const std::string& why) const {
    return Error(ErrorCode::invalid_argument, message(path, keyword, why), reasons::invalid_value);
}

Result<std::optional<std::uint64_t>> SchemaNode::count(const char* keyword,
                                                       std::uint64_t most) const {
    const Json* value = find(keyword);
    if (value == nullptr) return std::optional<std::uint64_t>();
    const double number = value->is_number() ? value->get<double>() : -1;
    if (number < 0 || number != std::floor(number)) {
        return wrong(keyword, "must be a whole number from 0");
    }
    if (number > static_cast<double>(most)) {
        return unsupported(keyword,
                           "is above " + std::to_string(most) + ", which is not supported");
    }
    return std::optional<std::uint64_t>(static_cast<std::uint64_t>(number));
}

bool is_annotation(std::string_view keyword) {
    return among(annotations, keyword) || keyword.starts_with("x-");
}

Status check_keywords(const SchemaNode& node) {
    for (const auto& [keyword, value] : node.json->items()) {
        if (is_annotation(keyword) || among(held, keyword)) continue;
        return node.unsupported(keyword, "is a keyword that is not supported; leave it out");
    }
    return {};
}

Status check_alone(const SchemaNode& node, std::initializer_list<std::string_view> keywords) {
    for (const auto& [keyword, value] : node.json->items()) {
        if (is_annotation(keyword) || among(keywords, keyword)) continue;
        return node.unsupported(keyword, "stands beside " + std::string(*keywords.begin()) +
                                             ", which is not supported; put it into the schemas "
                                             "that " +
                                             std::string(*keywords.begin()) + " names");
    }
    return {};
}

Result<std::vector<std::string>> types_of(const SchemaNode& node) {
    std::vector<std::string> types;
    const Json* type = node.find("type");
    if (type == nullptr) {
        const auto any_of = [&](std::initializer_list<const char*> keywords) {
            return std::any_of(keywords.begin(), keywords.end(),
                               [&](const char* keyword) { return node.has(keyword); });
        };
        if (any_of({"properties", "required", "additionalProperties", "minProperties",
                    "maxProperties"}))
            types.push_back("object");
        if (any_of({"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}))
            types.push_back("array");
        if (any_of({"minLength", "maxLength", "pattern", "format"})) types.push_back("string");
        if (any_of({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}))
            types.push_back("number");
    } else {
        const Json list = type->is_array() ? *type : Json::array({*type});
        for (const Json& name : list) {
            if (!name.is_string() || !among(type_names, name.get_ref<const std::string&>())) {
                return node.wrong(
                    "type",
                    "must name types of JSON: object, array, string, number, integer, "
                    "boolean, null");
            }
            if (!among(types, name.get_ref<const std::string&>()))
                types.push_back(name.get<std::string>());
        }
        if (types.empty()) return node.wrong("type", "must name at least one type");
    }
    const Json* nullable = node.find("nullable");
    if (nullable != nullptr && !nullable->is_boolean()) {
        return node.wrong("nullable", "must be true or false");
    }
    if (!types.empty() && nullable != nullptr && *nullable == true && !among(types, "null")) {
        types.push_back("null");
    }
    return types;
}

bool fits_types(const Json& value, const std::vector<std::string>& types) {
    return types.empty() || std::any_of(types.begin(), types.end(), [&](const std::string& type) {
               return fits_type(value, type);
           });
}

Result<SchemaNode> resolve(const SchemaNode& node, const Json& root) {
    const Json& reference = *node.find("$ref");
    if (!reference.is_string()) return node.wrong("$ref", "must be a string");
    const auto& text = reference.get_ref<const std::string&>();
    if (text == "#") return SchemaNode{&root, ""};
    if (!text.starts_with("#/")) {
        return node.unsupported("$ref", "leads out of the schema; only \"#/...\" is supported");
    }
    try {
        const Json::json_pointer pointer(text.substr(1));
        if (root.contains(pointer)) return SchemaNode{&root.at(pointer), text.substr(1)};
    } catch (const Json::exception&) {
        // No pointer, which is said below.
    }
    return node.wrong("$ref", "leads to nothing in the schema");
}

}  // namespace percheron::grammar
