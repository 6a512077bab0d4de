// Request bodies as JSON, and their fields with types and ranges checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/status.h"
#include "server/api_error.h"

namespace percheron::server {

using Json = nlohmann::ordered_json;

struct JsonLimits {
    std::size_t depth = 128;
    std::size_t values = 4 * 1024 * 1024;  // members and elements of the whole body
    std::size_t members = 1024;            // of one object: keeping their order costs their square
};

// A JSON object of bounded depth and size, or an error for the client.
struct JsonBody {
    Json object;
    std::optional<ApiError> error;
};
JsonBody parse_json_object(std::string_view body, const JsonLimits& limits = {});

// Reads the fields of one object.  An absent or null field gives nothing.  The first field that is
// wrong is kept as the error and ends nothing, so that a whole request can be read in one go and
// looked at once.
class FieldReader {
  public:
    // `path` is put before names in errors: "messages[0]."
    explicit FieldReader(const Json& object, std::string path = "")
        : object_(object), path_(std::move(path)) {}

    // Present and not null.
    const Json* find(std::string_view name);
    std::optional<bool> boolean(std::string_view name);
    std::optional<double> number(std::string_view name, double least, double most);
    std::optional<std::int64_t> integer(std::string_view name, std::int64_t least,
                                        std::int64_t most);
    std::optional<std::string> text(std::string_view name, std::size_t longest_bytes);

    // Fields that nobody asked for, in the object's order.
    std::vector<std::string> unknown() const;

    void fail(ApiError error) {
        if (!error_) error_ = std::move(error);
    }
    const std::optional<ApiError>& error() const { return error_; }
    std::string path_of(std::string_view name) const { return path_ + std::string(name); }

  private:
    const Json& object_;
    std::string path_;
    std::set<std::string, std::less<>> asked_;
    std::optional<ApiError> error_;
};

}  // namespace percheron::server
