#include "vision/patches.h"

#include <algorithm>

#include "vision/resize.h"

namespace percheron::vision {
namespace {

using Table = std::array<std::array<float, 256>, 3>;

Table scaled_bytes(const PixelScale& scale) {
    Table table;
    for (std::size_t c = 0; c < 3; ++c) {
        for (std::size_t value = 0; value < 256; ++value) {
            const float share = static_cast<float>(static_cast<double>(value) * (1.0 / 255.0));
            table[c][value] = (share - scale.mean[c]) / scale.deviation[c];
        }
    }
    return table;
}

// One patch's row, its square's corner at `corner`.
void write_row(const std::uint8_t* corner, std::size_t stride, const CanvasRule& rule,
               const Table& table, float* out) {
    const std::size_t square = rule.patch * rule.patch;
    for (std::size_t c = 0; c < 3; ++c) {
        const float* const first_frame = out;
        for (std::size_t y = 0; y < rule.patch; ++y) {
            for (std::size_t x = 0; x < rule.patch; ++x) {
                *out++ = table[c][corner[y * stride + 3 * x + c]];
            }
        }
        for (std::size_t frame = 1; frame < rule.frames; ++frame) {
            out = std::copy_n(first_frame, square, out);
        }
    }
}

}  // namespace

RgbImage lay_on_canvas(const RgbImage& image, const Canvas& canvas) {
    const RgbImage content = resize_bicubic(image, canvas.content_width, canvas.content_height);
    RgbImage result{canvas.width, canvas.height, {}};
    result.pixels.resize(canvas.width * canvas.height * 3, 0);
    for (std::size_t y = 0; y < content.height; ++y) {
        std::copy_n(content.row(y), content.width * 3, result.row(y));
    }
    return result;
}

Patches make_patches(const RgbImage& image, const CanvasRule& rule, const PixelScale& scale) {
    const Canvas canvas = plan_canvas(image.height, image.width, rule);
    const RgbImage laid = lay_on_canvas(image, canvas);
    const Table table = scaled_bytes(scale);

    Patches patches;
    patches.grid_height = canvas.height / rule.patch;
    patches.grid_width = canvas.width / rule.patch;
    patches.tokens = canvas.tokens;
    patches.row_size = 3 * rule.frames * rule.patch * rule.patch;
    patches.values.resize(patches.grid_height * patches.grid_width * patches.row_size);
    float* row = patches.values.data();
    for (std::size_t top = 0; top < canvas.height; top += rule.cell()) {
        for (std::size_t left = 0; left < canvas.width; left += rule.cell()) {
            for (std::size_t y = top; y < top + rule.cell(); y += rule.patch) {
                for (std::size_t x = left; x < left + rule.cell(); x += rule.patch) {
                    write_row(laid.row(y) + 3 * x, canvas.width * 3, rule, table, row);
                    row += patches.row_size;
                }
            }
        }
    }
    return patches;
}

}  // namespace percheron::vision
