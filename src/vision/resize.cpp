#include "vision/resize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace percheron::vision {
namespace {

// 32 bits hold the sum: 8 for the sample, 2 for weights beyond 1 and the sign.
constexpr int fraction_bits = 32 - 8 - 2;
constexpr std::int32_t one_half = 1 << (fraction_bits - 1);

double cubic(double x) {
    constexpr double a = -0.5;
    x = std::fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
    return 0.0;
}

// The inputs of one output and their fixed-point weights, weights[first_weight + j] for input
// first + j.
struct Window {
    std::size_t first, count, first_weight;
};

struct Axis {
    std::vector<Window> windows;
    std::vector<std::int32_t> weights;
};

Axis plan_axis(std::size_t from, std::size_t to) {
    constexpr double cubic_reach = 2.0;
    const double step = static_cast<double>(from) / static_cast<double>(to);
    const double stretch = std::max(step, 1.0);
    const double reach = cubic_reach * stretch;
    Axis axis;
    axis.windows.reserve(to);
    std::vector<double> exact;
    for (std::size_t i = 0; i < to; ++i) {
        const double center = (static_cast<double>(i) + 0.5) * step;
        const double begin = std::max(0.0, std::trunc(center - reach + 0.5));
        const double end = std::min(static_cast<double>(from), std::trunc(center + reach + 0.5));
        Window window{static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin),
                      axis.weights.size()};
        exact.resize(window.count);
        double sum = 0.0;
        for (std::size_t j = 0; j < window.count; ++j) {
            exact[j] = cubic((static_cast<double>(j) + begin - center + 0.5) * (1.0 / stretch));
            sum += exact[j];
        }
        for (const double weight : exact) {
            const double share = (sum != 0.0 ? weight / sum : weight) * (1 << fraction_bits);
            axis.weights.push_back(
                static_cast<std::int32_t>(share < 0 ? share - 0.5 : share + 0.5));
        }
        axis.windows.push_back(window);
    }
    return axis;
}

std::uint8_t to_byte(std::int32_t sum) {
    return static_cast<std::uint8_t>(std::clamp(sum >> fraction_bits, 0, 255));
}

RgbImage resize_rows(const RgbImage& image, std::size_t width) {
    const Axis axis = plan_axis(image.width, width);
    RgbImage result{width, image.height, {}};
    result.pixels.resize(width * image.height * 3);
    for (std::size_t y = 0; y < image.height; ++y) {
        std::uint8_t* out = result.row(y);
        for (const Window& window : axis.windows) {
            std::int32_t sums[3] = {one_half, one_half, one_half};
            const std::uint8_t* in = image.row(y) + window.first * 3;
            const std::int32_t* const weights = axis.weights.data() + window.first_weight;
            for (std::size_t j = 0; j < window.count; ++j, in += 3) {
                for (std::size_t c = 0; c < 3; ++c)
                    sums[c] += in[c] * weights[j];
            }
            for (std::size_t c = 0; c < 3; ++c)
                *out++ = to_byte(sums[c]);
        }
    }
    return result;
}

RgbImage resize_columns(const RgbImage& image, std::size_t height) {
    const Axis axis = plan_axis(image.height, height);
    RgbImage result{image.width, height, {}};
    result.pixels.resize(image.width * height * 3);
    const std::size_t row_size = image.width * 3;
    std::vector<std::int32_t> sums(row_size);
    for (std::size_t y = 0; y < height; ++y) {
        const Window& window = axis.windows[y];
        std::fill(sums.begin(), sums.end(), one_half);
        for (std::size_t j = 0; j < window.count; ++j) {
            const std::int32_t weight = axis.weights[window.first_weight + j];
            const std::uint8_t* const in = image.row(window.first + j);
            for (std::size_t i = 0; i < row_size; ++i)
                sums[i] += in[i] * weight;
        }
        std::transform(sums.begin(), sums.end(), result.row(y), to_byte);
    }
    return result;
}

}  // namespace

RgbImage resize_bicubic(const RgbImage& image, std::size_t width, std::size_t height) {
    if (width == image.width) {
        return height == image.height ? image : resize_columns(image, height);
    }
    RgbImage rows = resize_rows(image, width);
    return height == image.height ? rows : resize_columns(rows, height);
}

}  // namespace percheron::vision
