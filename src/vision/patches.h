// From a picture to the rows that the vision tower reads.
//
// The picture is resized to its content size, laid at the top left of a black canvas (canvas.h),
// and every byte v of channel c becomes (v / 255 - mean_c) / deviation_c; the black border is
// normalised like any other pixel.  One row per patch x patch square, values in the order
// [channel][frame][y][x] with the picture repeated for every frame.  Rows come cell by cell, cells
// in reading order, and inside a cell its merge x merge patches in reading order, so that the rows
// of one token are neighbours.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "vision/canvas.h"
#include "vision/image.h"

namespace percheron::vision {

struct PixelScale {
    std::array<float, 3> mean{0.48145466f, 0.4578275f, 0.40821073f};
    std::array<float, 3> deviation{0.26862954f, 0.26130258f, 0.27577711f};
};

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
