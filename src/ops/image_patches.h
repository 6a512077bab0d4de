// The rows that a vision tower's first product reads, cut from a canvas of bytes.
//
// A canvas is RGB bytes [height][width][3] whose sides are multiples of patch x merge.  Row r is
// one patch x patch square.  Rows come cell by cell, cells (merge x merge patches) in reading
// order, and inside a cell its patches in reading order, so that the rows of one token are
// neighbours: with cells = width / (patch merge), r = ((cell_y cells + cell_x) merge + dy) merge +
// dx is the square whose corner is at y = (cell_y merge + dy) patch, x = (cell_x merge + dx) patch.
//
// Values of a row: [channel 3][frame][patch y][patch x], the one picture repeated for every frame.
// A byte v of channel c is (v / 255 - mean_c) / deviation_c: v / 255 as v * (1.0 / 255.0) in
// double, rounded to float, the rest in float.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace percheron::ops {

struct PatchLayout {
    std::size_t patch = 14;
    std::size_t merge = 2;
    std::size_t frames = 2;

    std::size_t row_size() const { return 3 * frames * patch * patch; }
};

struct PixelScale {
    std::array<float, 3> mean{0.48145466f, 0.4578275f, 0.40821073f};
    std::array<float, 3> deviation{0.26862954f, 0.26130258f, 0.27577711f};
};

// Writes rows [first, first + count) to out [count][row_size].  `canvas` holds at least the cells
// these rows lie in; `width` is in pixels.
void image_patches(std::span<const std::uint8_t> canvas, std::size_t width,
                   const PatchLayout& layout, const PixelScale& scale, std::size_t first,
                   std::size_t count, std::span<float> out);

}  // namespace percheron::ops
