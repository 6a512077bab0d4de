#include "grammar/json_rules.h"

#include <algorithm>

#include "grammar/number_rules.h"
#include "grammar/string_rules.h"
#include "text/unicode.h"

namespace percheron::grammar {
namespace {

constexpr std::size_t deepest = 64;
constexpr std::uint64_t longest_array = 10000;
constexpr std::size_t most_values = 5000;  // of an enum

}  // namespace

std::string JsonRules::literal(const Json& value) {
    return RuleWriter::literal(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

Result<std::string> JsonRules::value(const SchemaNode& node) {
    const Json& schema = *node.json;
    if (schema.is_boolean()) {
        if (schema == true) return any();
        return node.wrong("", "is false: no value is valid");
    }
    if (!schema.is_object()) return node.wrong("", "must be a schema: an object, true or false");
    if (depth_ >= deepest) {
        return node.unsupported(
            "", "lies deeper than " + std::to_string(deepest) + " schemas, which is not supported");
    }
    if (writer_.full()) {
        return node.unsupported("", "makes the grammar larger than is supported; ask for less");
    }
    PERCHERON_TRY(check_keywords(node));
    struct Deeper {
        explicit Deeper(std::size_t& depth) : depth(++depth) {}
        ~Deeper() { --depth; }
        std::size_t& depth;
    } const deeper(depth_);
    if (node.has("$ref")) return reference(node);
    for (const char* keyword : {"anyOf", "oneOf"}) {
        if (node.has(keyword)) return alternatives(node, keyword);
    }
    if (node.has("allOf")) return all_of(node);
    if (node.has("enum") || node.has("const")) return listed(node);
    PERCHERON_ASSIGN(const std::vector<std::string> types, types_of(node));
    if (types.empty()) return any();
    std::vector<std::string> parts;
    for (const std::string& type : types) {
        PERCHERON_ASSIGN(std::string part, typed(node, type));
        parts.push_back(std::move(part));
    }
    return writer_.rule(RuleWriter::alternatives(parts));
}

Result<std::string> JsonRules::alternatives(const SchemaNode& node, const char* keyword) {
    PERCHERON_TRY(check_alone(node, {keyword, "nullable"}));
    const Json& list = *node.find(keyword);
    if (!list.is_array() || list.empty()) {
        return node.wrong(keyword, "must be a list of at least one schema");
    }
    std::vector<std::string> parts;
    std::vector<SchemaNode> options;
    for (std::size_t i = 0; i < list.size(); ++i) {
        options.push_back(node.at(keyword, i));
        if (*options.back().json == false) continue;
        PERCHERON_ASSIGN(std::string part, value(options.back()));
        parts.push_back(std::move(part));
    }
    if (std::string_view(keyword) == "oneOf" && !are_disjoint(options, root_)) {
        return node.unsupported(keyword,
                                "has schemas that one value may fit together, which is not "
                                "supported; use anyOf, or tell objects apart by a required member "
                                "with a const");
    }
    const Json* nullable = node.find("nullable");
    if (nullable != nullptr && *nullable == true) parts.push_back("\"null\"");
    if (parts.empty()) return node.wrong(keyword, "allows nothing");
    return writer_.rule(RuleWriter::alternatives(parts));
}

Result<std::string> JsonRules::all_of(const SchemaNode& node) {
    PERCHERON_TRY(check_alone(node, {"allOf"}));
    const Json& list = *node.find("allOf");
    if (!list.is_array() || list.empty()) {
        return node.wrong("allOf", "must be a list of at least one schema");
    }
    if (list.size() > 1) {
        return node.unsupported("allOf",
                                "joins several schemas, which is not supported; write one");
    }
    return value(node.at("allOf", 0));
}

Result<std::string> JsonRules::reference(const SchemaNode& node) {
    PERCHERON_TRY(check_alone(node, {"$ref"}));
    PERCHERON_ASSIGN(const SchemaNode target, resolve(node, root_));
    Reference& reference = references_[target.path];
    if (!reference.name.empty()) {
        if (reference.open && reference.opened_in == containers_) {
            return node.wrong("$ref", "leads back to itself: no value is ever reached");
        }
        return reference.name;
    }
    reference = {writer_.reserve(), containers_, true};
    PERCHERON_ASSIGN(const std::string body, value(target));
    reference.open = false;
    writer_.define(reference.name, body);
    return reference.name;
}

Result<std::string> JsonRules::listed(const SchemaNode& node) {
    const char* keyword = node.has("const") ? "const" : "enum";
    PERCHERON_TRY(check_alone(node, {keyword, "type", "nullable"}));
    const Json values = node.has("const") ? Json::array({*node.find("const")}) : *node.find("enum");
    if (!values.is_array() || values.empty()) {
        return node.wrong("enum", "must be a list of at least one value");
    }
    if (values.size() > most_values) {
        return node.unsupported("enum", "has more than " + std::to_string(most_values) +
                                            " values, which is not supported");
    }
    PERCHERON_ASSIGN(const std::vector<std::string> types, types_of(node));
    std::vector<std::string> parts;
    for (const Json& value : values) {
        if (fits_types(value, types)) parts.push_back(literal(value));
    }
    if (parts.empty()) return node.wrong(keyword, "has no value of its type");
    return writer_.rule(RuleWriter::alternatives(parts));
}

Result<std::string> JsonRules::typed(const SchemaNode& node, const std::string& type) {
    if (type == "object") return object(node);
    if (type == "array") return array(node);
    if (type == "integer") return number(node, true);
    if (type == "number") return number(node, false);
    if (type == "boolean") return std::string("(\"true\" | \"false\")");
    if (type == "null") return std::string("\"null\"");
    PERCHERON_ASSIGN(const std::string content, string_rule(node, TextForm::json_string, writer_));
    return RuleWriter::sequence({"\"\\\"\"", content, "\"\\\"\""});
}

Result<std::string> JsonRules::number(const SchemaNode& node, bool whole) {
    NumberRange range;
    struct Keyword {
        const char* name;
        bool is_least;
        bool exclusive;
    };
    for (const Keyword& keyword :
         {Keyword{"minimum", true, false}, Keyword{"exclusiveMinimum", true, true},
          Keyword{"maximum", false, false}, Keyword{"exclusiveMaximum", false, true}}) {
        const Json* value = node.find(keyword.name);
        if (value == nullptr) continue;
        if (!value->is_number()) return node.wrong(keyword.name, "must be a number");
        const auto bound = read_bound(value->get<double>(), keyword.exclusive);
        if (!bound) {
            return node.unsupported(
                keyword.name,
                "has more than 15 digits or more than 6 behind the point, which "
                "is not supported");
        }
        std::optional<NumberBound>& side = keyword.is_least ? range.least : range.most;
        if (side) {
            return node.unsupported(keyword.name,
                                    "is the second bound on its side, which is not supported");
        }
        side = bound;
    }
    auto rule = whole ? integer_rule(range) : number_rule(range);
    if (!rule.ok()) {
        const char* keyword = range.least && range.most ? "" : range.least ? "minimum" : "maximum";
        return rule.error().code() == ErrorCode::unsupported
                   ? node.unsupported(keyword, ": " + rule.error().message())
                   : node.wrong(keyword, ": " + rule.error().message());
    }
    return rule;
}

Result<std::string> JsonRules::array(const SchemaNode& node) {
    PERCHERON_ASSIGN(const auto least_items, node.count("minItems", longest_array));
    PERCHERON_ASSIGN(const auto most_items, node.count("maxItems", longest_array));
    const std::uint64_t least = least_items.value_or(0);
    if (most_items && *most_items < least) {
        return node.wrong("maxItems", "is below minItems: no list is valid");
    }
    const Json* unique = node.find("uniqueItems");
    if (unique != nullptr && *unique != false && most_items.value_or(2) > 1) {
        return node.unsupported("uniqueItems", "is not supported; leave it out");
    }
    ++containers_;
    const Json* prefix = node.find("prefixItems");
    const Json* items = node.find("items");
    std::vector<std::string> first;
    if (prefix != nullptr) {
        if (!prefix->is_array()) return node.wrong("prefixItems", "must be a list of schemas");
        for (std::size_t i = 0; i < prefix->size(); ++i) {
            if (most_items && i >= *most_items) break;
            PERCHERON_ASSIGN(std::string item, value(node.at("prefixItems", i)));
            first.push_back(std::move(item));
        }
    }
    std::string rest;
    if (items == nullptr || *items != false) {
        PERCHERON_ASSIGN(rest,
                         items == nullptr ? Result<std::string>(any()) : value(node.at("items")));
    } else if (least > first.size()) {
        return node.wrong("minItems", "is above what items: false leaves: no list is valid");
    }
    --containers_;

    // From the last item forwards: each brings what may follow it.
    const std::uint64_t given = first.size();
    std::string tail;
    if (!rest.empty() && (!most_items || *most_items > given)) {
        const std::string more = RuleWriter::sequence({comma(), rest});
        const std::optional<std::uint64_t> most =
            most_items ? std::optional(*most_items - given) : std::nullopt;
        if (given == 0) {
            // The first of them has no comma.
            if (most == 0) return std::string("(\"[\" \"]\")");
            const std::string list = RuleWriter::sequence(
                {rest, RuleWriter::repeated(more, least > 0 ? least - 1 : 0,
                                            most ? std::optional(*most - 1) : std::nullopt)});
            tail = least > 0 ? list : RuleWriter::optional(list);
        } else {
            tail = RuleWriter::repeated(more, least > given ? least - given : 0, most);
        }
    }
    for (std::uint64_t i = given; i-- > 0;) {
        const std::string item =
            RuleWriter::sequence({i > 0 ? comma() : std::string(), first[i], tail});
        tail = writer_.rule(i < least ? item : RuleWriter::optional(item));
    }
    return RuleWriter::sequence({"\"[\"", blank(), tail, blank(), "\"]\""});
}

Result<std::string> JsonRules::object(const SchemaNode& node) {
    const Json* properties = node.find("properties");
    const Json* required = node.find("required");
    const Json* additional = node.find("additionalProperties");
    if (properties != nullptr && !properties->is_object()) {
        return node.wrong("properties", "must be an object");
    }
    std::vector<std::string> needed;
    if (required != nullptr) {
        if (!required->is_array()) return node.wrong("required", "must be a list of names");
        for (const Json& name : *required) {
            if (!name.is_string()) return node.wrong("required", "must be a list of names");
            needed.push_back(name.get<std::string>());
        }
    }
    const auto is_needed = [&](const std::string& name) {
        return std::find(needed.begin(), needed.end(), name) != needed.end();
    };
    PERCHERON_ASSIGN(const auto least, node.count("minProperties", longest_array));
    PERCHERON_ASSIGN(const auto most, node.count("maxProperties", longest_array));

    ++containers_;
    std::vector<std::string> names;
    std::vector<std::pair<std::string, bool>> declared;  // member, needed
    if (properties != nullptr) {
        for (const auto& [name, schema] : properties->items()) {
            const SchemaNode place = node.at("properties", name);
            names.push_back(name);
            if (schema == false && !is_needed(name)) continue;
            PERCHERON_ASSIGN(const std::string content, value(place));
            declared.emplace_back(member(literal(Json(name)), content), is_needed(name));
        }
    }
    const bool open =
        additional == nullptr ? names.empty() && needed.empty() : *additional != false;
    std::string other_value;
    if (additional == nullptr || *additional != false) {
        PERCHERON_ASSIGN(other_value, additional == nullptr
                                          ? Result<std::string>(any())
                                          : value(node.at("additionalProperties")));
    }
    for (const std::string& name : needed) {
        if (std::find(names.begin(), names.end(), name) != names.end()) continue;
        if (other_value.empty()) {
            return node.wrong("required",
                              "names \"" + name + "\", which additionalProperties: false forbids");
        }
        names.push_back(name);
        declared.emplace_back(member(literal(Json(name)), other_value), true);
    }
    --containers_;

    const bool counted = least.value_or(0) > 0 || most;
    if (counted && !declared.empty()) {
        return node.unsupported(most ? "maxProperties" : "minProperties",
                                "stands beside declared members, which is not supported");
    }
    if (least.value_or(0) > 1 || (least && most && *least > *most)) {
        return node.unsupported("minProperties", "can only be 0 or 1, and not above maxProperties");
    }
    if (least.value_or(0) > 0 && !open) {
        return node.wrong("minProperties", "asks for members where none may be");
    }
    std::string other;
    if (open && most != 0) {
        PERCHERON_ASSIGN(const std::string key, other_key(names));
        other = writer_.rule(member(key, other_value));
    }
    std::string content = members(declared, other, most);
    if (least.value_or(0) > 0) {
        content = RuleWriter::sequence(
            {other, RuleWriter::repeated(RuleWriter::sequence({comma(), other}), 0,
                                         most ? std::optional(*most - 1) : std::nullopt)});
    }
    return RuleWriter::sequence({"\"{\"", blank(), content, blank(), "\"}\""});
}

// Members in order, commas between those that are there.
std::string JsonRules::members(const std::vector<std::pair<std::string, bool>>& declared,
                               const std::string& other, std::optional<std::uint64_t> most_others) {
    std::vector<std::string> first;  // what may begin the list
    std::string rest;                // what may follow a member
    if (!other.empty()) {
        const std::string more = RuleWriter::sequence({comma(), other});
        rest = writer_.rule(RuleWriter::repeated(more, 0, std::nullopt));
        const std::string list = RuleWriter::sequence(
            {other, most_others ? RuleWriter::repeated(more, 0, *most_others - 1) : rest});
        first.push_back(list);
    }
    bool may_be_empty = true;
    for (std::size_t i = declared.size(); i-- > 0;) {
        const auto& [member, needed] = declared[i];
        const std::string from_here = writer_.rule(RuleWriter::sequence({member, rest}));
        if (needed) {
            first.clear();
            may_be_empty = false;
        }
        first.push_back(from_here);
        const std::string followed = RuleWriter::sequence({comma(), from_here});
        if (i > 0) {
            rest = writer_.rule(needed         ? followed
                                : rest.empty() ? RuleWriter::optional(followed)
                                               : RuleWriter::alternatives({followed, rest}));
        }
    }
    if (first.empty()) return "\"\"";
    const std::string list = RuleWriter::alternatives(first);
    return may_be_empty ? RuleWriter::optional(list) : list;
}

// A key that is none of the declared names.
Result<std::string> JsonRules::other_key(const std::vector<std::string>& declared) {
    return RuleWriter::sequence({"\"\\\"\"", key_outside(declared), "\"\\\"\""});
}

std::string JsonRules::key_outside(const std::vector<std::string>& names) {
    // Without escapes, so that a name has one spelling.
    const CodepointSet plain =
        CodepointSet::all().without({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}, {0x7f, 0x7f}});
    std::map<std::uint32_t, std::vector<std::string>> by_first;
    bool is_name = false;
    for (const std::string& name : names) {
        if (name.empty()) {
            is_name = true;
            continue;
        }
        const Utf8Unit unit = next_utf8_unit(name);
        if (!plain.contains(static_cast<std::uint32_t>(unit.character))) continue;
        by_first[static_cast<std::uint32_t>(unit.character)].push_back(name.substr(unit.length));
    }
    CodepointSet others = plain;
    std::vector<std::string> parts;
    if (!is_name) parts.push_back("\"\"");
    for (const auto& [character, rests] : by_first) {
        others = others.without({{character, character}});
        if (writer_.full()) continue;
        const CodepointSet one{{character, character}};
        parts.push_back(RuleWriter::sequence({one.rule_text(), key_outside(rests)}));
    }
    parts.push_back(RuleWriter::sequence({others.rule_text(), joined({plain.rule_text(), "*"})}));
    return writer_.rule(RuleWriter::alternatives(parts));
}

std::string JsonRules::member(const std::string& key, const std::string& value) {
    return RuleWriter::sequence({key, "\":\"", "[ ]?", value});
}

std::string JsonRules::blank() {
    return writer_.rule("[ ]? | \"\\n\" [ \\t]{0,40}");
}

std::string JsonRules::comma() {
    return writer_.rule(RuleWriter::sequence({"\",\"", blank()}));
}

std::string JsonRules::any() {
    if (!any_.empty()) return any_;
    any_ = writer_.reserve();
    const std::string text = RuleWriter::sequence(
        {"\"\\\"\"",
         RuleWriter::repeated(writer_.character(CodepointSet::all(), TextForm::json_string), 0, {}),
         "\"\\\"\""});
    const std::string list = RuleWriter::sequence(
        {"\"[\"", blank(),
         RuleWriter::optional(RuleWriter::sequence(
             {any_, RuleWriter::repeated(RuleWriter::sequence({comma(), any_}), 0, {})})),
         blank(), "\"]\""});
    writer_.define(any_, RuleWriter::alternatives({writer_.rule(text), any_object(),
                                                   writer_.rule(list), number_rule({}).value(),
                                                   "\"true\"", "\"false\"", "\"null\""}));
    return any_;
}

std::string JsonRules::any_object() {
    const std::string content = any();
    const std::string key = RuleWriter::sequence(
        {"\"\\\"\"",
         RuleWriter::repeated(writer_.character(CodepointSet::all(), TextForm::json_string), 0, {}),
         "\"\\\"\""});
    const std::string one = member(key, content);
    return writer_.rule(RuleWriter::sequence(
        {"\"{\"", blank(),
         RuleWriter::optional(RuleWriter::sequence(
             {one, RuleWriter::repeated(RuleWriter::sequence({comma(), one}), 0, {})})),
         blank(), "\"}\""}));
}

}  // namespace percheron::grammar
