#include "tools/calibration_pictures.h"

#include <algorithm>

#include "engine/picture_grid.h"
#include "model/vision_tower.h"
#include "tools/devices.h"

namespace percheron::tools {
namespace {

Status encode_picture(model::VisionTower& tower, const PromptImage& image,
                      std::vector<float>& features) {
    const model::VisionConfig& config = tower.config();
    model::PatchGrid grid = engine::picture_grid(image, config);
    features.resize(tower.tokens_of(grid) * config.out_hidden);
    PERCHERON_TRY(tower.begin(std::move(grid), features));
    while (!tower.advance()) {
    }
    return {};
}

}  // namespace

Result<CalibrationPictures> CalibrationPictures::encode(const std::vector<CalibrationText>& texts,
                                                        const model::ModelConfig& config,
                                                        model::WeightSource& weights,
                                                        std::size_t threads) {
    CalibrationPictures pictures;
    pictures.hidden_ = config.hidden;
    const bool any = std::any_of(texts.begin(), texts.end(),
                                 [](const CalibrationText& text) { return !text.images.empty(); });
    if (!any) return pictures;
    if (!config.has_vision) {
        return Error(ErrorCode::unsupported,
                     "the texts hold images and the model has no vision tower; leave them out");
    }
    const model::VisionOptions options;
    PERCHERON_ASSIGN(const auto backend, make_backend({"cpu", threads, ops::Arithmetic::standard},
                                                      config, options.slice_rows));
    PERCHERON_ASSIGN(const auto tower,
                     model::VisionTower::load(config, weights, *backend, options));
    for (const CalibrationText& text : texts) {
        for (const PromptImage& image : text.images) {
            const auto [place, fresh] = pictures.features_.try_emplace(image.content_hash);
            if (fresh) PERCHERON_TRY(encode_picture(*tower, image, place->second));
        }
    }
    return pictures;
}

std::vector<ops::EmbeddingOverride> CalibrationPictures::rows(const CalibrationText& text,
                                                              std::size_t first,
                                                              std::size_t count) const {
    std::vector<ops::EmbeddingOverride> rows;
    for (const PromptImage& image : text.images) {
        const std::vector<float>& features = features_.at(image.content_hash);
        const std::size_t begin = std::max<std::size_t>(image.first, first);
        const std::size_t end = std::min<std::size_t>(image.first + image.count, first + count);
        for (std::size_t position = begin; position < end; ++position) {
            rows.push_back({static_cast<std::uint32_t>(position - first),
                            features.data() + (position - image.first) * hidden_});
        }
    }
    return rows;
}

}  // namespace percheron::tools
