#include "tools/item_images.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "text/image_parts.h"
#include "tools/drawn_pictures.h"
#include "vision/data_url.h"
#include "vision/prompt_image.h"

namespace percheron::tools {
namespace {

using Json = nlohmann::ordered_json;

Result<vision::RgbImage> picture_of(const Json& part) {
    if (const auto draw = part.find("draw"); draw != part.end()) return draw_picture(*draw);
    const std::string* const url = image_url_of(part);
    if (url == nullptr) {
        return Error(ErrorCode::invalid_argument, "needs a \"draw\" object or a data: URL");
    }
    PERCHERON_ASSIGN(const std::vector<std::uint8_t> bytes, vision::bytes_of_data_url(*url));
    return vision::decode_image(bytes);
}

}  // namespace

Result<std::vector<PromptImage>> item_images(const Json& messages) {
    const vision::PictureFormat format;
    std::vector<PromptImage> images;
    std::optional<Error> failure;
    Json copy = messages;
    for_each_image_part(copy, [&](const Json& part, const std::string& place) {
        if (failure) return;
        const auto picture = picture_of(part);
        if (!picture.ok()) {
            failure = picture.error().in(place);
            return;
        }
        const vision::Canvas canvas =
            vision::plan_canvas(picture->height, picture->width, format.canvas);
        images.push_back(vision::prompt_image(*picture, canvas, format));
    });
    if (failure) return *failure;
    return images;
}

}  // namespace percheron::tools
