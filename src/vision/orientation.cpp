#include "vision/orientation.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace percheron::vision {
namespace {

using Block = std::span<const std::uint8_t>;

std::string_view text_of(Block block) {
    return {reinterpret_cast<const char*>(block.data()), block.size()};
}

// Integers of a TIFF block; what lies outside reads as nothing.
class TiffReader {
  public:
    TiffReader(Block block, bool big_endian) : block_(block), big_endian_(big_endian) {}

    std::optional<std::uint32_t> number(std::size_t offset, std::size_t size) const {
        if (offset > block_.size() || block_.size() - offset < size) return std::nullopt;
        std::uint32_t value = 0;
        for (std::size_t i = 0; i < size; ++i) {
            const std::size_t at = big_endian_ ? offset + i : offset + size - 1 - i;
            value = value << 8 | block_[at];
        }
        return value;
    }

  private:
    Block block_;
    bool big_endian_;
};

}  // namespace

std::optional<int> exif_orientation(Block exif) {
    constexpr std::string_view prefix("Exif\0\0", 6);
    if (text_of(exif).starts_with(prefix)) exif = exif.subspan(prefix.size());
    const std::string_view text = text_of(exif);
    const bool big_endian = text.starts_with(std::string_view("MM\0*", 4));
    if (!big_endian && !text.starts_with(std::string_view("II*\0", 4))) return std::nullopt;

    const TiffReader tiff(exif, big_endian);
    const auto directory = tiff.number(4, 4);
    if (!directory) return std::nullopt;
    const auto entries = tiff.number(*directory, 2);
    if (!entries) return std::nullopt;
    constexpr std::size_t entry_size = 12;
    constexpr std::uint32_t orientation_tag = 0x0112;
    for (std::size_t i = 0; i < *entries; ++i) {
        const std::size_t entry = std::size_t{*directory} + 2 + i * entry_size;
        const auto tag = tiff.number(entry, 2);
        const auto type = tiff.number(entry + 2, 2);
        const auto count = tiff.number(entry + 4, 4);
        if (!tag || !type || !count) return std::nullopt;
        if (*tag != orientation_tag) continue;
        if (*count != 1) return std::nullopt;
        const std::size_t size = *type == 1 ? 1 : *type == 3 ? 2 : *type == 4 ? 4 : 0;
        const auto value = size > 0 ? tiff.number(entry + 8, size) : std::nullopt;
        if (!value || *value > 255) return std::nullopt;
        return static_cast<int>(*value);
    }
    return std::nullopt;
}

std::optional<int> xmp_orientation(Block packet) {
    constexpr std::string_view name = "tiff:Orientation";
    const std::string_view text = text_of(packet);
    for (std::size_t at = text.find(name); at != std::string_view::npos;
         at = text.find(name, at + 1)) {
        std::string_view rest = text.substr(at + name.size());
        if (rest.starts_with("=\"")) {
            rest.remove_prefix(2);
        } else if (rest.starts_with(">")) {
            rest.remove_prefix(1);
        } else {
            continue;
        }
        if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return rest[0] - '0';
    }
    return std::nullopt;
}

int effective_orientation(std::optional<int> exif, std::optional<int> xmp) {
    const int value = exif ? *exif : xmp.value_or(1);
    return value >= 2 && value <= 8 ? value : 1;
}

RgbImage upright(RgbImage image, int orientation) {
    if (orientation < 2 || orientation > 8) return image;
    const bool transposed = orientation >= 5;
    // The stored pixel of the upright (x, y): (x, y) or (y, x), each then counted from either end.
    const bool from_right =
        orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    const bool from_bottom =
        orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    RgbImage result;
    result.width = transposed ? image.height : image.width;
    result.height = transposed ? image.width : image.height;
    result.pixels.resize(image.pixels.size());
    std::uint8_t* out = result.pixels.data();
    for (std::size_t y = 0; y < result.height; ++y) {
        for (std::size_t x = 0; x < result.width; ++x, out += 3) {
            std::size_t column = transposed ? y : x;
            std::size_t row = transposed ? x : y;
            if (from_right) column = image.width - 1 - column;
            if (from_bottom) row = image.height - 1 - row;
            std::copy_n(image.row(row) + column * 3, 3, out);
        }
    }
    return result;
}

}  // namespace percheron::vision
