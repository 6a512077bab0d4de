// From a picture to the rows that the vision tower reads.
//
// The picture is resized to its content size and laid at the top left of a black canvas (canvas.h);
// the rows are cut from the canvas as ops/image_patches.h says, so that the black border is scaled
// like any other pixel.
#pragma once

#include <cstddef>
#include <vector>

#include "ops/image_patches.h"
#include "vision/canvas.h"
#include "vision/image.h"

namespace percheron::vision {

using ops::PixelScale;

struct Patches {
    std::size_t grid_height = 0, grid_width = 0;  // patches a column, patches a row
    std::size_t tokens = 0;                       // cells
    std::size_t row_size = 0;                     // 3 x frames x patch x patch
    std::vector<float> values;                    // [grid_height x grid_width][row_size]
};

// The content on its canvas, before the numbers are scaled.
RgbImage lay_on_canvas(const RgbImage& image, const Canvas& canvas);

Patches make_patches(const RgbImage& image, const CanvasRule& rule = {},
                     const PixelScale& scale = {});

}  // namespace percheron::vision
