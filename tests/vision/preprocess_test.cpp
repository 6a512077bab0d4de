// Canvas, resampling and patches against PIL and the model's own processor.
#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "vision/cases.h"
#include "vision/patches.h"
#include "vision/resize.h"

namespace percheron::vision {
namespace {

struct CanvasCase {
    std::size_t height, width, canvas_height, canvas_width, tokens, content_height, content_width;
};

TEST(CanvasPlan, KnownSizes) {
    const CanvasCase table[] = {
        {14, 14, 112, 112, 16, 112, 112},
        {64, 128, 84, 168, 18, 84, 168},
        {100, 100, 112, 112, 16, 112, 112},
        {224, 224, 224, 224, 64, 224, 224},
        {300, 500, 308, 504, 198, 300, 500},
        {720, 1280, 728, 1288, 1196, 720, 1280},
        {1080, 1920, 1092, 1932, 2691, 1080, 1920},
        {2160, 3840, 1876, 3332, 7973, 1874, 3332},
        {10000, 10000, 2492, 2492, 7921, 2492, 2492},
    };
    for (const CanvasCase& wanted : table) {
        SCOPED_TRACE(std::to_string(wanted.height) + " x " + std::to_string(wanted.width));
        const Canvas canvas = plan_canvas(wanted.height, wanted.width);
        EXPECT_EQ(canvas.height, wanted.canvas_height);
        EXPECT_EQ(canvas.width, wanted.canvas_width);
        EXPECT_EQ(canvas.tokens, wanted.tokens);
        EXPECT_EQ(canvas.content_height, wanted.content_height);
        EXPECT_EQ(canvas.content_width, wanted.content_width);
    }
}

TEST(CanvasPlan, AnySizeGivesWholeCellsWithinTheBudget) {
    std::mt19937 random(3);
    const CanvasRule rule;
    for (int i = 0; i < 20000; ++i) {
        const auto side = [&random] {
            return static_cast<std::size_t>(std::exp2(random() % 1600 / 100.0));
        };
        const std::size_t height = side(), width = side();
        SCOPED_TRACE(std::to_string(height) + " x " + std::to_string(width));
        const Canvas canvas = plan_canvas(height, width, rule);
        ASSERT_EQ(canvas.height % rule.cell(), 0u);
        ASSERT_EQ(canvas.width % rule.cell(), 0u);
        ASSERT_EQ(canvas.tokens * rule.cell() * rule.cell(), canvas.height * canvas.width);
        ASSERT_LE(canvas.tokens, rule.most_tokens);
        ASSERT_GE(canvas.content_height, 1u);
        ASSERT_GE(canvas.content_width, 1u);
        ASSERT_LE(canvas.content_height, canvas.height);
        ASSERT_LE(canvas.content_width, canvas.width);
        if (height * width >= rule.least_tokens * rule.cell() * rule.cell()) {
            ASSERT_LE(canvas.content_height, height);
            ASSERT_LE(canvas.content_width, width);
        }
    }
}

TEST(Resize, EqualsPilToTheLastBit) {
    for (const auto& wanted : cases().at("resize")) {
        SCOPED_TRACE(wanted.dump());
        const RgbImage image = formula(wanted.at("from")[0], wanted.at("from")[1]);
        const RgbImage resized = resize_bicubic(image, wanted.at("to")[0], wanted.at("to")[1]);
        EXPECT_EQ(checksum(resized.pixels), wanted.at("checksum"));
    }
    EXPECT_GT(cases().at("resize").size(), 9u);
}

TEST(Resize, OneColourStaysThatColour) {
    std::mt19937 random(11);
    for (int i = 0; i < 200; ++i) {
        RgbImage image{1 + random() % 90, 1 + random() % 90, {}};
        const std::uint8_t color[3] = {static_cast<std::uint8_t>(random()), 0, 255};
        for (std::size_t p = 0; p < image.width * image.height; ++p) {
            image.pixels.insert(image.pixels.end(), color, color + 3);
        }
        const RgbImage resized = resize_bicubic(image, 1 + random() % 90, 1 + random() % 90);
        for (std::size_t p = 0; p < resized.pixels.size(); ++p) {
            ASSERT_EQ(resized.pixels[p], color[p % 3]);
        }
    }
}

RgbImage picture_of(const nlohmann::json& wanted) {
    if (!wanted.contains("file")) return formula(wanted.at("width"), wanted.at("height"));
    return decode_image(file_bytes(wanted.at("file"))).value();
}

// Every value turned back into the byte it came from, and some values as they are.
TEST(Patches, EqualTheModelsProcessor) {
    const PixelScale scale;
    for (const auto& wanted : cases().at("preprocess")) {
        SCOPED_TRACE(wanted.dump().substr(0, 60));
        const Patches patches = make_patches(picture_of(wanted));
        EXPECT_EQ(patches.grid_height, wanted.at("grid")[0]);
        EXPECT_EQ(patches.grid_width, wanted.at("grid")[1]);
        ASSERT_EQ(patches.row_size, 1176u);
        ASSERT_EQ(patches.values.size(), patches.tokens * 4 * patches.row_size);
        std::vector<std::uint8_t> levels(patches.values.size());
        for (std::size_t i = 0; i < levels.size(); ++i) {
            const std::size_t c = i % patches.row_size / (patches.row_size / 3);
            const float share = patches.values[i] * scale.deviation[c] + scale.mean[c];
            levels[i] = static_cast<std::uint8_t>(std::lround(share * 255.0f));
        }
        EXPECT_EQ(checksum(levels), wanted.at("checksum"));
        const std::size_t stride = wanted.at("stride");
        const auto& values = wanted.at("values");
        ASSERT_EQ(values.size(), (patches.values.size() + stride - 1) / stride);
        for (std::size_t i = 0; i < values.size(); ++i) {
            ASSERT_NEAR(patches.values[i * stride], values[i].get<float>(), 1e-6f);
        }
    }
    EXPECT_GT(cases().at("preprocess").size(), 25u);
}

// Whoever computes the tower a few rows at a time gets the rows of the whole.
TEST(Patches, AnySpanOfRowsIsThatSpanOfTheWhole) {
    std::mt19937 random(3);
    for (int i = 0; i < 40; ++i) {
        const CanvasRule rule{2 + random() % 7, 1 + random() % 3, 1 + random() % 3, 1, 400};
        const RgbImage image = formula(1 + random() % 90, 1 + random() % 90);
        const Canvas canvas = plan_canvas(image.height, image.width, rule);
        const RgbImage laid = lay_on_canvas(image, canvas);
        const Patches whole = make_patches(image, rule);
        const std::size_t rows = whole.grid_height * whole.grid_width;
        const std::size_t first = random() % rows;
        const std::size_t count = 1 + random() % (rows - first);
        const ops::PatchLayout layout{rule.patch, rule.merge, rule.frames};
        ASSERT_EQ(whole.row_size, layout.row_size());
        std::vector<float> part(count * layout.row_size());
        ops::image_patches(laid.pixels, canvas.width, layout, {}, first, count, part);
        ASSERT_TRUE(
            std::equal(part.begin(), part.end(), whole.values.data() + first * layout.row_size()));
    }
}

// The enlargement of a picture that has fewer pixels than the smallest canvas.
TEST(Patches, SmallPictureOnItsCanvas) {
    const RgbImage image = decode_image(file_bytes("image_small.png")).value();
    const RgbImage wanted = decode_image(file_bytes("image_small_canvas.png")).value();
    const RgbImage laid = lay_on_canvas(image, plan_canvas(image.height, image.width));
    ASSERT_EQ(laid.width, wanted.width);
    ASSERT_EQ(laid.height, wanted.height);
    EXPECT_EQ(laid.pixels, wanted.pixels);
}

// The border is black before the numbers are scaled, and is scaled with the rest.
TEST(Patches, BorderIsScaledBlack) {
    const PixelScale scale;
    const RgbImage white{130, 100, std::vector<std::uint8_t>(130 * 100 * 3, 255)};
    const Patches patches = make_patches(white);
    ASSERT_EQ(patches.grid_height, 8u);
    ASSERT_EQ(patches.grid_width, 10u);
    const float* const last_row = patches.values.data() + 79 * patches.row_size;
    for (std::size_t c = 0; c < 3; ++c) {
        EXPECT_FLOAT_EQ(last_row[c * 392 + 195], -scale.mean[c] / scale.deviation[c]);
        EXPECT_FLOAT_EQ(patches.values[c * 392], (1.0f - scale.mean[c]) / scale.deviation[c]);
    }
}

}  // namespace
}  // namespace percheron::vision
