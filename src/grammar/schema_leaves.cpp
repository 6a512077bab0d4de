#include "grammar/schema_leaves.h"

#include "grammar/json_rules.h"

namespace percheron::grammar {
namespace {

constexpr int deepest_schema = 16;
const Json null_value;

Status collect(const SchemaNode& node, const Json& root, int depth,
               std::vector<SchemaLeaf>& leaves) {
    if (depth > deepest_schema) return node.unsupported("", "is too deep for a parameter");
    if (*node.json == true) {
        leaves.push_back({nullptr, "", node});
        return {};
    }
    if (!node.json->is_object()) return node.wrong("", "allows nothing");
    PERCHERON_TRY(check_keywords(node));
    if (node.has("$ref")) {
        PERCHERON_TRY(check_alone(node, {"$ref"}));
        PERCHERON_ASSIGN(const SchemaNode target, resolve(node, root));
        return collect(target, root, depth + 1, leaves);
    }
    for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
        const Json* list = node.find(keyword);
        if (list == nullptr) continue;
        PERCHERON_TRY(check_alone(node, {keyword, "nullable"}));
        if (!list->is_array() || list->empty()) {
            return node.wrong(keyword, "must be a list of at least one schema");
        }
        const std::string_view name = keyword;
        if (name == "allOf" && list->size() > 1) {
            return node.unsupported(keyword, "joins several schemas, which is not supported");
        }
        std::vector<SchemaNode> options;
        for (std::size_t i = 0; i < list->size(); ++i) {
            options.push_back(node.at(keyword, i));
            PERCHERON_TRY(collect(options.back(), root, depth + 1, leaves));
        }
        if (name == "oneOf" && !are_disjoint(options, root)) {
            return node.unsupported(keyword, "has schemas that one value may fit together");
        }
        const Json* nullable = node.find("nullable");
        if (nullable != nullptr && *nullable == true) leaves.push_back({&null_value, "", node});
        return {};
    }
    PERCHERON_ASSIGN(const std::vector<std::string> types, types_of(node));
    if (node.has("const") || node.has("enum")) {
        const bool is_const = node.has("const");
        PERCHERON_TRY(check_alone(node, {is_const ? "const" : "enum", "type", "nullable"}));
        if (is_const) {
            leaves.push_back({node.find("const"), "", node});
            return {};
        }
        const Json& values = *node.find("enum");
        if (!values.is_array() || values.empty()) {
            return node.wrong("enum", "must be a list of at least one value");
        }
        const std::size_t before = leaves.size();
        for (const Json& value : values) {
            if (fits_types(value, types)) leaves.push_back({&value, "", node});
        }
        if (leaves.size() == before) return node.wrong("enum", "has no value of its type");
        return {};
    }
    if (types.empty()) leaves.push_back({nullptr, "", node});
    for (const std::string& type : types)
        leaves.push_back({nullptr, type, node});
    return {};
}

}  // namespace

Result<std::vector<SchemaLeaf>> leaves_of(const SchemaNode& node, const Json& root) {
    std::vector<SchemaLeaf> leaves;
    PERCHERON_TRY(collect(node, root, 0, leaves));
    return leaves;
}

}  // namespace percheron::grammar
