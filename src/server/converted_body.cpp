#include "server/converted_body.h"

#include <algorithm>
#include <array>

#include "server/chat_preparation.h"

namespace percheron::server {
namespace {

// Of chat replies alone.
constexpr std::array<std::string_view, 6> chat_only{
    "logprobs", "top_logprobs", "return_token_ids", "stream_options", "echo", "return_progress"};

template <class List>
bool contains(const List& list, std::string_view name) {
    return std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

void ConvertedBody::pass_on(const Json& body, const std::vector<std::string_view>& taken) {
    for (const auto& [name, value] : body.items()) {
        if (contains(taken, name) || value.is_null()) continue;
        if (contains(chat_only, name)) {
            unknown_fields.push_back(name);
        } else if (name == "n" && value != 1) {
            fail(unsupported_parameter("n", "n can only be 1 here; send the request again"));
        } else if (!chat.contains(name)) {
            chat[name] = value;
        }
    }
}

ParsedChat parse_converted(ConvertedBody converted, const GenerationSetting& setting) {
    ParsedChat parsed;
    parsed.error = std::move(converted.error);
    if (!parsed.error) {
        parsed = parse_chat_object(std::move(converted.chat), chat_defaults(setting),
                                   setting.model.vocabulary);
    }
    auto& unknown = parsed.request.unknown_fields;
    unknown.insert(unknown.end(), converted.unknown_fields.begin(), converted.unknown_fields.end());
    if (parsed.error) {
        ApiError& error = *parsed.error;
        for (const auto& [name, shown] : converted.names) {
            if (error.param != name) continue;
            error.param = shown;
            if (error.message.starts_with(name)) error.message.replace(0, name.size(), shown);
        }
        return parsed;
    }
    auto& images = parsed.request.images;
    for (std::size_t i = 0; i < images.size(); ++i)
        images[i].place = converted.image_places[i];
    return parsed;
}

std::string place_of(std::string_view list, std::size_t index) {
    return std::string(list) + "[" + std::to_string(index) + "]";
}

const std::string* string_in(const Json& object, std::string_view name) {
    if (!object.is_object()) return nullptr;
    const auto found = object.find(std::string(name));
    return found == object.end() ? nullptr : found->get_ptr<const std::string*>();
}

Json text_part(std::string text) {
    return {{"type", "text"}, {"text", std::move(text)}};
}

Json image_part(std::string url) {
    return {{"type", "image_url"}, {"image_url", {{"url", std::move(url)}}}};
}

Json function_tool(const Json& name, const Json& description, const Json& parameters) {
    Json function{{"name", name}};
    if (!description.is_null()) function["description"] = description;
    if (!parameters.is_null()) function["parameters"] = parameters;
    return {{"type", "function"}, {"function", std::move(function)}};
}

Json function_call(const std::string& id, const std::string& name, Json arguments) {
    return {{"id", id},
            {"type", "function"},
            {"function", {{"name", name}, {"arguments", std::move(arguments)}}}};
}

}  // namespace percheron::server
