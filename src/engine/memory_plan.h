// The plan of memory, made before anything large is loaded: one row for every block the engine will
// ask for, the defaults of context, pool and running requests, and a refusal with advice when it
// does not fit.  `percheron plan` prints the same plan without loading.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "percheron/types.h"

#include "cache/cache_shape.h"
#include "core/machine_memory.h"
#include "core/status.h"
#include "model/network.h"

namespace percheron::engine {

// What is known before the plan is made.
struct MemoryNeeds {
    Bytes weights = 0;  // mapped files, made-up values, or what of them lies in memory
    std::string weights_name = "weights, mapped";
    Bytes program = 0;  // resident before loading: code's data, tokenizer, threads
    // The plan is of a device's own memory, and `machine` is its; what the host holds meanwhile
    // (logits, tables of the sampler, the prefix tree, ...) is listed and not counted.
    bool on_device = false;
    model::NetworkMemory network;
    Bytes tower = 0;           // working space of the vision tower; 0 without one
    Bytes prefix_disk = 0;     // for the prefix cache's files: DiskTier::memory()
    Bytes image_features = 0;  // feature rows of images in use and of those kept
    // Speculation: the MTP layer's activations and logits, the share of a request slot that holds
    // rows not yet accepted, and the index of texts a token.  Its latents are pages like others.
    model::NetworkMemory mtp;
    Bytes draft_slot_share = 0;
    Bytes copy_index_per_token = 0;
    // A drafter of its own folder: weights, activations and taps; its logits; a page of its
    // context, and how many of them a request slot and a checkpoint hold at most.  No slot's: every
    // page of the pool has one of the drafter's beside it.
    Bytes drafter = 0;
    Bytes drafter_logits = 0;
    Bytes draft_page = 0;
    DType draft_dtype = DType::bf16;  // of its keys and values
    std::uint32_t draft_pages_a_slot = 0;
    std::uint32_t draft_pages_a_checkpoint = 0;
    std::size_t vocabulary = 0;
    cache::CacheShape caches;
    std::uint64_t context_limit = 0;  // of the model
};

// What the user fixed; the rest follows from the machine.
struct MemoryWishes {
    std::optional<std::uint32_t> context;
    std::optional<Bytes> kv_memory;  // pages, slots and checkpoints
    std::optional<std::uint32_t> max_running;
    bool prefix_cache = true;
    std::optional<Bytes> checkpoint_memory = {};  // of kv_memory
};

// A block of the prefix tree on the host: its name, its node, its places in maps.  Every page can
// have one.
inline constexpr Bytes tree_block_bytes = 768;

struct MemoryRow {
    std::string name;
    Bytes bytes = 0;
    bool elsewhere = false;  // in the host's memory, where the plan is of a device's
};

struct MemoryPlan {
    std::vector<MemoryRow> rows;
    Bytes total = 0;      // of the rows that are not elsewhere
    Bytes available = 0;  // of the machine, when the plan was made
    Bytes floor = 0;      // that stays free
    std::uint32_t pages = 0;
    std::uint32_t max_running = 0;
    std::uint32_t checkpoints = 0;      // of the prefix cache; 0: it is off
    std::uint32_t draft_pages = 0;      // of a drafter's context
    std::uint32_t context = 0;          // tokens of one request, prompt and reply
    std::uint64_t kv_tokens = 0;        // over all requests
    std::uint64_t largest_request = 0;  // tokens that fit if it runs alone
    Bytes bytes_per_token = 0;
    Bytes bytes_per_sequence = 0;
};

// The defaults: a quarter of what is left for pages, slots and checkpoints (no more than the
// requests could use), an eighth of that for checkpoints (at least two where a quarter holds them,
// and less where a named context needs the room), 64 running requests or as many as half of the
// rest holds, the context the smaller of the model's limit and the pool. Errors: invalid_argument
// (a context beyond the model's limit, memory for checkpoints that holds none), out_of_memory with
// what would fit.
Result<MemoryPlan> plan_memory(const MemoryNeeds& needs, const MemoryWishes& wishes,
                               const MachineMemory& machine);

struct PromptRowsPlan {
    std::uint32_t rows = 0;  // of a prompt's step
    MemoryPlan plan;
};

// The plan with the most rows of a prompt's step among `choices`, largest first, that fits with
// every wish and whose working memory (activations, stages and the MTP layer's) is an eighth of
// what the weights leave at most; the last choice is taken however much that is.  Errors: those of
// the last choice's plan.
Result<PromptRowsPlan> plan_prompt_rows(
    std::span<const std::uint32_t> choices,
    const std::function<MemoryNeeds(std::uint32_t rows)>& needs_with, const MemoryWishes& wishes,
    const MachineMemory& machine);

// The plan as a table of lines.
std::vector<std::string> table_of(const MemoryPlan& plan);

// "1.25 GiB", "312.0 MiB"
std::string readable(Bytes bytes);

}  // namespace percheron::engine
