// Tool calls in the model's own syntax, as rules:
//
//   call := <tool_call> name (<arg_key> key </arg_key> <arg_value> value </arg_value>)*
//   </tool_call>
//
// Every tag is one token by its id.  Keys come in the order of the schema's properties.  A value
// whose schema allows strings only is raw text; all others are JSON, as text/tool_schema.h reads
// them back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "percheron/types.h"

#include "core/status.h"
#include "grammar/rule_writer.h"
#include "grammar/schema_node.h"
#include "text/tokenizer.h"
#include "text/tool_schema.h"

namespace percheron::grammar {

struct CallTags {
    TokenId call_open{}, call_close{}, key_open{}, key_close{}, value_open{}, value_close{};
    // Nothing: the model has no such tags.
    static std::optional<CallTags> of(const Tokenizer& tokenizer);
};

// How much of a tool's schema a call has to hold.
enum class CallSchema {
    strict,   // all of it; what cannot be held is an error
    held,     // what can be held; a parameter that cannot is held to its types
    ignored,  // any keys and values
};

class ToolCallRules {
  public:
    // `writer`, `schemas` and `function` (an object with name and parameters) outlive this.
    ToolCallRules(RuleWriter& writer, const CallTags& tags, const ToolSchemas& schemas)
        : writer_(writer), tags_(tags), schemas_(schemas) {}

    // The expression of one call of `function`.  Errors: only with CallSchema::strict, or a name
    // that cannot stand in a call; messages begin with the pointer in the function's parameters.
    Result<std::string> call(const Json& function, CallSchema held);

  private:
    Result<std::string> arguments(const std::string& name, const Json& schema, CallSchema held);
    Result<std::string> value(const std::string& tool, const std::string& key,
                              const SchemaNode& node, const Json& root);
    Result<std::string> mixed(const std::vector<struct SchemaLeaf>& leaves, JsonTypes types,
                              const Json& root);
    std::string loose_value(JsonTypes types);
    std::string argument(const std::string& key, const std::string& value) const;

    RuleWriter& writer_;
    const CallTags& tags_;
    const ToolSchemas& schemas_;
};

}  // namespace percheron::grammar
