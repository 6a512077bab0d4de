// From a drafter's folder to a proposer: `--draft-model` and what goes with it.
#pragma once

#include <cstdint>
#include <memory>

#include "checkpoint/drafter.h"
#include "core/status.h"
#include "draft/draft_options.h"
#include "draft/proposer.h"
#include "engine/memory_plan.h"
#include "model/dflash2_config.h"
#include "model/network.h"
#include "ops/backend.h"
#include "tools/draft_choice.h"

namespace percheron::tools {

struct DrafterFolder {
    std::shared_ptr<checkpoint::Drafter> files;
    model::Dflash2Config config;  // with the window that was wished for
    DType cache = DType::bf16;    // of its context: `kv_dtype`, unless one was wished for
};

// Errors: of the folder (named); invalid_argument (a drafter of another model, a depth beyond its
// block, a window for layers that have one); unsupported (a backend without the stages).
Result<DrafterFolder> open_drafter(const DraftWish& wish, const model::ModelConfig& config,
                                   const draft::DraftOptions& drafting, ops::Arithmetic arithmetic,
                                   DType kv_dtype, const ops::Backend& backend);

void add_needs(const DrafterFolder& drafter, const ops::Backend& backend,
               const model::NetworkOptions& trunk, engine::MemoryNeeds& needs);

// `pages`: of its context.  Files, trunk and backend outlive the proposer.
Result<std::unique_ptr<draft::Proposer>> load_drafter(const DrafterFolder& drafter,
                                                      model::Network& trunk, ops::Backend& backend,
                                                      const model::NetworkOptions& trunk_options,
                                                      std::uint32_t pages, std::uint32_t slots);

}  // namespace percheron::tools
