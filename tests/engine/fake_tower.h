// A tower of hashes: the features of a token are a hash of its pixels and its place, and an image
// takes as many slices as it has tokens.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "percheron/engine.h"

#include "model/vision_tower.h"

namespace percheron::engine::testing {

inline constexpr std::size_t fake_patch = 2, fake_merge = 2, fake_cell = 4;
inline constexpr std::size_t fake_feature_width = 4;  // numbers a token
inline constexpr std::uint32_t fake_image_tokens = 40;
inline constexpr TokenId fake_image{44};

// The k-th feature row of a canvas, by the pixels of its cell and of the image's first.
inline std::array<float, fake_feature_width> fake_feature(const ImageCanvas& canvas,
                                                          std::size_t token) {
    const std::size_t cells = canvas.width / fake_cell;
    const std::size_t y = token / cells * fake_cell, x = token % cells * fake_cell;
    std::array<float, fake_feature_width> row{};
    for (std::size_t i = 0; i < row.size(); ++i) {
        row[i] = static_cast<float>(canvas.pixels[((y + i) * canvas.width + x) * 3]) +
                 static_cast<float>(token) * 0.5f;
    }
    return row;
}

class FakeTower final : public model::VisionTower {
  public:
    FakeTower() {
        config_.patch = fake_patch;
        config_.merge = fake_merge;
        config_.temporal_patch = 1;
        config_.out_hidden = fake_feature_width;
    }
    const model::VisionConfig& config() const override { return config_; }

    Status begin(model::PatchGrid grid, std::span<float> features) override {
        grid_ = std::move(grid);
        features_ = features;
        next_ = 0;
        return {};
    }
    bool advance() override {
        const std::size_t row_size = 3 * fake_patch * fake_patch;
        std::vector<float> patches(fake_merge * fake_merge * row_size);
        grid_.rows(next_ * fake_merge * fake_merge, fake_merge * fake_merge, patches);
        // Red of the first pixel of each of the cell's four rows: rows 0 and 1 lie in its first
        // patch, rows 2 and 3 in its third.
        for (std::size_t i = 0; i < fake_feature_width; ++i) {
            const float red = patches[i / 2 * 2 * row_size + i % 2 * fake_patch];
            // The fake canvas has mean 0 and deviation 1 / 255.
            features_[next_ * fake_feature_width + i] =
                std::round(red) + static_cast<float>(next_) * 0.5f;
        }
        return ++next_ == tokens_of(grid_);
    }

  private:
    model::VisionConfig config_;
    model::PatchGrid grid_;
    std::span<float> features_;
    std::size_t next_ = 0;
};

// An image of `height` x `width` tokens whose pixels are drawn from `seed`.
inline PromptImage fake_image_of(std::uint32_t height, std::uint32_t width, std::uint64_t seed) {
    auto canvas = std::make_shared<ImageCanvas>();
    canvas->height = height * fake_cell;
    canvas->width = width * fake_cell;
    canvas->mean = {0, 0, 0};
    canvas->deviation = {1.0f / 255, 1.0f / 255, 1.0f / 255};
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i < std::size_t{3} * canvas->height * canvas->width; ++i) {
        canvas->pixels.push_back(static_cast<std::uint8_t>(random()));
    }
    PromptImage image;
    image.count = height * width;
    image.grid_height = height * fake_merge;
    image.grid_width = width * fake_merge;
    image.canvas = std::move(canvas);
    const std::uint64_t what[] = {seed, height, width};
    std::memcpy(image.content_hash.data(), what, sizeof what);
    return image;
}

// Puts an image in front of position `at` of the prompt, behind the images that are there.
inline void insert_image(GenerationRequest& request, PromptImage image, std::uint32_t at) {
    image.first = at;
    request.prompt.insert(request.prompt.begin() + at, image.count, fake_image);
    request.images.push_back(std::move(image));
}

}  // namespace percheron::engine::testing
