#include "tools/drawn_pictures.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

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

}  // namespace percheron::tools
