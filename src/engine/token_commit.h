// What a step's logits become: one token a sequence, its events, and whether it ends the choice.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "percheron/engine.h"
#include "percheron/types.h"

#include "core/status.h"
#include "engine/event_batches.h"
#include "engine/sequence.h"
#include "engine/token_mask.h"
#include "sampling/sampler.h"

namespace percheron::engine {

// Why a choice is over.
struct Ending {
    FinishReason reason = FinishReason::stop_token;
    std::optional<Error> error;  // only with `failed`
};

class TokenCommit {
  public:
    // `events` outlives this.
    TokenCommit(std::size_t vocabulary, std::vector<TokenId> banned_tokens, EventBatches& events)
        : banned_tokens_(std::move(banned_tokens)),
          events_(events),
          mask_(vocabulary),
          sampler_(vocabulary) {}

    // One token in order ("One token, in order" of docs/SCHEDULER.md): forced or chosen, added to
    // the sequence and the events, then what it ends; nothing: the choice goes on.
    // `logits`: those of the sequence's newest position, whose row is the `number`-th of those that
    // give it tokens in the step.
    std::optional<Ending> take(Sequence& sequence, const sampling::LogitRow& logits,
                               std::uint32_t number);

    // The tokens just taken came of a round of speculation.
    void note_round(const Sequence& sequence, std::uint32_t drafted, std::uint32_t accepted);
    sampling::Sampler& sampler() { return sampler_; }

  private:
    Result<TokenId> choose(const Sequence& sequence, const sampling::LogitRow& logits,
                           std::uint32_t number);
    static bool in_a_loop(Sequence& sequence, TokenId token);
    Status write_events(const Sequence& sequence, TokenId token, const sampling::LogitRow& logits);

    std::vector<TokenId> banned_tokens_;
    EventBatches& events_;
    TokenMask mask_;
    sampling::Sampler sampler_;
};

}  // namespace percheron::engine
