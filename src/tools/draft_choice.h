// `--draft` and `--draft-depth`: which proposers an engine is started with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/status.h"
#include "draft/draft_options.h"

namespace percheron::tools {

struct DraftWish {
    std::string proposer = "auto";             // auto, off, mtp, dflash2, copy
    std::optional<std::uint32_t> depth = {};   // drafts of a round; absent: decided while running
    std::filesystem::path model = {};          // the drafter's folder, of dflash2
    std::string cache = "auto";                // type of its context: auto (--kv-dtype), bf16, fp8
    std::optional<std::uint32_t> window = {};  // of its layers that see everything
};

// Drafts of a round at most, asked for by number and decided while running.
inline constexpr std::uint32_t deepest_draft = 15;
inline constexpr std::uint32_t deepest_adaptive_draft = 7;

// `has_mtp`: the files hold the model's layer and the backend computes it.
// Errors: invalid_argument (a name or depth that does not exist, a depth without a proposer),
// unsupported (mtp without a layer).
Result<draft::DraftOptions> choose_drafting(const DraftWish& wish, bool has_mtp);

}  // namespace percheron::tools
