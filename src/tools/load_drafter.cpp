#include "tools/load_drafter.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/logging.h"
#include "draft/context_cache.h"
#include "draft/dflash2_proposer.h"
#include "model/dflash2.h"

namespace percheron::tools {
namespace {

// Checkpoints of a prompt stand about so many positions apart, so that those beside each other have
// the rest of their windows in common.
constexpr std::uint32_t pages_between_checkpoints = 512 / ops::page_tokens;

model::Dflash2Options options_for(const model::NetworkOptions& trunk) {
    model::Dflash2Options options;
    options.context_rows = trunk.max_rows;
    return options;
}

}  // namespace

Result<DrafterFolder> open_drafter(const DraftWish& wish, const model::ModelConfig& config,
                                   const draft::DraftOptions& drafting, ops::Arithmetic arithmetic,
                                   DType kv_dtype, const ops::Backend& backend) {
    const auto wrong = [](std::string message) {
        return Error(ErrorCode::invalid_argument, std::move(message));
    };
    if (backend.drafter() == nullptr) {
        return Error(ErrorCode::unsupported, "the backend " + std::string(backend.name()) +
                                                 " computes no dflash2 drafter; take --draft mtp, "
                                                 "copy or off");
    }
    DrafterFolder drafter;
    PERCHERON_ASSIGN(drafter.files, checkpoint::Drafter::open(wish.model));
    drafter.config = drafter.files->config();
    const std::size_t layers = drafter.files->target_layer_count();
    if (layers != 0 && layers != config.layers()) {
        return wrong(wish.model.string() + ": is a drafter for a model of " +
                     std::to_string(layers) + " layers (num_target_layers), this one has " +
                     std::to_string(config.layers()));
    }
    if (wish.depth && drafting.depth >= drafter.config.block) {
        return wrong("--draft-depth " + std::to_string(drafting.depth) +
                     " is more than the drafter names: its block of " +
                     std::to_string(drafter.config.block) + " holds " +
                     std::to_string(drafter.config.block - 1) + " drafts");
    }
    if (wish.window) {
        if (drafter.config.window() != 0) {
            return wrong(
                "--draft-window is for layers that see everything, but all of this "
                "drafter's have a window");
        }
        for (std::uint32_t& window : drafter.config.windows) {
            if (window == 0) window = *wish.window;
        }
    }
    const bool fp32 = arithmetic == ops::Arithmetic::fp32;
    drafter.cache = wish.cache == "auto"  ? kv_dtype
                    : wish.cache == "fp8" ? DType::f8_e4m3
                    : fp32                ? DType::f32
                                          : DType::bf16;
    for (const std::string& name : drafter.files->left_over()) {
        log_warning(wish.model.string() + ": tensor " + name + " is not used");
    }
    return drafter;
}

void add_needs(const DrafterFolder& drafter, const ops::Backend& backend,
               const model::NetworkOptions& trunk, engine::MemoryNeeds& needs) {
    const auto shape = draft::ContextShape::of(drafter.config, drafter.cache);
    const model::NetworkMemory memory =
        model::Dflash2::memory(drafter.config, backend, trunk, options_for(trunk));
    needs.drafter = drafter.files->mapped_bytes() + memory.activations + memory.stages;
    if (backend.has_own_memory()) {
        needs.drafter -= std::min(needs.drafter, model::Dflash2::codebook_bytes(drafter.config));
    }
    needs.drafter_logits = memory.logits;
    needs.draft_page = shape.page_bytes();
    needs.draft_dtype = shape.dtype;
    needs.draft_pages_a_slot = shape.pages_a_slot();
    needs.draft_pages_a_checkpoint = std::min(shape.pages_a_slot(), pages_between_checkpoints);
    if (shape.window == 0 && shape.page_bytes() > needs.caches.page_bytes()) {
        log_warning("the drafter's context takes " +
                    std::to_string(shape.page_bytes() / ops::page_tokens) +
                    " bytes a token, the model's own caches " +
                    std::to_string(needs.caches.bytes_per_token()) +
                    (shape.dtype == DType::f8_e4m3 ? "; " : "; --draft-cache fp8 halves it, ") +
                    "--draft-window N bounds it");
    }
}

Result<std::unique_ptr<draft::Proposer>> load_drafter(const DrafterFolder& drafter,
                                                      model::Network& trunk, ops::Backend& backend,
                                                      const model::NetworkOptions& trunk_options,
                                                      std::uint32_t pages, std::uint32_t slots) {
    const model::Dflash2Options options = options_for(trunk_options);
    PERCHERON_ASSIGN(auto network,
                     model::Dflash2::load(drafter.config, trunk, *drafter.files, backend, options));
    const auto shape = draft::ContextShape::of(drafter.config, drafter.cache);
    PERCHERON_ASSIGN(auto cache, draft::ContextCache::create(shape, pages, slots, backend));
    return std::unique_ptr<draft::Proposer>(std::make_unique<draft::Dflash2Proposer>(
        std::move(network), std::move(cache), options.block_rows));
}

}  // namespace percheron::tools
