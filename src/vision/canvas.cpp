#include "vision/canvas.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace percheron::vision {
namespace {

struct Size {
    std::size_t height, width;
    double area() const { return static_cast<double>(height) * static_cast<double>(width); }
};

std::size_t floor_to_size(double value) {
    return static_cast<std::size_t>(std::floor(value));
}
std::size_t ceil_to_size(double value) {
    return static_cast<std::size_t>(std::ceil(value));
}

Size aligned(Size size, std::size_t cell) {
    const auto up = [cell](std::size_t side) { return (side + cell - 1) / cell * cell; };
    return {up(size.height), up(size.width)};
}

// The largest aligned shrinking of `size` whose area is at most `most`.
Size largest_within(Size size, double most, std::size_t cell) {
    Size best{cell, cell};
    std::size_t low = 1;
    std::size_t high = size.height;
    while (low <= high) {
        const std::size_t height = low + (high - low) / 2;
        const double width = static_cast<double>(size.width) * static_cast<double>(height) /
                             static_cast<double>(size.height);
        const Size candidate =
            aligned({height, std::max<std::size_t>(1, floor_to_size(width))}, cell);
        if (candidate.area() <= most) {
            best = candidate;
            low = height + 1;
        } else {
            high = height - 1;
        }
    }
    return best;
}

}  // namespace

Canvas plan_canvas(std::size_t height, std::size_t width, const CanvasRule& rule) {
    assert(height > 0 && width > 0 && rule.most_tokens > 0);
    const Size picture{height, width};
    const std::size_t cell = rule.cell();
    const double frames = static_cast<double>(rule.frames);
    const double cell_area = static_cast<double>(cell * cell);
    // Areas of one frame; frames x area is compared with frames x cells x cell area.
    const double least = static_cast<double>(rule.least_tokens) * cell_area;
    const double most = static_cast<double>(rule.most_tokens) * cell_area;

    Size canvas = aligned(picture, cell);
    if (canvas.area() < least) {
        const double scale = std::sqrt(frames * least / (frames * picture.area()));
        canvas = aligned({ceil_to_size(static_cast<double>(height) * scale),
                          ceil_to_size(static_cast<double>(width) * scale)},
                         cell);
    }
    if (canvas.area() > most) canvas = largest_within(picture, most, cell);

    double scale = std::min(static_cast<double>(canvas.height) / static_cast<double>(height),
                            static_cast<double>(canvas.width) / static_cast<double>(width));
    if (picture.area() >= least) scale = std::min(1.0, scale);
    const auto content = [scale](std::size_t side, std::size_t limit) {
        const std::size_t scaled = floor_to_size(static_cast<double>(side) * scale);
        return std::clamp<std::size_t>(scaled, 1, limit);
    };
    return {canvas.height, canvas.width, content(height, canvas.height),
            content(width, canvas.width), canvas.height / cell * (canvas.width / cell)};
}

}  // namespace percheron::vision
