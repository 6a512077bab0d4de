// Bodies of other APIs as chat bodies: what a conversion leaves behind, and the helpers that the
// conversions share.  Everything behind it (fields, tools, images, template) is the chat's own.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api_error.h"
#include "server/chat_request.h"
#include "server/generation.h"
#include "server/json_body.h"

namespace percheron::server {

struct ConvertedBody {
    std::optional<ApiError> error;
    Json chat = Json::object();
    // Of the images in chat["messages"], in reading order: where they stand in the client's body.
    std::vector<std::string> image_places;
    // Chat fields that the client knows by another name: {"stop", "stop_sequences"}.
    std::vector<std::pair<std::string_view, std::string_view>> names;
    std::vector<std::string> unknown_fields;

    void fail(ApiError wrong) {
        if (!error) error = std::move(wrong);
    }
    void wrong(const std::string& place, const std::string& what) {
        fail(invalid_value(place, place + " " + what));
    }
    // Moves what the client's body holds beside `taken` into the chat's, but for fields that have
    // no place in a reply of its API, which count as unknown.
    void pass_on(const Json& body, const std::vector<std::string_view>& taken);
};

// The chat request, with errors and images in the client's terms.
ParsedChat parse_converted(ConvertedBody converted, const GenerationSetting& setting);

// ---- reading -----------------------------------------------------------------------------------

std::string place_of(std::string_view list, std::size_t index);
// A string member, or nothing.
const std::string* string_in(const Json& object, std::string_view name);
Json text_part(std::string text);
Json image_part(std::string url);
Json function_tool(const Json& name, const Json& description, const Json& parameters);
Json function_call(const std::string& id, const std::string& name, Json arguments);

}  // namespace percheron::server
