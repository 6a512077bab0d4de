// Pictures from foreign bytes: PNG, JPEG and WebP become 8-bit RGB, as `PIL.Image.open`,
// `ImageOps.exif_transpose` and `convert("RGB")` make them (what the model's own processor is fed
// with), value for value:
//
//   alpha         dropped, never composited: a transparent pixel keeps the colour stored under it
//   palette       looked up; an index behind the palette's end is black; tRNS changes nothing
//   1, 2, 4 bits  gray is stretched to 0..255
//   16 bits       colour, and gray with alpha, keep the high byte; gray alone is cut at 255 (PIL
//                 reads it as a wide integer, so nearly all of it turns white)
//   gray          repeated for the three channels
//   CMYK, YCCK    taken as inverted whether or not an Adobe marker says so; with C, M, Y, K the
//                 inks, k = 255 - K and r = k - C k / 255 rounded, g and b alike
//   colour space  gamma, ICC profiles and backgrounds are ignored
//   animation     the first picture
//   orientation   Exif tag 0x0112 (JPEG APP1, PNG eXIf, WebP EXIF), or where that has none the
//                 XMP packet's tiff:Orientation (in PNG only if not compressed), 2..8, is applied;
//                 anything else, a damaged Exif block included, means upright
//
// Sizes stand in the first bytes and are held to the limits before any pixel memory is asked for.
// Hostile bytes end as an Error; a cut file is an error, not half a picture.  Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "percheron/types.h"

#include "core/status.h"

namespace percheron::vision {

enum class ImageFormat : std::uint8_t { png, jpeg, webp };

std::string_view name_of(ImageFormat format);

struct ImageLimits {
    Bytes bytes = Bytes{32} << 20;               // of the file
    std::size_t pixels = std::size_t{64} << 20;  // width x height
    std::size_t side = 65535;                    // width, height
};

// The reason() of an Error that a limit raised.
inline constexpr std::string_view image_too_large = "image_too_large";

struct ImageHeader {
    ImageFormat format = ImageFormat::png;
    std::size_t width = 0;  // as stored, before `orientation`
    std::size_t height = 0;
    int orientation = 1;  // 1..8 as Exif counts

    bool lies_on_its_side() const { return orientation >= 5; }
    std::size_t upright_width() const { return lies_on_its_side() ? height : width; }
    std::size_t upright_height() const { return lies_on_its_side() ? width : height; }
};

struct RgbImage {
    std::size_t width = 0;
    std::size_t height = 0;
    std::vector<std::uint8_t> pixels;  // [height][width][3]

    const std::uint8_t* row(std::size_t y) const { return pixels.data() + y * width * 3; }
    std::uint8_t* row(std::size_t y) { return pixels.data() + y * width * 3; }
};

// Format, size and orientation; decodes nothing.  Errors: unsupported (another format), corrupt,
// invalid_argument with the reason image_too_large.
Result<ImageHeader> read_image_header(std::span<const std::uint8_t> bytes,
                                      const ImageLimits& limits = {});

// The upright picture.  Errors: those of the header; corrupt, unsupported (e.g. 12-bit JPEG).
Result<RgbImage> decode_image(std::span<const std::uint8_t> bytes, const ImageLimits& limits = {});

}  // namespace percheron::vision
