// One decoder a format, for image.cpp alone.
#pragma once

#include "vision/image.h"

namespace percheron::vision {

using FileBytes = std::span<const std::uint8_t>;

// Size and orientation, unchecked against any limit.
Result<ImageHeader> read_png_header(FileBytes bytes);
Result<ImageHeader> read_jpeg_header(FileBytes bytes);
Result<ImageHeader> read_webp_header(FileBytes bytes);

// Fill `image`, which has the header's size as stored and pixel memory to match.
Status decode_png(FileBytes bytes, RgbImage& image);
Status decode_jpeg(FileBytes bytes, RgbImage& image);
Status decode_webp(FileBytes bytes, RgbImage& image);

}  // namespace percheron::vision
