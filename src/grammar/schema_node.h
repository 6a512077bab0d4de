// A place in a JSON schema, and what is said about it when it cannot be held.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/status.h"

namespace percheron::grammar {

using Json = nlohmann::ordered_json;

struct SchemaNode {
    const Json* json = nullptr;
    std::string path;  // a JSON pointer from the schema's root: "/properties/age"

    const Json* find(const char* keyword) const;
    bool has(const char* keyword) const { return find(keyword) != nullptr; }
    SchemaNode at(std::string_view keyword) const;
    SchemaNode at(std::string_view keyword, std::size_t index) const;
    SchemaNode at(std::string_view keyword, std::string_view member) const;

    // Errors about one keyword of this place; the message begins with "#" and its pointer.
    Error unsupported(std::string_view keyword, const std::string& why) const;
    Error wrong(std::string_view keyword, const std::string& why) const;

    // A count of 0 or more, if the keyword is there.
    Result<std::optional<std::uint64_t>> count(const char* keyword, std::uint64_t most) const;
};

// What a type's keywords say nothing about changes nothing: annotations, and names that begin with
// x-.
bool is_annotation(std::string_view keyword);

// Refuses what is not held, by its pointer: keywords that change what is valid and are not among
// those that this room reads, and every name it does not know.
Status check_keywords(const SchemaNode& node);

// The keywords beside these and annotations are refused: together they would say something else.
Status check_alone(const SchemaNode& node, std::initializer_list<std::string_view> keywords);

// The types that `type` names, or that the other keywords are about; none: any value.
Result<std::vector<std::string>> types_of(const SchemaNode& node);

// Whether the value is of one of the types; of any, if none are named.
bool fits_types(const Json& value, const std::vector<std::string>& types);

// Where "#" or "#/..." leads.
Result<SchemaNode> resolve(const SchemaNode& node, const Json& root);

}  // namespace percheron::grammar
