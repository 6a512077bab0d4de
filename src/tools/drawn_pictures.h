// Pictures that an item describes instead of carrying: flat shapes on a flat ground, drawn the same
// everywhere.
//
//   {"type": "image", "draw": {"size": [height, width], "ground": [r, g, b],
//                              "shapes": [[kind, x, y, s, r, g, b], ...]}}
//
// A shape of size s stands around pixel (x, y), later ones over earlier ones, no pixel mixed:
//   square    |px - x| <= s, |py - y| <= s
//   circle    (px - x)^2 + (py - y)^2 <= s^2 + 0.8 s
//   triangle  rows y - s .. y + s, 2 |px - x| <= py - (y - s): apex up
//   cross     two bars of half width max(2, s / 3) and half length s
// as Pillow's ImageDraw fills ellipse, rectangle and polygon (the circle's edge within a pixel).
#pragma once

#include <nlohmann/json.hpp>

#include "core/status.h"
#include "vision/image.h"

namespace percheron::tools {

// Errors: invalid_argument, with the field.
Result<vision::RgbImage> draw_picture(const nlohmann::ordered_json& draw);

}  // namespace percheron::tools
