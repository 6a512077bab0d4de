#include "ops/image_patches.h"

#include <algorithm>
#include <cassert>

namespace percheron::ops {
namespace {

using Table = std::array<std::array<float, 256>, 3>;

Table scaled_bytes(const PixelScale& scale) {
    Table table;
    for (std::size_t c = 0; c < 3; ++c) {
        for (std::size_t value = 0; value < 256; ++value) {
            const float share = static_cast<float>(static_cast<double>(value) * (1.0 / 255.0));
            table[c][value] = (share - scale.mean[c]) / scale.deviation[c];
        }
    }
    return table;
}

// One patch's row, its square's corner at `corner`.
void write_row(const std::uint8_t* corner, std::size_t stride, const PatchLayout& layout,
               const Table& table, float* out) {
    const std::size_t square = layout.patch * layout.patch;
    for (std::size_t c = 0; c < 3; ++c) {
        const float* const first_frame = out;
        for (std::size_t y = 0; y < layout.patch; ++y) {
            for (std::size_t x = 0; x < layout.patch; ++x) {
                *out++ = table[c][corner[y * stride + 3 * x + c]];
            }
        }
        for (std::size_t frame = 1; frame < layout.frames; ++frame) {
            out = std::copy_n(first_frame, square, out);
        }
    }
}

}  // namespace

void image_patches(std::span<const std::uint8_t> canvas, std::size_t width,
                   const PatchLayout& layout, const PixelScale& scale, std::size_t first,
                   std::size_t count, std::span<float> out) {
    const Table table = scaled_bytes(scale);
    const std::size_t stride = 3 * width;
    const std::size_t cells = width / (layout.patch * layout.merge);
    assert(out.size() >= count * layout.row_size());
    float* row = out.data();
    for (std::size_t r = first; r < first + count; ++r) {
        const std::size_t dx = r % layout.merge;
        const std::size_t dy = r / layout.merge % layout.merge;
        const std::size_t cell = r / (layout.merge * layout.merge);
        const std::size_t y = (cell / cells * layout.merge + dy) * layout.patch;
        const std::size_t x = (cell % cells * layout.merge + dx) * layout.patch;
        assert((y + layout.patch - 1) * stride + 3 * (x + layout.patch) <= canvas.size());
        write_row(canvas.data() + y * stride + 3 * x, stride, layout, table, row);
        row += layout.row_size();
    }
}

}  // namespace percheron::ops
