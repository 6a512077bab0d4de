// What the tower promises whatever its weights: slices and threads do not show, pictures do not
// feel each other, wrong sizes are refused.
#include "model/vision_tower.h"

#include <cstring>

#include <gtest/gtest.h>

#include "ops/cpu/cpu_backend.h"
#include "ops/reference/reference_backend.h"
#include "support/random_model.h"

namespace percheron::tests {
namespace {

model::ModelConfig tower_config() {
    model::ModelConfig config = small_config();
    config.has_vision = true;
    model::VisionConfig& vision = config.vision;
    vision.depth = 2;
    vision.hidden = 24;
    vision.heads = 2;
    vision.intermediate = 40;
    vision.patch = 3;
    vision.out_hidden = config.hidden;
    vision.projection_intermediate = 56;
    vision.swiglu_limit = 2.0f;
    return config;
}

// A picture of random patches.
struct Picture {
    Picture(std::size_t height, std::size_t width, std::size_t values, std::uint64_t seed)
        : height(height), width(width), values(values), pixels(height * width * values) {
        std::mt19937_64 random(seed);
        std::normal_distribution<float> normal;
        for (float& pixel : pixels) {
            pixel = normal(random);
        }
    }
    model::PatchGrid grid() const {
        return {height, width, [this](std::size_t first, std::size_t count, std::span<float> out) {
                    ASSERT_EQ(out.size(), count * values);
                    std::memcpy(out.data(), pixels.data() + first * values, out.size_bytes());
                }};
    }
    std::size_t height, width, values;
    std::vector<float> pixels;
};

std::unique_ptr<ops::Backend> cpu(std::size_t threads, ops::Arithmetic arithmetic) {
    ops::CpuBackendOptions options;
    options.threads = threads;
    options.arithmetic = arithmetic;
    return ops::make_cpu_backend(options).value();
}

std::vector<float> encode(model::VisionTower& tower, const Picture& picture,
                          std::size_t* slices = nullptr) {
    std::vector<float> features(picture.height * picture.width / 4 * tower.config().out_hidden);
    EXPECT_TRUE(tower.begin(picture.grid(), features).ok());
    std::size_t count = 1;
    while (!tower.advance()) {
        ++count;
    }
    if (slices != nullptr) *slices = count;
    return features;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class VisionTowerTest : public testing::TestWithParam<ops::Arithmetic> {
  protected:
    std::unique_ptr<model::VisionTower> load(ops::Backend& backend, std::size_t slice) {
        model::VisionOptions options;
        options.max_tokens = 60;
        options.slice_rows = slice;
        auto tower = model::VisionTower::load(config, weights, backend, options);
        EXPECT_TRUE(tower.ok()) << tower.error().message();
        return std::move(tower).value();
    }
    Picture picture(std::size_t height, std::size_t width, std::uint64_t seed) const {
        return {height, width, 3 * 2 * config.vision.patch * config.vision.patch, seed};
    }

    model::ModelConfig config = tower_config();
    RandomWeights weights{11};
};

TEST_P(VisionTowerTest, SlicesAndThreadsLeaveTheSameBits) {
    const auto two = cpu(2, GetParam());
    const auto whole = load(*two, 240);
    for (const auto& [height, width] : {std::pair{2, 2}, {4, 10}, {2, 60}, {12, 20}}) {
        const Picture shown =
            picture(static_cast<std::size_t>(height), static_cast<std::size_t>(width), 7);
        const std::vector<float> expected = encode(*whole, shown);
        EXPECT_EQ(expected.size(), shown.height * shown.width / 4 * config.hidden);
        for (const std::size_t slice : {4, 12, 64}) {
            const auto one = cpu(1, GetParam());
            const auto sliced = load(*one, slice);
            std::size_t slices = 0;
            EXPECT_TRUE(same_bits(encode(*sliced, shown, &slices), expected))
                << height << " x " << width << " by " << slice;
            const std::size_t each = (shown.height * shown.width + slice - 1) / slice;
            EXPECT_EQ(slices, (2 + 2 * config.vision.depth) * each);
        }
    }
}

TEST_P(VisionTowerTest, PicturesDoNotFeelEachOther) {
    const auto backend = cpu(2, GetParam());
    const auto tower = load(*backend, 16);
    const Picture large = picture(12, 20, 1), small = picture(4, 6, 2);
    const std::vector<float> first = encode(*tower, small);
    const std::vector<float> other = encode(*tower, large);
    EXPECT_TRUE(same_bits(encode(*tower, small), first));
    // One that is dropped half way leaves nothing behind either.
    std::vector<float> dropped(60 * config.hidden);
    ASSERT_TRUE(tower->begin(large.grid(), dropped).ok());
    for (int i = 0; i < 9; ++i) {
        EXPECT_FALSE(tower->advance());
    }
    EXPECT_TRUE(same_bits(encode(*tower, small), first));
    EXPECT_TRUE(same_bits(encode(*tower, large), other));
}

TEST_P(VisionTowerTest, AgreesWithTheOracle) {
    const auto backend = cpu(2, GetParam());
    const auto oracle = ops::reference::make_reference_backend(GetParam());
    const Picture shown = picture(6, 14, 3);
    const auto ours = load(*backend, 20);
    const auto theirs = load(*oracle, 84);
    const std::vector<float> features = encode(*ours, shown), expected = encode(*theirs, shown);
    double squares = 0, worst = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        squares += static_cast<double>(expected[i]) * expected[i];
        const double difference = std::fabs(static_cast<double>(features[i]) - expected[i]);
        if (!(difference <= worst)) worst = difference;
    }
    const double rms = std::sqrt(squares / static_cast<double>(expected.size()));
    EXPECT_LE(worst, rms * (GetParam() == ops::Arithmetic::fp32 ? 1e-4 : 0.1));
}

TEST_P(VisionTowerTest, RefusesWhatItCannotEncode) {
    const auto backend = cpu(1, GetParam());
    const auto tower = load(*backend, 16);
    for (const auto& [height, width] : {std::pair{0, 2}, {2, 3}, {3, 2}, {2, 122}, {16, 16}}) {
        const Picture shown =
            picture(static_cast<std::size_t>(height), static_cast<std::size_t>(width), 1);
        std::vector<float> features(shown.height * shown.width / 4 * config.hidden);
        EXPECT_FALSE(tower->begin(shown.grid(), features).ok()) << height << " x " << width;
    }
    const Picture largest = picture(2, 120, 1);
    std::vector<float> features(60 * config.hidden);
    EXPECT_FALSE(tower->begin(largest.grid(), std::span(features).first(59)).ok());
    EXPECT_TRUE(tower->begin(largest.grid(), features).ok());
}

TEST_P(VisionTowerTest, NamesTheTensorThatIsMissing) {
    for (const char* name :
         {"model.visual.patch_embed.proj", "model.visual.blocks.1.attn.q_norm.weight",
          "model.visual.downsample.bias", "model.visual.merger.down_proj"}) {
        const auto backend = cpu(1, GetParam());
        RandomWeights lacking(1, name);
        const auto tower = model::VisionTower::load(config, lacking, *backend, {});
        ASSERT_FALSE(tower.ok()) << name;
        EXPECT_NE(tower.error().message().find(name), std::string::npos);
    }
}

INSTANTIATE_TEST_SUITE_P(Both, VisionTowerTest,
                         testing::Values(ops::Arithmetic::standard, ops::Arithmetic::fp32),
                         [](const auto& info) {
                             return info.param == ops::Arithmetic::fp32 ? "fp32" : "standard";
                         });

}  // namespace
}  // namespace percheron::tests
