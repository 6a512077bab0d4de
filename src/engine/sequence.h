// One choice of one request while it lives: its tokens, its place in the caches, its budgets.
// Made in the thread that submits, then owned by the engine thread alone.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "percheron/engine.h"
#include "percheron/types.h"

#include "cache/block_key.h"
#include "cache/block_names.h"
#include "cache/prefix_cache.h"
#include "draft/depth_policy.h"
#include "engine/answer_masks.h"
#include "engine/image_features.h"
#include "engine/loop_guard.h"
#include "engine/thinking_budget.h"
#include "sampling/coupled_noise.h"
#include "sampling/token_counts.h"

namespace percheron::engine {

using Clock = std::chrono::steady_clock;

// An image of the prompt.  Its rows are there before the scheduler sees the sequence, and stay as
// long as it lives: after a preemption the prompt is computed again.
struct SequenceImage {
    PromptImage place;
    FeatureRows features;
};

// Where a chunk ends for a checkpoint (C7 of docs/SCHEDULER.md).
struct CheckpointEdge {
    Position position = 0;
    cache::CheckpointKind kind = cache::CheckpointKind::between;
};

// What is proposed for a sequence, and how proposals fared.
struct Drafting {
    bool wanted = true;           // false: the request does without
    std::vector<TokenId> drafts;  // for the positions behind the newest token
    std::uint32_t proposer = 0;   // whose they are
    std::uint32_t strength = 0;   // theirs (draft::Proposer::strength)
    std::uint32_t proposers = 0;  // whose there ever were, a bit each
    std::uint32_t rounds = 0;
    std::uint32_t drafted = 0;
    std::uint32_t accepted = 0;
    std::vector<std::uint32_t> accepted_per_position;

    // Where depths are chosen while running (engine/draft_depths.h).
    std::vector<draft::Beliefs> beliefs;  // by proposer and strength
    std::uint32_t undrafted = 0;          // steps in a row without drafts
    std::uint32_t missed = 0;             // proposers that rows were kept from, a bit each
    bool tried = false;                   // the drafts are a try, not expected to pay
};

struct Sequence {
    // Who asked, and how.
    RequestId request{};
    std::uint32_t choice = 0;
    std::uint64_t arrival = 0;  // rises with every submitted choice
    int priority = 0;
    EngineEventSink* sink = nullptr;
    SamplingParameters sampling;
    std::uint64_t seed = 0;
    std::uint32_t min_tokens = 0;
    std::uint32_t token_limit = 0;  // generated tokens at which the choice ends ...
    bool limit_is_context = false;  // ... and whether that is max_tokens or the context's end
    bool ignore_eos = false;
    int prompt_logprobs = -1;          // alternatives a token of the prompt; -1: no scores
    Position scored = 1;               // prompt tokens before this one have their score
    std::vector<TokenId> stop_tokens;  // the model's and the request's own
    std::optional<Clock::time_point> deadline;

    // Prompt, then what was generated.
    std::vector<TokenId> tokens;
    std::uint32_t prompt_tokens = 0;
    std::vector<SequenceImage> images;
    std::vector<cache::ImageSpan> image_spans;  // the same images, as the prefix tree sees them
    std::string cache_salt;
    bool use_cache = true;
    std::uint32_t system_tokens = 0;  // of the system prompt with its tools; 0: not known
    ThinkingBudget thinking;
    std::unique_ptr<LoopGuard> loop_guard;        // null: nobody looks
    std::shared_ptr<AnswerMasks> masks;           // null: nothing is forbidden
    std::optional<sampling::TokenCounts> counts;  // of `tokens`, only where penalties need them

    // Place in the caches; changed by the scheduler only.
    Position computed = 0;      // positions [0, computed) are in the caches ...
    std::uint32_t pending = 0;  // ... but for the last so many rows in the KDA states: accepted
                                // drafts, which the next step folds in
    // Of the newest position, whose mask was late: it sits out until the mask is there (M2).
    std::vector<float> held_logits;
    std::vector<PageId> pages;
    std::optional<RequestSlot> slot;
    cache::BlockKeys keys;                   // of its blocks, for the files; empty: there are none
    std::uint32_t blocks_on_disk = 0;        // of the first of them files are known or begun
    cache::PrefixPlace place;                // how far `pages` are a path of the prefix tree
    std::vector<CheckpointEdge> edges;       // ahead of `computed`, ascending
    Position latest_checkpoint = 0;          // made or hit on the way here
    cache::PrefixPlace passing_checkpoint;   // of a background: made at its latest chunk's end
    std::optional<std::uint32_t> first_hit;  // positions, at the first admission

    Drafting drafting;

    // For the books.
    bool announced = false;  // its Admitted event has been written
    // Prompt tokens that Progress events have told of; absent: nobody asked.
    std::optional<std::uint32_t> progress;
    Clock::time_point submitted;
    Clock::time_point first_admitted;
    Clock::time_point first_token;

    std::uint32_t generated() const {
        return static_cast<std::uint32_t>(tokens.size()) - prompt_tokens;
    }
    // Blocks of the prompt that others can have computed for it: its last token is always computed.
    std::uint32_t shareable_blocks() const { return (prompt_tokens - 1) / ops::page_tokens; }
    bool held() const { return !held_logits.empty(); }
    bool prefilling() const { return computed < prompt_tokens; }
    cache::PrefixText prefix_text() const { return {tokens, image_spans, cache_salt}; }
    sampling::NoiseStream noise() const { return {seed, choice}; }
};

}  // namespace percheron::engine
