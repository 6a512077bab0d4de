#include "server/json_body.h"

#include <cmath>

#include "server/sse.h"

namespace percheron::server {
namespace {

ApiError too_many(std::string_view what, std::size_t most) {
    return {413, "request_too_large",
            "the body holds " + std::string(what) + " of more than " + std::to_string(most) +
                " values; send fewer",
            ""};
}

// One pass over the text before any of it is built: nesting and the numbers of values.
std::optional<ApiError> check_shape(std::string_view body, const JsonLimits& limits) {
    struct Level {
        bool object = false;
        std::size_t commas = 0;
    };
    std::vector<Level> open;
    std::size_t values = 0;
    bool in_string = false;
    for (std::size_t i = 0; i < body.size(); ++i) {
        const char c = body[i];
        if (in_string) {
            if (c == '\\') {
                ++i;
            } else if (c == '"') {
                in_string = false;
            }
            continue;
        }
        if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            ++values;
            open.push_back({c == '{', 0});
            if (open.size() > limits.depth) {
                return ApiError{400, "invalid_json",
                                "the body nests deeper than " + std::to_string(limits.depth) +
                                    " levels; flatten it",
                                ""};
            }
        } else if (c == ']' || c == '}') {
            if (!open.empty()) open.pop_back();
        } else if (c == ',') {
            ++values;
            if (!open.empty() && ++open.back().commas >= limits.members && open.back().object) {
                return too_many("an object", limits.members);
            }
        }
    }
    if (values > limits.values) return too_many("lists and objects", limits.values);
    return std::nullopt;
}

std::string range_text(double least, double most) {
    std::string text = "from ";
    append_number(text, least);
    text += " to ";
    append_number(text, most);
    return text;
}

}  // namespace

JsonBody parse_json_object(std::string_view body, const JsonLimits& limits) {
    JsonBody result;
    result.error = check_shape(body, limits);
    if (result.error) return result;
    try {
        result.object = Json::parse(body);
    } catch (const Json::parse_error& error) {
        result.error = ApiError{400, "invalid_json",
                                "the body is not valid JSON near byte " +
                                    std::to_string(error.byte) + "; send one JSON object in UTF-8",
                                ""};
        return result;
    } catch (const Json::out_of_range&) {
        result.error = ApiError{400, "invalid_json",
                                "the body holds a number outside the range of a double", ""};
        return result;
    }
    if (!result.object.is_object()) {
        result.error = ApiError{400, "invalid_json", "the body must be one JSON object", ""};
    }
    return result;
}

const Json* FieldReader::find(std::string_view name) {
    asked_.insert(std::string(name));
    const auto found = object_.find(std::string(name));
    return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> FieldReader::boolean(std::string_view name) {
    const Json* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) {
        fail(invalid_value(path_of(name), path_of(name) + " must be true or false"));
        return std::nullopt;
    }
    return value->get<bool>();
}

std::optional<double> FieldReader::number(std::string_view name, double least, double most) {
    const Json* value = find(name);
    if (value == nullptr) return std::nullopt;
    const double number = value->is_number() ? value->get<double>() : std::nan("");
    if (!(number >= least && number <= most)) {
        fail(invalid_value(path_of(name),
                           path_of(name) + " must be a number " + range_text(least, most)));
        return std::nullopt;
    }
    return number;
}

std::optional<std::int64_t> FieldReader::integer(std::string_view name, std::int64_t least,
                                                 std::int64_t most) {
    const Json* value = find(name);
    if (value == nullptr) return std::nullopt;
    std::optional<std::int64_t> number;
    if (value->is_number_unsigned()) {
        const auto whole = value->get<std::uint64_t>();
        if (whole <= static_cast<std::uint64_t>(INT64_MAX)) {
            number = static_cast<std::int64_t>(whole);
        }
    } else if (value->is_number_integer()) {
        number = value->get<std::int64_t>();
    } else if (value->is_number_float()) {
        // Some clients know only one kind of number.
        const double real = value->get<double>();
        if (real == std::floor(real) && std::abs(real) < 9007199254740992.0) {
            number = static_cast<std::int64_t>(real);
        }
    }
    if (!number || *number < least || *number > most) {
        fail(invalid_value(path_of(name), path_of(name) + " must be a whole number from " +
                                              std::to_string(least) + " to " +
                                              std::to_string(most)));
        return std::nullopt;
    }
    return number;
}

std::optional<std::string> FieldReader::text(std::string_view name, std::size_t longest_bytes) {
    const Json* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string() || value->get_ref<const std::string&>().size() > longest_bytes) {
        fail(invalid_value(path_of(name), path_of(name) + " must be a string of at most " +
                                              std::to_string(longest_bytes) + " bytes"));
        return std::nullopt;
    }
    return value->get<std::string>();
}

std::vector<std::string> FieldReader::unknown() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : object_.items()) {
        if (!asked_.contains(name)) names.push_back(name);
    }
    return names;
}

}  // namespace percheron::server
