// What the offered tools say about the types of their parameters.
//
// Tool calls carry no types: a value is raw text.  The declared schema decides what it means.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace percheron {

// The JSON types a parameter may have; a set of bits.
struct JsonTypes {
    enum Bit : std::uint8_t {
        string = 1,
        integer = 2,
        number = 4,  // integers included
        boolean = 8,
        array = 16,
        object = 32,
        null = 64,
    };
    std::uint8_t bits = 0;  // none: nothing is known

    bool unknown() const { return bits == 0; }
    bool has(Bit bit) const { return (bits & bit) != 0; }
    bool only(std::uint8_t allowed) const { return bits != 0 && (bits & ~allowed) == 0; }
};

class ToolSchemas {
  public:
    ToolSchemas() = default;
    // `tools`: the request's list, each {"type":"function","function":{...}} or the function
    // itself. Entries of other shapes are passed over.
    explicit ToolSchemas(const nlohmann::ordered_json& tools);

    bool empty() const { return names_.empty(); }
    const std::vector<std::string>& names() const { return names_; }
    bool has(std::string_view tool) const;
    bool declares(std::string_view tool, std::string_view parameter) const;
    // Unknown tools and parameters give unknown types.
    JsonTypes types_of(std::string_view tool, std::string_view parameter) const;

  private:
    struct Tool {
        std::map<std::string, JsonTypes, std::less<>> parameters;
        JsonTypes others;  // additionalProperties
    };
    std::vector<std::string> names_;
    std::map<std::string, Tool, std::less<>> tools_;
};

// Whether all of `text` is JSON.
bool is_json(std::string_view text);

// The JSON for the raw text of a value.  A string type keeps the text verbatim; otherwise JSON of
// an allowed type is kept as written; `True`, `False` and `None` are understood where a boolean or
// null is allowed; what fits nothing becomes a string.  Unknown types: JSON if it is JSON, else a
// string.
std::string json_of_value(std::string_view raw, JsonTypes types);

// `text` (UTF-8) with what JSON strings must escape escaped; without quotes.
void append_json_escaped(std::string& json, std::string_view text);

}  // namespace percheron
