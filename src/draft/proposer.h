// Who guesses the next tokens of running sequences, so that one step of the trunk can check
// several.
//
// A proposer never decides anything: what it names is accepted exactly where it equals the token
// that belongs there anyway (verification.h).  So it may be wrong, late or forgetful; it may not
// touch the trunk's caches, and it may not keep anything by row of a batch: its state goes by slot.
//
// After every step of the trunk, tokens taken, it is shown each sequence of the step that lives on,
// with the rows that stay: rejected ones are not among them.  Where depths are chosen while running
// it may miss generated rows (bridges_gaps()).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "percheron/engine.h"
#include "percheron/types.h"

#include "core/status.h"
#include "ops/batch.h"
#include "sampling/coupled_noise.h"
#include "sampling/token_counts.h"

namespace percheron::draft {

// How tokens of a sequence are drawn: what a proposer with logits of its own must do alike.
struct Drawing {
    const SamplingParameters* parameters = nullptr;
    sampling::TokenCounts* counts = nullptr;  // of all tokens so far; changed and put back
    std::span<const TokenId> banned;
    std::span<const TokenId> stops;    // masked ...
    Position stops_masked_before = 0;  // ... at positions below this one
    sampling::NoiseStream noise;
};

// One sequence of the step.
struct DraftSequence {
    RequestSlot slot{};
    std::span<const TokenId> tokens;  // the prompt, then what was generated
    std::uint32_t prompt_tokens = 0;
    std::span<const PageId> pages;  // cover tokens.size() + most positions
    Drawing drawing;

    // The step's rows that stay: positions [first, first + rows), from row first_row of its batch.
    // 0: nothing is to be looked at; a proposer that bridges gaps is left out of steps like this.
    Position first = 0;
    std::uint32_t rows = 0;
    std::uint32_t first_row = 0;
    // Image features that stand in the place of tokens' embeddings, by position.
    struct Features {
        Position position = 0;
        const float* values = nullptr;
    };
    std::span<const Features> features;

    // How many ids are wanted, for the positions from tokens.size() on; 0 where the newest token
    // is not the only one without state, or nothing is to be drafted.
    std::uint32_t most = 0;
    std::vector<TokenId>* drafts = nullptr;  // empty; takes at most `most`
};

class Proposer {
  public:
    virtual ~Proposer() = default;
    virtual std::string_view name() const = 0;  // "mtp", "dflash2", "copy"

    // Naming drafts takes steps of its own, so that how many are wanted is decided before;
    // otherwise they cost nothing and are cut to what they are worth.
    virtual bool takes_time() const { return false; }
    // All drafts of a round are named in one pass, however many; otherwise each takes one.
    virtual bool one_pass() const { return false; }
    // Generated rows that it was not shown cost it a worse guess at most, so that it need not be
    // kept up to date while it is not asked.  Otherwise it is given up for a sequence whose rows it
    // has missed, until begin().  Prompts it always sees.
    virtual bool bridges_gaps() const { return false; }
    // How much there is to be said for the slot's latest drafts, 0 to 2; what is learned of one
    // strength is not believed of another.
    static constexpr std::uint32_t strengths = 3;
    virtual std::uint32_t strength(RequestSlot) const { return 0; }

    // The slot was given to a new sequence, or to an old one that starts over.
    virtual void begin(RequestSlot slot) = 0;
    // Right after that: the sequence goes on from a checkpoint at `position`.
    virtual void resume(RequestSlot, Position /*position*/, CheckpointId) {}
    // The slot's state at `position`, all of it shown, has become the checkpoint.
    virtual void save(RequestSlot, Position /*position*/, CheckpointId) {}
    // The checkpoint is no more, or will be another's.
    virtual void forget(CheckpointId) {}
    // The sequence has ended.  Not said of one that is preempted.
    virtual void end(RequestSlot) {}

    // Sees every sequence of a step and fills their drafts.
    // Errors: of the backend, which end the engine as the trunk's own would.
    virtual Status propose(ops::NumericClass step_class, std::span<DraftSequence> sequences) = 0;
};

}  // namespace percheron::draft
