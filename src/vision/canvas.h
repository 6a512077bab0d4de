// How large a picture of any size stands before the vision tower.
//
// Sides are whole cells of `cell` = patch x merge pixels; one cell is one token.  With
// unit = frames x cell^2 and a budget of [least, most] tokens for a picture of h x w:
//
//   H = ceil(h / cell) cell, W = ceil(w / cell) cell
//   frames H W < least unit:  s = sqrt(least unit / (frames h w)), H and W again from ceil(h s),
//                             ceil(w s)
//   frames H W > most unit:   the largest h' in [1, h] for which h' x floor(w h' / h), aligned,
//                             fits gives H and W; one cell if none does
//   content:                  s = min(H / h, W / w), and at most 1 if frames h w >= least unit
//                             (a picture that has pixels enough is never enlarged to fill);
//                             floor(h s) x floor(w s), at least 1 and at most the canvas
//
// The content is the picture resized; it lies at the top left of the canvas, the rest is black.
// All divisions and roots are in double, as the model's own processor computes them.
#pragma once

#include <cstddef>

namespace percheron::vision {

struct CanvasRule {
    std::size_t patch = 14;
    std::size_t merge = 2;
    std::size_t frames = 2;  // temporal patch; a still picture is shown in each
    std::size_t least_tokens = 16;
    std::size_t most_tokens = 8000;  // at least 1

    std::size_t cell() const { return patch * merge; }
};

struct Canvas {
    std::size_t height = 0, width = 0;  // multiples of the cell
    std::size_t content_height = 0, content_width = 0;
    std::size_t tokens = 0;  // cells of the canvas
};

// Height and width of the upright picture, at least 1.
Canvas plan_canvas(std::size_t height, std::size_t width, const CanvasRule& rule = {});

}  // namespace percheron::vision
