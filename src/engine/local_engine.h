// The engine of this process: one thread that runs a network over the requests it is given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "percheron/engine.h"
#include "percheron/types.h"

#include "cache/disk_tier.h"
#include "core/dtype.h"
#include "core/status.h"
#include "draft/draft_options.h"
#include "draft/proposer.h"
#include "engine/scheduler.h"
#include "engine/thinking_budget.h"
#include "model/mtp_layer.h"
#include "model/network.h"
#include "model/vision_tower.h"
#include "ops/backend.h"

namespace percheron::engine {

// A network with what it stands on; destroyed from the bottom up.
struct NetworkParts {
    std::shared_ptr<void> weights;  // whatever the network's matrices point into
    std::unique_ptr<ops::Backend> backend;
    std::unique_ptr<model::Network> network;
    std::unique_ptr<model::MtpLayer> mtp;       // null: the model's own layer does not draft
    std::unique_ptr<draft::Proposer> proposer;  // asked before the options' own; null: none
    std::unique_ptr<model::VisionTower> tower;  // null: no images
};

// What one step was, for tests that must prove that batches and chunks really happened, and for
// benchmarks.
struct StepRecord {
    ops::NumericClass numeric_class = ops::NumericClass::decode;
    std::uint32_t sequences = 0;
    std::uint32_t rows = 0;
    std::uint32_t drafts = 0;    // of the rows
    std::uint32_t accepted = 0;  // of the drafts
    // Of the drafts, by proposer in the order of the engine's description.
    static constexpr std::size_t most_proposers = 4;
    std::array<std::uint32_t, most_proposers> drafts_by{};
    std::uint32_t preempted = 0;
    std::uint32_t late_masks = 0;  // sequences that sit out from here on, until theirs is there
    bool background = false;       // a reply on its way into the prefix cache (C11)
    double seconds = 0;
};

struct LocalEngineOptions {
    std::string model_name;
    std::uint32_t context_tokens = 0;  // at most 64 * scheduler.pages
    std::uint32_t max_queued = 1024;   // choices waiting beside max_running
    SchedulerOptions scheduler;        // its rows at most the network's
    draft::DraftOptions draft;
    DType kv_dtype = DType::bf16;
    std::vector<TokenId> stop_tokens;
    // Ids that are never valid output: rows of the head without a string, image placeholders.
    std::vector<TokenId> banned_tokens;
    // The prefix cache's files; sizes of pages and states are filled in.  Absent: there are none.
    std::optional<cache::DiskTierOptions> prefix_disk;
    std::uint32_t image_tokens = 0;  // of one image at most: what the tower was loaded for
    Bytes image_memory = 0;          // for feature rows, of images in use and of those kept
    // Begins a user's turn: before the first of them stands the system prompt with its tools.
    std::optional<TokenId> user_token;
    std::optional<ThinkTags> think_tags;
    std::optional<std::uint32_t> thinking_budget;  // of requests that name none
    std::size_t mask_threads = 2;       // for replies under a grammar; 0: the engine's own does it
    bool loop_guard = true;             // the same
    std::optional<std::uint64_t> seed;  // absent: seeds come from the operating system
    std::function<void(const StepRecord&)> on_step;  // called on the engine's thread
};

// Allocates the caches and starts the thread.  Destroying the engine ends it after the current
// step; requests in flight get no more events. Errors: invalid_argument (options that contradict
// each other or the network), out_of_memory, and those of the files' folder.
Result<std::unique_ptr<Engine>> make_local_engine(NetworkParts parts, LocalEngineOptions options);

}  // namespace percheron::engine
