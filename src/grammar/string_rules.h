// What strings of a schema may hold: lengths, patterns, formats.
#pragma once

#include <string>

#include "core/status.h"
#include "grammar/rule_writer.h"
#include "grammar/schema_node.h"

namespace percheron::grammar {

// The expression of a string's characters, without quotes; `node` says what its keywords allow.
Result<std::string> string_rule(const SchemaNode& node, TextForm form, RuleWriter& writer);

// Whether the node says anything about strings beside their being strings.
bool restricts_strings(const SchemaNode& node);

}  // namespace percheron::grammar
