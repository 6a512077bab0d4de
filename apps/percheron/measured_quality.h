// Comparing two models on texts, with progress and a table.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "core/status.h"
#include "tools/quality.h"

namespace percheron::apps {

// Tokens are read as `source`'s tokenizer has them.
Result<std::vector<tools::KindQuality>> measure_quality(
    const std::filesystem::path& source, const std::filesystem::path& other,
    const std::vector<tools::CalibrationText>& texts, const std::string& device,
    std::size_t threads, bool fp4_activations = false);

void print_quality(const std::vector<tools::KindQuality>& quality);

}  // namespace percheron::apps
