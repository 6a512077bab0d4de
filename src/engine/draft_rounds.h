// Speculation over the running sequences: after every step the proposers see what stays of it and
// name drafts, which the next step's plan takes along; what was accepted is counted here.
//
// Drafts never cost anybody a place: a page for them is taken only where enough stay free, and what
// a step has no rows for is dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "percheron/engine.h"
#include "percheron/types.h"

#include "core/status.h"
#include "draft/draft_options.h"
#include "draft/proposer.h"
#include "draft/step_costs.h"
#include "draft/verification.h"
#include "engine/draft_depths.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace percheron::engine {

class DraftRounds {
  public:
    // In the order they are asked: who comes first and names something has the round.
    using Proposers = DraftDepths::Proposers;

    // `scheduler` outlives this; `shape` is the network's.
    DraftRounds(Proposers proposers, const draft::DraftOptions& options,
                const draft::StepShape& shape, std::vector<TokenId> banned_tokens,
                Scheduler& scheduler);

    // "mtp", "copy", "copy+mtp"
    std::string name() const;

    const Proposers& proposers() const { return proposers_; }
    // Null: depths are fixed.
    DraftDepths* depths() { return depths_ ? &*depths_ : nullptr; }

    // The sequence got its slot, with a checkpoint's state or none.
    void begin(Sequence& sequence, std::optional<CheckpointId> restored);
    // States that were copied out of their slots after the step whose rows have been shown.
    void save(std::span<const StateCopy> copies);
    void forget(CheckpointId checkpoint);
    void end(const Sequence& sequence);
    // Of a round with the sequence's first `drafted` drafts, which are over with it.
    void count(Sequence& sequence, std::uint32_t drafted, const draft::Verdict& verdict);
    // Drafts for the next step of every sequence of the plan that lives on; ended ones are null.
    // The trunk's step took `seconds` until its logits were there, and `drawing` until its tokens
    // were taken.
    Status propose(const StepPlan& plan, double seconds, double drawing);
    // For the books of a choice.
    void write_statistics(const Sequence& sequence, ChoiceStatistics& statistics) const;

  private:
    // Of one proposer, for noticing one that never hits.
    struct Window {
        std::uint32_t drafted = 0;
        std::uint32_t accepted = 0;
        bool named = false;  // a hit makes a further warning possible
    };

    void add(Sequence& sequence, const PlannedRows& planned, std::uint32_t first_row);
    std::uint32_t most_drafts(Sequence& sequence);
    void collect(const StepPlan& plan);
    Status propose_fixed(ops::NumericClass step_class);
    Status propose_adaptively(ops::NumericClass step_class);
    Status propose_copies(ops::NumericClass step_class);
    void choose();
    Status propose_timed(std::uint32_t proposer, ops::NumericClass step_class);
    void watch(std::uint32_t proposer, std::uint32_t drafted, std::uint32_t accepted);

    Proposers proposers_;
    const draft::DraftOptions options_;
    std::vector<TokenId> banned_tokens_;
    Scheduler& scheduler_;
    std::vector<Window> windows_;  // one a proposer

    // Where depths are chosen while running.
    std::optional<DraftDepths> depths_;
    std::uint32_t tokens_ = 0;  // that the latest step gave
    std::uint32_t timed_ = 0;   // who was chosen for passes
    std::vector<DraftDepths::Candidate> candidates_;
    std::vector<std::size_t> places_;    // whose they are, among seen_
    std::vector<std::uint32_t> passes_;  // drafts of the timed proposer, by seen_

    // Of the step in hand, kept for their memory.
    std::vector<draft::DraftSequence> seen_;
    std::vector<draft::DraftSequence> shown_;  // to a proposer that takes time
    std::vector<Sequence*> owners_;
    std::vector<draft::DraftSequence::Features> features_;
    std::vector<std::size_t> feature_ends_;
    std::vector<std::uint32_t> wanted_;  // drafts that anybody may name
};

}  // namespace percheron::engine
