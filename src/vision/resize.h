// Bicubic resampling with antialiasing, to the last bit what PIL's `resize(size, BICUBIC)` gives
// for 8-bit pictures.
//
// Per axis, from n to m samples: step = n / m, stretch = max(step, 1), reach = 2 stretch.  Output i
// is centred at c = (i + 0.5) step and is the weighted mean of inputs [int(c - reach + 0.5),
// int(c + reach + 0.5)), cut to [0, n), with weights w_j = cubic((j - c + 0.5) / stretch), a =
// -0.5, normalised to the sum 1 in double, then rounded to 22 fractional bits (half away from
// zero).  The weighted sum of the bytes plus one half, shifted down by 22 bits and cut to 0..255,
// is the result.  Rows are resampled first, then columns from the rounded bytes; an axis whose size
// stays is left alone.  (Pillow 13 takes
// columns first for some sizes whose height shrinks more than the width; for content that keeps its
// shape the tests found no difference.)
#pragma once

#include <cstddef>

#include "vision/image.h"

namespace percheron::vision {

// Sizes of at least 1.
RgbImage resize_bicubic(const RgbImage& image, std::size_t width, std::size_t height);

}  // namespace percheron::vision
