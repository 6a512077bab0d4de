// Drafters for the embedded model, written by a test.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "percheron/types.h"

#include "checkpoint/synthetic_drafter.h"
#include "checkpoint/torch_vector.h"
#include "core/dtype.h"
#include "core/files.h"

namespace percheron::tools {

// A drafter that was taught by counting: how often a token is said, and how often behind one of the
// most frequent others.  Its layers add nothing, so that every place's hidden row is the mask
// vector's; the head holds the tokens' counts, the selector's P names the token before, its Q the
// counts behind that one.
inline checkpoint::SyntheticDrafter counted_drafter(const model::ModelConfig& target,
                                                    std::map<std::string, std::vector<float>>& set,
                                                    std::span<const std::vector<TokenId>> texts) {
    auto drafter = checkpoint::make_synthetic_drafter("full", target, 3).value();
    model::Dflash2Config& config = drafter.config;
    config.windows.resize(2);
    config.selector_rank = 256;
    config.selector_top = 512;
    checkpoint::fill_synthetic_drafter(drafter);
    const std::size_t hidden = config.hidden;
    config.mask.assign(hidden, 0.0f);
    config.mask[0] = 1.0f;

    std::map<TokenId, std::map<TokenId, int>> behind;
    std::map<TokenId, int> counts;
    for (const std::vector<TokenId>& text : texts) {
        for (std::size_t i = 0; i + 1 < text.size(); ++i) {
            ++counts[text[i + 1]];
            ++behind[text[i]][text[i + 1]];
        }
    }
    for (const auto& weight : drafter.weights) {
        const std::string& name = weight.tensor.name;
        std::size_t size = 1;
        for (const std::size_t extent : weight.tensor.shape) {
            size *= extent;
        }
        const bool silent = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") ||
                            name.ends_with("codebook") || name == "lm_head.weight" ||
                            name.ends_with("hidden_projection.weight");
        if (silent) set[name].assign(size, 0.0f);
    }
    // RMS makes sqrt(hidden) of the mask's one; the norm makes one of it again.
    set["norm.weight"].assign(hidden, 0.0f);
    set["norm.weight"][0] = 1.0f / std::sqrt(static_cast<float>(hidden));
    for (const auto& [token, count] : counts) {
        set["lm_head.weight"][static_cast<std::size_t>(to_int(token)) * hidden] =
            std::log(static_cast<float>(1 + count));
    }
    std::vector<std::pair<int, TokenId>> frequent;
    for (const auto& [token, count] : counts) {
        frequent.push_back({-count, token});
    }
    std::sort(frequent.begin(), frequent.end());
    const std::string at = "candidate_selector.";
    for (std::size_t r = 0; r < std::min(config.selector_rank, frequent.size()); ++r) {
        const TokenId before = frequent[r].second;
        set[at + "hidden_projection.weight"][r * hidden] = 1.0f;
        set[at + "predecessor_codebook"][static_cast<std::size_t>(to_int(before)) * 256 + r] = 1.0f;
        for (const auto& [token, count] : behind[before]) {
            set[at + "successor_codebook"][static_cast<std::size_t>(to_int(token)) * 256 + r] =
                10.0f + 2.0f * std::log(static_cast<float>(count));
        }
    }
    return drafter;
}

// A drafter's folder with some tensors' values set.
inline void write_drafter(const std::filesystem::path& folder,
                          const checkpoint::SyntheticDrafter& drafter,
                          const std::map<std::string, std::vector<float>>& set) {
    std::filesystem::create_directories(folder);
    std::vector<checkpoint::TensorHeader> headers;
    for (const auto& weight : drafter.weights) {
        headers.push_back(weight.parts.front().header);
    }
    auto writer =
        checkpoint::SafetensorsWriter::create(folder / "model.safetensors", headers).value();
    for (const auto& weight : drafter.weights) {
        const checkpoint::SyntheticTensor& tensor = weight.parts.front();
        std::vector<BFloat16> values(tensor.header.bytes() / sizeof(BFloat16));
        checkpoint::make_values(tensor, drafter.seed, 0, std::as_writable_bytes(std::span(values)));
        if (const auto own = set.find(tensor.header.name); own != set.end()) {
            for (std::size_t i = 0; i < values.size(); ++i) {
                values[i] = BFloat16(own->second[i]);
            }
        }
        EXPECT_TRUE(writer.write(tensor.header.name, std::as_bytes(std::span(values))).ok());
    }
    EXPECT_TRUE(writer.finish().ok());
    EXPECT_TRUE(write_text_file(folder / "mask_embedding.pt",
                                checkpoint::torch_vector_file(drafter.config.mask, "mask"))
                    .ok());
    EXPECT_TRUE(write_text_file(folder / "config.json", checkpoint::written_config(drafter)).ok());
}

}  // namespace percheron::tools
