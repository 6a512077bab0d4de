// A schema as the alternatives it is made of: listed values, and types with their keywords.
// What a tool's parameter says is raw text or JSON by its type, so each alternative is written in
// its own way.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "grammar/schema_node.h"

namespace percheron::grammar {

struct SchemaLeaf {
    const Json* value = nullptr;  // a listed value, or
    std::string type;             // one type, or neither: anything
    SchemaNode node;              // whose keywords hold for the type
};

// Errors: what JsonRules::value() would refuse above the leaves.
Result<std::vector<SchemaLeaf>> leaves_of(const SchemaNode& node, const Json& root);

}  // namespace percheron::grammar
