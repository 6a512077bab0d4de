// Reads the fields of one JSON object and remembers the first thing that is wrong, so that a reader
// of many fields stays a list of fields.  Messages name file and field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/status.h"

namespace percheron::checkpoint {

using Json = nlohmann::json;

class FieldReader {
  public:
    // `path` is put before every field name: "text_config.".
    FieldReader(std::string file, std::string path, const Json& object)
        : file_(std::move(file)), path_(std::move(path)), object_(object) {}

    bool has(std::string_view field) const;

    // A whole number in [least, most].
    std::size_t size(std::string_view field, std::size_t least, std::size_t most = 1u << 24);
    std::size_t size_or(std::string_view field, std::size_t fallback, std::size_t least,
                        std::size_t most = 1u << 24);
    // A finite number in [least, most].
    float number(std::string_view field, float least, float most);
    float number_or(std::string_view field, float fallback, float least, float most);
    bool flag(std::string_view field);
    // A list of strings, of exactly `count` entries.
    std::vector<std::string> words(std::string_view field, std::size_t count);
    // A list of whole numbers in [least, most].
    std::vector<std::size_t> sizes(std::string_view field, std::size_t least, std::size_t most);
    // A token id, a list of them, or null (no ids).
    std::vector<std::int32_t> token_ids(std::string_view field, std::size_t vocabulary);
    // A nested object; an empty one if it is missing, which is then the error.
    const Json& object(std::string_view field);

    // If the field is there, it must hold this value: the engine computes no other.
    void expect(std::string_view field, const Json& value);

    void fail(std::string_view field, std::string_view what,
              ErrorCode code = ErrorCode::unsupported);
    Status status() const;

  private:
    // The field's value; nullptr if it is missing or null.
    const Json* find(std::string_view field) const;
    const Json* need(std::string_view field);

    std::string file_;
    std::string path_;
    const Json& object_;
    std::optional<Error> error_;
};

}  // namespace percheron::checkpoint
