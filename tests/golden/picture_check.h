// The vision tower against golden features, and the features of a golden prompt's pictures.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "core/status.h"
#include "golden/golden_file.h"
#include "model/vision_tower.h"
#include "ops/backend.h"

namespace percheron::tests {

class PictureCheck {
  public:
    // Nothing to check where the checkpoint has no tower, or the backend computes none.
    // `folder`: golden.json names the pictures of each prompt, which lie beside it.
    static Result<PictureCheck> make(checkpoint::Checkpoint& checkpoint, ops::Backend& backend,
                                     const std::filesystem::path& folder);

    // The feature rows of all pictures of a prompt, in order; empty without pictures.
    Result<std::vector<float>> features_of_prompt(const std::string& prompt);

    // Ratio |difference| / RMS of every golden feature row: X.f32.features against picture X.png,
    // or against the patches in X.pixel_values where X.grid is.
    Result<std::vector<double>> compare(const GoldenFile& golden);

  private:
    Result<std::vector<float>> encode(model::PatchGrid grid);
    Result<std::vector<float>> features_of_picture(const std::string& file);

    std::filesystem::path folder_;
    std::unique_ptr<model::VisionTower> tower_;
    std::map<std::string, std::vector<std::string>> pictures_;  // by prompt
};

}  // namespace percheron::tests
