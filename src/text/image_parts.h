// Image parts of chat messages, and which of them each placeholder of a rendered prompt stands for.
//
// Templates may print messages in another order than they came (tool results in the order of their
// calls), so the k-th placeholder need not be the k-th image part.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/status.h"

namespace percheron {

// A content part of type image, image_url or input_image.
bool is_image_part(const nlohmann::ordered_json& part);

// Calls `visit` with every image part in reading order, and its place: "messages[0].content[2]".
// Whatever is not as messages should be is passed over.
void for_each_image_part(
    nlohmann::ordered_json& messages,
    const std::function<void(nlohmann::ordered_json& part, const std::string& place)>& visit);

// The URL of an image part in the forms that clients send: image_url as an object with a url or as
// a string, image as a string.  Null when there is none.
const std::string* image_url_of(const nlohmann::ordered_json& part);
std::string* image_url_of(nlohmann::ordered_json& part);

std::size_t count_image_parts(const nlohmann::ordered_json& messages);

// For each image part that a template prints, in the order of printing, its number in reading
// order.  Found by rendering the messages once more with texts of their own in place of the images.
// `render` is that rendering, `rendered` what it gave for the messages as they are.
// Errors: those of `render`; invalid_argument when the template does not print each once.
Result<std::vector<std::size_t>> order_of_image_parts(
    nlohmann::ordered_json messages, const std::string& rendered,
    const std::function<Result<std::string>(const nlohmann::ordered_json&)>& render);

}  // namespace percheron
