// Whether "exactly one of" means the same as "any of".
#include <algorithm>
#include <set>

#include "grammar/json_rules.h"

namespace percheron::grammar {
namespace {

// References followed, a few steps: longer chains count as unknown.
const Json* plain(const Json* schema, const Json& root) {
    for (int step = 0; step < 8 && schema->is_object() && schema->contains("$ref"); ++step) {
        const SchemaNode node{schema, ""};
        const auto target = resolve(node, root);
        if (!target.ok()) return schema;
        schema = target->json;
    }
    return schema;
}

// The values that a schema lists; nothing: it lists none.
const Json* listed_values(const Json& schema, Json& holder) {
    if (!schema.is_object()) return nullptr;
    if (schema.contains("const")) {
        holder = Json::array({schema["const"]});
        return &holder;
    }
    return schema.contains("enum") && schema["enum"].is_array() ? &schema["enum"] : nullptr;
}

bool share_a_value(const Json& a, const Json& b) {
    return std::any_of(a.begin(), a.end(), [&](const Json& value) {
        return std::find(b.begin(), b.end(), value) != b.end();
    });
}

bool lists_apart(const Json& a, const Json& b) {
    Json a_holder;
    Json b_holder;
    const Json* a_values = listed_values(a, a_holder);
    const Json* b_values = listed_values(b, b_holder);
    return a_values != nullptr && b_values != nullptr && !share_a_value(*a_values, *b_values);
}

std::set<std::string> type_set(const Json& schema) {
    std::set<std::string> types;
    if (!schema.is_object()) return types;
    const auto named = types_of({&schema, ""});
    if (named.ok() && schema.contains("type")) types.insert(named->begin(), named->end());
    if (types.contains("integer")) types.insert("number");
    return types;
}

bool types_apart(const Json& a, const Json& b) {
    const std::set<std::string> a_types = type_set(a);
    const std::set<std::string> b_types = type_set(b);
    if (a_types.empty() || b_types.empty()) return false;
    return std::none_of(a_types.begin(), a_types.end(),
                        [&](const std::string& type) { return b_types.contains(type); });
}

bool needs(const Json& schema, const std::string& name) {
    const auto required = schema.find("required");
    return required != schema.end() && required->is_array() &&
           std::find(required->begin(), required->end(), name) != required->end();
}

bool is_object_schema(const Json& schema) {
    return schema.is_object() && schema.value("type", Json()) == "object" &&
           schema.contains("properties") && schema["properties"].is_object();
}

bool members_apart(const Json& a, const Json& b, const Json& root) {
    if (!is_object_schema(a) || !is_object_schema(b)) return false;
    for (const auto& [name, schema] : a["properties"].items()) {
        const auto other = b["properties"].find(name);
        if (other == b["properties"].end() || !needs(a, name) || !needs(b, name)) continue;
        if (lists_apart(*plain(&schema, root), *plain(&*other, root))) return true;
    }
    return false;
}

}  // namespace

bool are_disjoint(const std::vector<SchemaNode>& options, const Json& root) {
    for (std::size_t i = 0; i < options.size(); ++i) {
        for (std::size_t k = i + 1; k < options.size(); ++k) {
            const Json& a = *plain(options[i].json, root);
            const Json& b = *plain(options[k].json, root);
            if (a == false || b == false) continue;
            if (!types_apart(a, b) && !lists_apart(a, b) && !members_apart(a, b, root))
                return false;
        }
    }
    return true;
}

}  // namespace percheron::grammar
