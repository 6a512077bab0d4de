// Which way is up: the orientation that a camera wrote beside the picture.
//
//   1 upright        2 mirrored        3 turned by 180      4 upside down, mirrored
//   5 transposed     6 turn by 90      7 transversed        8 turn by 270 (clockwise, to be
//   upright)
#pragma once

#include <optional>
#include <span>

#include "vision/image.h"

namespace percheron::vision {

// The value of tag 0x0112 in the first directory of an Exif block (TIFF, either byte order, with or
// without the leading "Exif\0\0"); nothing if it is absent or the block is damaged.
std::optional<int> exif_orientation(std::span<const std::uint8_t> exif);

// The digit behind `tiff:Orientation="` or `tiff:Orientation>` in an XMP packet.
std::optional<int> xmp_orientation(std::span<const std::uint8_t> packet);

// What of the two counts: Exif before XMP, 1 for anything outside 2..8.
int effective_orientation(std::optional<int> exif, std::optional<int> xmp);

// The upright picture.
RgbImage upright(RgbImage image, int orientation);

}  // namespace percheron::vision
