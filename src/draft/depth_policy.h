// How many drafts a round is worth, found out while running.
//
// A decode step over S sequences and D drafts gives S tokens and every draft that holds.  Depths
// are chosen for the whole batch's committed tokens per second, not for a stream by itself:
//
//   rate = tokens / (step(S + D) + passes + draw * (tokens + drafts of passes))
//   tokens = S + sum of chances
//
// Every token that is taken was drawn, and so was every draft of a proposer with logits: at a
// temperature that may take a good part of a small model's step, and no draft saves it.  Copies are
// free but for their rows; a proposer with passes of its own takes one over all
// sequences that draft with it for each draft of the deepest of them (or one for all its drafts:
// a block).  For every number of passes the drafts are taken in order of their chances, so that the
// best of all sizes of a step is found whatever the shape of step().
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "draft/step_costs.h"

namespace percheron::draft {

// How often drafts of one kind hold, the latest tries counting most.
class Belief {
  public:
    // As if `tries` had been seen of which `chance` held.
    Belief(double chance, double tries) : held_(chance * tries), tries_(tries) {}

    double chance() const { return held_ / tries_; }
    void see(bool holds) {
        constexpr double memory = 0.97;  // the latest thirty or so
        held_ = memory * held_ + (holds ? 1 : 0);
        tries_ = memory * tries_ + 1;
    }
    // Time goes by without a try: what was seen counts less.
    void age() {
        constexpr double memory = 0.995;
        if (tries_ * memory < least_tries) return;
        held_ *= memory;
        tries_ *= memory;
    }
    // What the chance may well be for all that was seen: as if some more tries had held.
    double hope() const { return (held_ + least_tries) / (tries_ + least_tries); }

  private:
    static constexpr double least_tries = 2;

    double held_;
    double tries_;
};

// Of the first, the second and all further drafts of a round, each if those before hold.
using Beliefs = std::array<Belief, 3>;

// Drafts that somebody would name for a sequence.
struct Offer {
    std::array<double, 3> chances{};  // as Beliefs
    std::uint32_t most = 0;           // drafts

    double chance(std::uint32_t draft) const { return chances[draft < 2 ? draft : 2]; }
};

struct Choice {
    Offer copy;   // named already
    Offer timed;  // by the proposer that takes time

    // The answer.
    bool use_timed = false;
    std::uint32_t depth = 0;
};

struct RoundCosts {
    const StepCosts* step = nullptr;    // by rows, drafts included, and sequences
    const StepCosts* passes = nullptr;  // of the proposer that takes time, by sequences
    bool one_pass = false;              // it names all its drafts in one
    double draw = 0;                    // seconds to draw a token and to take it
};

class DepthPolicy {
  public:
    // Fills every choice's answer for the step with one row each and the drafts chosen.
    // `drafting`, `passing`: the latest step had drafts, or passes; what goes on needs less of a
    // gain than what starts.  The rate that is expected, 0 without choices.
    double choose(std::span<Choice> choices, const RoundCosts& costs, bool drafting, bool passing);

  private:
    struct Draft {
        double chance = 0;  // that all up to it hold
        std::uint32_t choice = 0;
    };
    struct Round {
        double rate = 0;
        std::uint32_t passes = 0;
        std::uint32_t drafts = 0;
    };

    void list(std::span<const Choice> choices, std::uint32_t passes, double price);
    Round best_of(std::span<const Choice> choices, std::uint32_t passes, double price,
                  const RoundCosts& costs);

    std::vector<Draft> drafts_;
    std::vector<bool> timed_;  // whether a choice's drafts in drafts_ are the timed proposer's
};

}  // namespace percheron::draft
