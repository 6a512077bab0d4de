#include "tools/drawn_pictures.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "vision/canvas.h"
#include "vision/patches.h"

namespace percheron::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int longest_side = 4096;

Error wrong(const std::string& what) {
    return Error(ErrorCode::invalid_argument, "draw: " + what);
}

// `count` whole numbers of [low, high] from place `first` of a list.
bool read_numbers(const Json& list, std::size_t first, std::size_t count, int low, int high,
                  int* out) {
    if (!list.is_array() || list.size() != first + count) return false;
    for (std::size_t i = 0; i < count; ++i) {
        const Json& value = list[first + i];
        if (!value.is_number_integer() || value < low || value > high) return false;
        out[i] = value.get<int>();
    }
    return true;
}

struct Shape {
    std::string kind;
    int numbers[6];  // x, y, s, r, g, b

    bool covers(int px, int py) const {
        const int dx = std::abs(px - numbers[0]);
        const int dy = std::abs(py - numbers[1]);
        const int s = numbers[2];
        if (kind == "square") return dx <= s && dy <= s;
        if (kind == "circle") return 5 * (dx * dx + dy * dy) <= 5 * s * s + 4 * s;
        if (kind == "triangle") return dy <= s && 2 * dx <= py - (numbers[1] - s);
        const int half = std::max(2, s / 3);
        return (dx <= s && dy <= half) || (dx <= half && dy <= s);
    }
};

Result<Shape> read_shape(const Json& json) {
    Shape shape;
    if (!json.is_array() || json.empty() || !json[0].is_string() ||
        !read_numbers(json, 1, 6, -longest_side, longest_side, shape.numbers)) {
        return wrong("a shape is [kind, x, y, s, r, g, b]");
    }
    shape.kind = json[0].get<std::string>();
    constexpr std::array<std::string_view, 4> kinds = {"square", "circle", "triangle", "cross"};
    if (std::find(kinds.begin(), kinds.end(), shape.kind) == kinds.end()) {
        return wrong("\"" + shape.kind + "\" is no shape");
    }
    if (shape.numbers[2] < 0 || !std::all_of(shape.numbers + 3, shape.numbers + 6, [](int value) {
            return value >= 0 && value <= 255;
        })) {
        return wrong("a shape's size must be at least 0 and its colours 0 to 255");
    }
    return shape;
}

// Four differently seeded FNV-1a sums: pictures of one run are told apart, nothing more.
void hash_canvas(const ImageCanvas& canvas, std::array<std::uint8_t, 32>& hash) {
    for (std::uint64_t part = 0; part < 4; ++part) {
        std::uint64_t sum = 14695981039346656037u ^ (part * 0x9e3779b97f4a7c15u) ^ canvas.width;
        for (const std::uint8_t byte : canvas.pixels) {
            sum = (sum ^ byte) * 1099511628211u;
        }
        std::memcpy(hash.data() + part * sizeof sum, &sum, sizeof sum);
    }
}

PromptImage image_of(const vision::RgbImage& picture) {
    const vision::CanvasRule rule;
    const vision::Canvas plan = vision::plan_canvas(picture.height, picture.width, rule);
    auto canvas = std::make_shared<ImageCanvas>();
    canvas->height = static_cast<std::uint32_t>(plan.height);
    canvas->width = static_cast<std::uint32_t>(plan.width);
    canvas->pixels = vision::lay_on_canvas(picture, plan).pixels;
    PromptImage image;
    image.count = static_cast<std::uint32_t>(plan.tokens);
    image.grid_height = static_cast<std::uint32_t>(plan.height / rule.patch);
    image.grid_width = static_cast<std::uint32_t>(plan.width / rule.patch);
    hash_canvas(*canvas, image.content_hash);
    image.canvas = std::move(canvas);
    return image;
}

}  // namespace

Result<vision::RgbImage> draw_picture(const Json& draw) {
    if (!draw.is_object()) return wrong("is not an object");
    int size[2] = {}, ground[3] = {};
    if (!read_numbers(draw.value("size", Json()), 0, 2, 1, longest_side, size)) {
        return wrong("\"size\" must be [height, width], each 1 to 4096");
    }
    if (!read_numbers(draw.value("ground", Json()), 0, 3, 0, 255, ground)) {
        return wrong("\"ground\" must be three colours of 0 to 255");
    }
    std::vector<Shape> shapes;
    for (const Json& json : draw.value("shapes", Json::array())) {
        PERCHERON_ASSIGN(Shape shape, read_shape(json));
        shapes.push_back(std::move(shape));
    }
    vision::RgbImage picture{
        static_cast<std::size_t>(size[1]), static_cast<std::size_t>(size[0]), {}};
    picture.pixels.reserve(picture.width * picture.height * 3);
    for (int y = 0; y < size[0]; ++y) {
        for (int x = 0; x < size[1]; ++x) {
            const int* colour = ground;
            for (const Shape& shape : shapes) {
                if (shape.covers(x, y)) colour = shape.numbers + 3;
            }
            for (int c = 0; c < 3; ++c) {
                picture.pixels.push_back(static_cast<std::uint8_t>(colour[c]));
            }
        }
    }
    return picture;
}

Result<std::vector<PromptImage>> drawn_images(const Json& messages) {
    std::vector<PromptImage> images;
    for (const Json& message : messages) {
        const auto content = message.find("content");
        if (content == message.end() || !content->is_array()) continue;
        for (const Json& part : *content) {
            const std::string type = part.value("type", "");
            if (type != "image" && type != "image_url") continue;
            const auto draw = part.find("draw");
            if (draw == part.end()) {
                return Error(ErrorCode::unsupported,
                             "an item's images are drawn: give the part a \"draw\" object");
            }
            PERCHERON_ASSIGN(const vision::RgbImage picture, draw_picture(*draw));
            images.push_back(image_of(picture));
        }
    }
    return images;
}

void place_images(const std::vector<PromptImage>& images, ChatPrompt& prompt,
                  GenerationRequest& request) {
    auto rest = prompt.ids.cbegin();
    for (std::size_t k = 0; k < prompt.image_positions.size(); ++k) {
        const auto placeholder =
            prompt.ids.cbegin() + static_cast<std::ptrdiff_t>(prompt.image_positions[k]);
        PromptImage image = images[prompt.image_parts[k]];
        request.prompt.insert(request.prompt.end(), rest, placeholder);
        image.first = static_cast<std::uint32_t>(request.prompt.size());
        request.prompt.insert(request.prompt.end(), image.count, *placeholder);
        request.images.push_back(std::move(image));
        rest = placeholder + 1;
    }
    request.prompt.insert(request.prompt.end(), rest, prompt.ids.cend());
}

}  // namespace percheron::tools
