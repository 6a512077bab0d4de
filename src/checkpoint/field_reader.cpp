#include "checkpoint/field_reader.h"

#include <cmath>

namespace percheron::checkpoint {
namespace {

// Whether `value` is a whole number in [least, most].
bool whole_number(const Json& value, std::size_t least, std::size_t most, std::size_t& out) {
    if (!value.is_number_integer()) return false;
    if (!value.is_number_unsigned() && value.get<std::int64_t>() < 0) return false;
    out = value.get<std::uint64_t>();
    return out >= least && out <= most;
}

std::string range(std::size_t least, std::size_t most) {
    return "must be a whole number from " + std::to_string(least) + " to " + std::to_string(most);
}

}  // namespace

const Json* FieldReader::find(std::string_view field) const {
    const auto entry = object_.find(std::string(field));
    return entry == object_.end() || entry->is_null() ? nullptr : &*entry;
}

const Json* FieldReader::need(std::string_view field) {
    const Json* value = find(field);
    if (value == nullptr) fail(field, "is missing", ErrorCode::not_found);
    return value;
}

bool FieldReader::has(std::string_view field) const {
    return find(field) != nullptr;
}

std::size_t FieldReader::size(std::string_view field, std::size_t least, std::size_t most) {
    std::size_t result = least;
    const Json* value = need(field);
    if (value != nullptr && !whole_number(*value, least, most, result)) {
        fail(field, range(least, most), ErrorCode::corrupt);
        return least;
    }
    return result;
}

std::size_t FieldReader::size_or(std::string_view field, std::size_t fallback, std::size_t least,
                                 std::size_t most) {
    return has(field) ? size(field, least, most) : fallback;
}

float FieldReader::number(std::string_view field, float least, float most) {
    const Json* value = need(field);
    if (value == nullptr) return least;
    const double result = value->is_number() ? value->get<double>() : std::nan("");
    if (!(result >= least && result <= most)) {
        fail(field, "must be a number from " + Json(least).dump() + " to " + Json(most).dump(),
             ErrorCode::corrupt);
        return least;
    }
    return static_cast<float>(result);
}

float FieldReader::number_or(std::string_view field, float fallback, float least, float most) {
    return has(field) ? number(field, least, most) : fallback;
}

bool FieldReader::flag(std::string_view field) {
    const Json* value = need(field);
    if (value == nullptr) return false;
    if (!value->is_boolean()) {
        fail(field, "must be true or false", ErrorCode::corrupt);
        return false;
    }
    return value->get<bool>();
}

std::vector<std::string> FieldReader::words(std::string_view field, std::size_t count) {
    const Json* value = need(field);
    if (value == nullptr) return {};
    bool good = value->is_array() && value->size() == count;
    std::vector<std::string> result;
    for (std::size_t i = 0; good && i < count; ++i) {
        good = (*value)[i].is_string();
        if (good) result.push_back((*value)[i].get<std::string>());
    }
    if (!good) {
        fail(field, "must be a list of " + std::to_string(count) + " strings", ErrorCode::corrupt);
        return {};
    }
    return result;
}

std::vector<std::size_t> FieldReader::sizes(std::string_view field, std::size_t least,
                                            std::size_t most) {
    const Json* value = need(field);
    if (value == nullptr) return {};
    std::vector<std::size_t> result;
    bool good = value->is_array();
    for (std::size_t i = 0; good && i < value->size(); ++i) {
        result.push_back(least);
        good = whole_number((*value)[i], least, most, result.back());
    }
    if (!good) {
        fail(field,
             "must be a list of whole numbers from " + std::to_string(least) + " to " +
                 std::to_string(most),
             ErrorCode::corrupt);
        return {};
    }
    return result;
}

std::vector<std::int32_t> FieldReader::token_ids(std::string_view field, std::size_t vocabulary) {
    const Json* value = find(field);
    if (value == nullptr) return {};
    const Json list = value->is_array() ? *value : Json::array({*value});
    std::vector<std::int32_t> result;
    for (const Json& id : list) {
        std::size_t number = 0;
        if (vocabulary == 0 || !whole_number(id, 0, vocabulary - 1, number)) {
            fail(field, "names a token outside the vocabulary", ErrorCode::corrupt);
            return {};
        }
        result.push_back(static_cast<std::int32_t>(number));
    }
    return result;
}

const Json& FieldReader::object(std::string_view field) {
    static const Json empty = Json::object();
    const Json* value = need(field);
    if (value == nullptr) return empty;
    if (!value->is_object()) {
        fail(field, "must be an object", ErrorCode::corrupt);
        return empty;
    }
    return *value;
}

void FieldReader::expect(std::string_view field, const Json& value) {
    const Json* found = find(field);
    if (found == nullptr || *found == value) return;
    std::string text = found->dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    fail(field, "is " + text + ", this engine computes " + value.dump() + " only");
}

void FieldReader::fail(std::string_view field, std::string_view what, ErrorCode code) {
    if (error_.has_value()) return;
    std::string message = file_;
    message += ": field ";
    message += path_;
    message += field;
    message += " ";
    message += what;
    error_.emplace(code, std::move(message));
}

Status FieldReader::status() const {
    return error_.has_value() ? Status(*error_) : Status();
}

}  // namespace percheron::checkpoint
