#include "golden/picture_check.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "vision/image.h"
#include "vision/patches.h"

namespace percheron::tests {

Result<PictureCheck> PictureCheck::make(checkpoint::Checkpoint& checkpoint, ops::Backend& backend,
                                        const std::filesystem::path& folder) {
    PictureCheck check;
    check.folder_ = folder;
    if (!checkpoint.config().has_vision || backend.vision() == nullptr) return check;
    model::VisionOptions options;
    options.max_tokens = 128;
    options.slice_rows = 48;
    PERCHERON_ASSIGN(check.tower_,
                     model::VisionTower::load(checkpoint.config(), checkpoint, backend, options));
    std::ifstream file(folder / "golden.json");
    if (!file) return check;
    const auto listed = nlohmann::json::parse(file);
    for (const auto& prompt : listed.at("prompts")) {
        check.pictures_[prompt.at("name")] = prompt.value("images", std::vector<std::string>());
    }
    return check;
}

Result<std::vector<float>> PictureCheck::encode(model::PatchGrid grid) {
    std::vector<float> features(tower_->tokens_of(grid) * tower_->config().out_hidden);
    PERCHERON_TRY(tower_->begin(std::move(grid), features));
    while (!tower_->advance()) {
    }
    return features;
}

Result<std::vector<float>> PictureCheck::features_of_picture(const std::string& file) {
    std::ifstream stream(folder_ / file, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(stream)),
                            std::istreambuf_iterator<char>());
    PERCHERON_ASSIGN(
        const vision::RgbImage image,
        vision::decode_image({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}));
    const vision::Patches patches = vision::make_patches(image);
    return encode({patches.grid_height, patches.grid_width,
                   [&](std::size_t first, std::size_t count, std::span<float> out) {
                       std::copy_n(patches.values.data() + first * patches.row_size,
                                   count * patches.row_size, out.data());
                   }});
}

Result<std::vector<float>> PictureCheck::features_of_prompt(const std::string& prompt) {
    std::vector<float> rows;
    for (const std::string& file : pictures_[prompt]) {
        PERCHERON_ASSIGN(const std::vector<float> features, features_of_picture(file));
        rows.insert(rows.end(), features.begin(), features.end());
    }
    return rows;
}

Result<std::vector<double>> PictureCheck::compare(const GoldenFile& golden) {
    std::vector<double> ratios;
    if (!tower_) return ratios;
    constexpr std::string_view suffix = ".f32.features";
    for (const std::string& name : golden.names()) {
        if (!name.ends_with(suffix)) continue;
        const std::string stem = name.substr(0, name.size() - suffix.size());
        std::vector<float> ours;
        if (const GoldenTensor* const sides = golden.find(stem + ".grid")) {
            const GoldenTensor& pixels = *golden.find(stem + ".pixel_values");
            PERCHERON_ASSIGN(
                ours, encode({static_cast<std::size_t>(sides->values[0]),
                              static_cast<std::size_t>(sides->values[1]),
                              [&](std::size_t first, std::size_t count, std::span<float> out) {
                                  std::copy_n(pixels.row(first), count * pixels.row_size(),
                                              out.data());
                              }}));
        } else {
            PERCHERON_ASSIGN(ours, features_of_picture(stem + ".png"));
        }
        const GoldenTensor& expected = *golden.find(name);
        if (ours.size() != expected.values.size()) {
            return Error(ErrorCode::internal, name + ": the tower gives " +
                                                  std::to_string(ours.size()) +
                                                  " numbers, the golden file has " +
                                                  std::to_string(expected.values.size()));
        }
        for (std::size_t row = 0; row < expected.rows(); ++row) {
            const float* const theirs = expected.row(row);
            double worst = 0;
            double squares = 0;
            for (std::size_t i = 0; i < expected.row_size(); ++i) {
                const double difference = ours[row * expected.row_size() + i] - theirs[i];
                // Not max(): a NaN must win.
                if (!(std::fabs(difference) <= worst)) worst = std::fabs(difference);
                squares += static_cast<double>(theirs[i]) * theirs[i];
            }
            ratios.push_back(worst / std::sqrt(squares / static_cast<double>(expected.row_size())));
        }
    }
    return ratios;
}

}  // namespace percheron::tests
