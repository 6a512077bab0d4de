#include "grammar/tool_call_rules.h"

#include <algorithm>

#include "grammar/json_rules.h"
#include "grammar/schema_leaves.h"
#include "grammar/string_rules.h"
#include "text/unicode.h"

namespace percheron::grammar {
namespace {

// Of a call whose schema is not held: nothing runs on for ever.
constexpr std::uint64_t most_arguments = 64;
constexpr std::uint64_t longest_key = 128;

// Text that no JSON begins like: it can only be read back as a string.
const CodepointSet begins_no_json = CodepointSet::all().without({{0, ' '},
                                                                 {'"', '"'},
                                                                 {'-', '-'},
                                                                 {'0', '9'},
                                                                 {'[', '['},
                                                                 {'{', '{'},
                                                                 {'t', 't'},
                                                                 {'f', 'f'},
                                                                 {'n', 'n'},
                                                                 {'T', 'T'},
                                                                 {'F', 'F'},
                                                                 {'N', 'N'}});

std::string raw_text() {
    return joined({CodepointSet::all().rule_text(), "*"});
}

}  // namespace

std::optional<CallTags> CallTags::of(const Tokenizer& tokenizer) {
    CallTags tags;
    const std::pair<TokenId*, const char*> names[] = {
        {&tags.call_open, "<tool_call>"},  {&tags.call_close, "</tool_call>"},
        {&tags.key_open, "<arg_key>"},     {&tags.key_close, "</arg_key>"},
        {&tags.value_open, "<arg_value>"}, {&tags.value_close, "</arg_value>"}};
    for (const auto& [id, name] : names) {
        const auto found = tokenizer.added_token(name);
        if (!found) return std::nullopt;
        *id = *found;
    }
    return tags;
}

std::string ToolCallRules::argument(const std::string& key, const std::string& value) const {
    return RuleWriter::sequence(
        {RuleWriter::token(tags_.key_open), key, RuleWriter::token(tags_.key_close),
         RuleWriter::token(tags_.value_open), value, RuleWriter::token(tags_.value_close)});
}

Result<std::string> ToolCallRules::call(const Json& function, CallSchema held) {
    const auto name = function.at("name").get<std::string>();
    if (name != without_blanks_around(name)) {
        return Error(ErrorCode::invalid_argument,
                     "a function's name must not begin or end with a blank");
    }
    std::string given;
    if (held == CallSchema::ignored) {
        const std::string key = RuleWriter::repeated(
            CodepointSet::all().without({{0, ' '}}).rule_text(), 1, longest_key);
        given = RuleWriter::repeated(writer_.rule(argument(key, raw_text())), 0, most_arguments);
    } else {
        const auto parameters = function.find("parameters");
        if (parameters != function.end() && parameters->is_object()) {
            PERCHERON_ASSIGN(given, arguments(name, *parameters, held));
        }
    }
    return RuleWriter::sequence({RuleWriter::token(tags_.call_open), RuleWriter::literal(name),
                                 given, RuleWriter::token(tags_.call_close)});
}

Result<std::string> ToolCallRules::arguments(const std::string& name, const Json& schema,
                                             CallSchema held) {
    const bool strict = held == CallSchema::strict;
    const SchemaNode node{&schema, ""};
    if (strict) {
        PERCHERON_TRY(check_keywords(node));
        PERCHERON_TRY(
            check_alone(node, {"properties", "type", "required", "additionalProperties"}));
        PERCHERON_ASSIGN(const std::vector<std::string> types, types_of(node));
        if (!types.empty() && types != std::vector<std::string>{"object"}) {
            return node.wrong("type", "must be object: arguments have names");
        }
    }
    const Json* properties = node.find("properties");
    if (properties != nullptr && !properties->is_object()) {
        return node.wrong("properties", "must be an object");
    }
    std::vector<std::string> needed;
    if (const Json* required = node.find("required"); required != nullptr && required->is_array()) {
        for (const Json& one : *required) {
            if (one.is_string()) needed.push_back(one.get<std::string>());
        }
    }
    const auto is_needed = [&](const std::string& key) {
        return std::find(needed.begin(), needed.end(), key) != needed.end();
    };
    std::vector<std::string> parts;
    const auto add = [&](const std::string& key, const std::string& content) {
        const std::string one = writer_.rule(argument(RuleWriter::literal(key), content));
        parts.push_back(is_needed(key) ? one : RuleWriter::optional(one));
    };
    if (properties != nullptr) {
        for (const auto& [key, declared] : properties->items()) {
            const SchemaNode place = node.at("properties", key);
            if (key.empty() || key != without_blanks_around(key)) {
                if (!strict && !is_needed(key)) continue;
                return place.wrong("", "has a name that is empty or begins or ends with a blank");
            }
            if (declared == false && !is_needed(key)) continue;
            Result<std::string> content = value(name, key, place, schema);
            if (!content.ok()) {
                if (strict) return std::move(content).error();
                content = loose_value(schemas_.types_of(name, key));
            }
            add(key, *content);
        }
    }
    for (const std::string& key : needed) {
        if (properties != nullptr && properties->contains(key)) continue;
        add(key, loose_value(schemas_.types_of(name, key)));
    }
    return RuleWriter::sequence(parts);
}

Result<std::string> ToolCallRules::value(const std::string& tool, const std::string& key,
                                         const SchemaNode& node, const Json& root) {
    const JsonTypes types = schemas_.types_of(tool, key);
    if (types.unknown() || !types.has(JsonTypes::string)) {
        return JsonRules(writer_, root).value(node);
    }
    PERCHERON_ASSIGN(const std::vector<SchemaLeaf> leaves, leaves_of(node, root));
    if (!types.only(JsonTypes::string)) return mixed(leaves, types, root);
    std::vector<std::string> parts;
    for (const SchemaLeaf& leaf : leaves) {
        if (leaf.value != nullptr && leaf.value->is_string()) {
            parts.push_back(RuleWriter::literal(leaf.value->get_ref<const std::string&>()));
        } else if (leaf.value == nullptr && (leaf.type == "string" || leaf.type.empty())) {
            PERCHERON_ASSIGN(std::string text, string_rule(leaf.node, TextForm::raw, writer_));
            parts.push_back(std::move(text));
        }
    }
    if (parts.empty()) return node.unsupported("", "allows no string where only strings are read");
    return writer_.rule(RuleWriter::alternatives(parts));
}

// Strings beside other types: what is written has to be read back as what it was meant for.
Result<std::string> ToolCallRules::mixed(const std::vector<SchemaLeaf>& leaves, JsonTypes types,
                                         const Json& root) {
    std::vector<std::string> parts;
    for (const SchemaLeaf& leaf : leaves) {
        if (leaf.value != nullptr) {
            const std::string text =
                leaf.value->is_string()
                    ? leaf.value->get<std::string>()
                    : leaf.value->dump(-1, ' ', false, Json::error_handler_t::replace);
            const Json read = Json::parse(json_of_value(text, types), nullptr, false);
            if (read != *leaf.value) {
                return leaf.node.unsupported(
                    "", "lists \"" + text +
                            "\", which a call cannot tell from a value of another type");
            }
            parts.push_back(RuleWriter::literal(text));
        } else if (leaf.type == "string") {
            if (restricts_strings(leaf.node)) {
                return leaf.node.unsupported(
                    "", "restricts strings beside other types, which is not supported in a call");
            }
            parts.push_back(RuleWriter::optional(
                RuleWriter::sequence({begins_no_json.rule_text(), raw_text()})));
        } else if (leaf.type.empty()) {
            parts.push_back(JsonRules(writer_, root).any());
        } else {
            PERCHERON_ASSIGN(std::string json,
                             JsonRules(writer_, root).typed(leaf.node, leaf.type));
            parts.push_back(std::move(json));
        }
    }
    return writer_.rule(RuleWriter::alternatives(parts));
}

// Any value of the types.
std::string ToolCallRules::loose_value(JsonTypes types) {
    if (types.only(JsonTypes::string)) return raw_text();
    static const Json nothing = Json::object();
    JsonRules rules(writer_, nothing);
    if (types.unknown()) return rules.any();
    const std::pair<JsonTypes::Bit, const char*> names[] = {
        {JsonTypes::integer, "integer"}, {JsonTypes::number, "number"},
        {JsonTypes::boolean, "boolean"}, {JsonTypes::array, "array"},
        {JsonTypes::object, "object"},   {JsonTypes::null, "null"}};
    std::vector<std::string> parts;
    for (const auto& [bit, name] : names) {
        if (types.has(bit)) parts.push_back(rules.typed({&nothing, ""}, name).value());
    }
    if (types.has(JsonTypes::string)) {
        parts.push_back(
            RuleWriter::optional(RuleWriter::sequence({begins_no_json.rule_text(), raw_text()})));
    }
    return writer_.rule(RuleWriter::alternatives(parts));
}

}  // namespace percheron::grammar
