#include "vision/patches.h"

#include <algorithm>

#include "vision/resize.h"

namespace percheron::vision {

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
    const ops::PatchLayout layout{rule.patch, rule.merge, rule.frames};

    Patches patches;
    patches.grid_height = canvas.height / rule.patch;
    patches.grid_width = canvas.width / rule.patch;
    patches.tokens = canvas.tokens;
    patches.row_size = layout.row_size();
    const std::size_t rows = patches.grid_height * patches.grid_width;
    patches.values.resize(rows * patches.row_size);
    ops::image_patches(laid.pixels, canvas.width, layout, scale, 0, rows, patches.values);
    return patches;
}

}  // namespace percheron::vision
