// The vision tower on the CUDA backend: against the reference backend, and slices, which must not
// show in a bit.
#include <cmath>
#include <cstring>
#include <memory>

#include "model/vision_tower.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/reference/reference_backend.h"
#include "ops_cuda/check.h"
#include "ops_cuda/formatted_weights.h"

using namespace percheron;
using namespace percheron::check;
using ops::WeightFormat;

namespace {

model::ModelConfig config_with_vision() {
    model::ModelConfig config = cuda_config();
    config.has_vision = true;
    config.vision.depth = 3;
    config.vision.hidden = 128;
    config.vision.heads = 2;
    config.vision.intermediate = 384;
    config.vision.patch = 5;  // 150 values a patch: no whole number of blocks
    config.vision.out_hidden = config.hidden;
    config.vision.projection_intermediate = 640;
    config.vision.swiglu_limit = 2.0f;
    return config;
}

template <class T>
T must(Result<T> result) {
    if (!result.ok()) {
        std::printf("%s\n", result.error().message().c_str());
        std::exit(1);
    }
    return std::move(result).value();
}

constexpr std::size_t most_tokens = 600;

std::unique_ptr<model::VisionTower> tower_on(ops::Backend& backend, model::WeightSource& weights,
                                             std::size_t slice_rows) {
    model::VisionOptions options;
    options.max_tokens = most_tokens;
    options.slice_rows = slice_rows;
    return must(model::VisionTower::load(config_with_vision(), weights, backend, options));
}

std::vector<float> encode(model::VisionTower& tower, std::size_t height, std::size_t width) {
    const std::size_t values = 2 * 3 * 5 * 5;
    Random random(height * 100 + width);
    const std::vector<float> pixels = normals(random, height * width * values);
    std::vector<float> features(height * width / 4 * tower.config().out_hidden, NAN);
    const model::PatchGrid grid{
        height, width, [&](std::size_t first, std::size_t count, std::span<float> out) {
            std::memcpy(out.data(), pixels.data() + first * values, count * values * sizeof(float));
        }};
    const Status begun = tower.begin(grid, features);
    CHECK_THAT(begun.ok(), "%s", begun.ok() ? "" : begun.error().message().c_str());
    while (!tower.advance()) {
    }
    return features;
}

// Pictures of one token, of a few, of odd numbers of tokens, and of more patches than a block's
// warps take at a time.
constexpr std::pair<std::size_t, std::size_t> sizes[] = {{2, 2},   {2, 6},  {6, 6},
                                                         {10, 14}, {2, 66}, {34, 26}};

}  // namespace

KERNEL_TEST(vision_tower_against_the_reference) {
    for (const auto& choice : {FormattedWeights::Choice(all_bf16),
                               FormattedWeights::Choice(mixed(WeightFormat::w4a16))}) {
        FormattedWeights weights(21, choice);
        const auto cuda = must(ops::make_cuda_backend({}));
        const auto reference = ops::reference::make_reference_backend(ops::Arithmetic::standard);
        const auto ours = tower_on(*cuda, weights, 256),
                   oracle = tower_on(*reference, weights, 256);
        for (const auto& [height, width] : sizes) {
            const std::vector<float> features = encode(*ours, height, width);
            const std::vector<float> expected = encode(*oracle, height, width);
            double error = 0, norm = 0;
            for (std::size_t i = 0; i < features.size(); ++i) {
                const double d = static_cast<double>(features[i]) - expected[i];
                error += d * d;
                norm += static_cast<double>(expected[i]) * expected[i];
            }
            error = std::sqrt(error / norm);
            CHECK_THAT(error < 0.01, "%zu x %zu patches: features off by %.4f", height, width,
                       error);
        }
    }
}

KERNEL_TEST(vision_tower_slices_change_no_bit) {
    FormattedWeights weights(22, all_bf16);
    // A backend has one tower.
    const auto backend = must(ops::make_cuda_backend({}));
    const auto whole = tower_on(*backend, weights, 512);
    for (const auto& [height, width] : sizes) {
        const std::vector<float> expected = encode(*whole, height, width);
        for (const std::size_t slice : {4, 28, 64, 256}) {
            const auto other = must(ops::make_cuda_backend({}));
            const auto sliced = tower_on(*other, weights, slice);
            const std::vector<float> features = encode(*sliced, height, width);
            CHECK_THAT(features.size() == expected.size() &&
                           std::memcmp(features.data(), expected.data(), features.size() * 4) == 0,
                       "%zu x %zu patches by %zu", height, width, slice);
        }
    }
}
