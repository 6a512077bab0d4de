#include "server/chat_images.h"

#include <utility>

#include "text/image_parts.h"
#include "vision/data_url.h"
#include "vision/image.h"
#include "vision/prompt_image.h"

namespace percheron::server {
namespace {

ApiError wrong_image(const std::string& place, const Error& error) {
    const bool too_large = error.reason() == vision::image_too_large;
    return {400, too_large ? "request_too_large" : "invalid_value", place + ": " + error.message(),
            place};
}

// Of all pictures of one request: decoding them takes seconds.
constexpr std::size_t most_pixels = std::size_t{1} << 30;

// One file, read as far as its header.
struct ReadFile {
    std::vector<std::uint8_t> bytes;
    vision::Canvas canvas;
};

}  // namespace

std::vector<ImagePart> take_image_parts(Json& messages) {
    std::vector<ImagePart> parts;
    for_each_image_part(messages, [&](Json& part, const std::string& place) {
        std::string* const url = image_url_of(part);
        parts.push_back({place, url == nullptr ? std::string() : std::exchange(*url, "")});
    });
    return parts;
}

ChatImages read_chat_images(std::vector<ImagePart> parts,
                            const std::optional<vision::PictureFormat>& format,
                            const EngineDescription& engine) {
    ChatImages result;
    if (parts.empty()) return result;
    if (!engine.vision || !format) {
        const std::string& place = parts.front().place;
        result.error = ApiError{
            400, "vision_unavailable",
            place + " is an image, and the model is served without its vision part; send text",
            place};
        return result;
    }
    std::vector<ReadFile> files;
    std::size_t tokens = 0;
    std::size_t pixels = 0;
    for (ImagePart& part : parts) {
        auto bytes = vision::bytes_of_data_url(std::exchange(part.url, ""));
        if (!bytes.ok()) {
            result.error = invalid_value(part.place, part.place + " " + bytes.error().message());
            return result;
        }
        const auto header = vision::read_image_header(*bytes);
        if (!header.ok()) {
            result.error = wrong_image(part.place, header.error());
            return result;
        }
        const vision::Canvas canvas =
            vision::plan_canvas(header->upright_height(), header->upright_width(), format->canvas);
        tokens += canvas.tokens;
        pixels += header->width * header->height;
        files.push_back({std::move(*bytes), canvas});
    }
    if (tokens >= engine.context_tokens) {
        result.error = ApiError{400, "context_length_exceeded",
                                "the images alone have " + std::to_string(tokens) +
                                    " tokens and the model's context is " +
                                    std::to_string(engine.context_tokens) +
                                    " tokens; send fewer or smaller images",
                                "messages"};
        return result;
    }
    if (pixels > most_pixels) {
        result.error =
            ApiError{400, "request_too_large",
                     "the images have " + std::to_string(pixels) + " pixels altogether; at most " +
                         std::to_string(most_pixels) + " are taken; send fewer or smaller images",
                     "messages"};
        return result;
    }
    for (std::size_t i = 0; i < files.size(); ++i) {
        const auto picture = vision::decode_image(files[i].bytes);
        if (!picture.ok()) {
            result.error = wrong_image(parts[i].place, picture.error());
            return result;
        }
        files[i].bytes = {};
        result.images.push_back(vision::prompt_image(*picture, files[i].canvas, *format));
    }
    return result;
}

}  // namespace percheron::server
