// The fields that say what an answer must be: response_format, the names of other engines for the
// same (structured_outputs, guided_*, json_schema, regex, grammar, ebnf), and tool_choice.
#pragma once

#include "grammar/output_rules.h"
#include "server/json_body.h"

namespace percheron::server {

// The format alone.  At most one field may name one; what is wrong goes to `fields`.
grammar::OutputRequest read_output_format(FieldReader& fields);

// tool_choice and its calls; `functions`: those that are offered.  False: none may be called.
bool read_tool_choice(FieldReader& fields, const Json& functions, bool parallel,
                      grammar::OutputRequest& output);

}  // namespace percheron::server
