// JSON values by schema, as rules.
//
// What is written is valid by the schema; not everything that is valid can be written: members come
// in the order of `properties`, members that are not declared come only where additionalProperties
// is there and not false (or nothing is declared at all), strings use no \u escapes but for control
// characters, and between values stands at most a blank or a line break with indentation.  A
// keyword whose meaning cannot be held is refused by its pointer, never passed over.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "core/status.h"
#include "grammar/rule_writer.h"
#include "grammar/schema_node.h"

namespace percheron::grammar {

class JsonRules {
  public:
    // `writer` and `root` outlive this; "$ref" leads to places in `root`.
    JsonRules(RuleWriter& writer, const Json& root) : writer_(writer), root_(root) {}

    // The expression of a value that `node` allows.  Errors: invalid_argument (invalid_value: no
    // schema, or nothing is valid), unsupported (unsupported_parameter: a keyword or a size that
    // cannot be held); messages begin with the pointer.
    Result<std::string> value(const SchemaNode& node);
    // The same of one type, with the node's keywords about it.
    Result<std::string> typed(const SchemaNode& node, const std::string& type);
    // Any value, any object.
    std::string any();
    std::string any_object();

    // One literal JSON value.
    static std::string literal(const Json& value);

  private:
    Result<std::string> alternatives(const SchemaNode& node, const char* keyword);
    Result<std::string> all_of(const SchemaNode& node);
    Result<std::string> reference(const SchemaNode& node);
    Result<std::string> listed(const SchemaNode& node);
    Result<std::string> number(const SchemaNode& node, bool whole);
    Result<std::string> array(const SchemaNode& node);
    Result<std::string> object(const SchemaNode& node);
    Result<std::string> other_key(const std::vector<std::string>& declared);
    std::string key_outside(const std::vector<std::string>& names);
    std::string members(const std::vector<std::pair<std::string, bool>>& declared,
                        const std::string& other, std::optional<std::uint64_t> most_others);
    std::string blank();
    std::string comma();
    std::string member(const std::string& key, const std::string& value);

    RuleWriter& writer_;
    const Json& root_;
    std::string any_;  // its rule's name, once it is there
    struct Reference {
        std::string name;
        std::size_t opened_in = 0;  // containers around it; only while it is being read
        bool open = false;
    };
    std::map<std::string, Reference> references_;  // by pointer
    std::size_t containers_ = 0;
    std::size_t depth_ = 0;
};

// "Exactly one of" is "any of" where no value fits two: different types, different constants, or
// objects told apart by a required member of different constants.
bool are_disjoint(const std::vector<SchemaNode>& options, const Json& root);

}  // namespace percheron::grammar
