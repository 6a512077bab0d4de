// How many drafts a round is worth, found out while running.
//
// A decode step over S sequences and D drafts takes about base + row * (S + D) seconds and gives S
// tokens and every draft that holds.  Depths are chosen for the whole batch's committed tokens per
// second, not for a stream by itself:
//
//   rate = (S + sum of chances) / (step(S + D) + what the proposers take)
//
// A draft is worth its place where its chance of holding exceeds rate * (its seconds).  The best
// rate is found by taking that for granted and asking again (Dinkelbach's method for a ratio).
#pragma once

#include <array>
#include <cstdint>
#include <span>

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

  private:
    double held_;
    double tries_;
};

// Seconds of a decode step by its rows: a line through what was seen lately.  Before rows have
// varied the slope is taken for a guess's share of the whole.
class StepCosts {
  public:
    void observe(double rows, double seconds);
    bool known() const { return weight_ > 0; }
    double seconds(double rows) const;
    double seconds_per_row() const;

  private:
    double weight_ = 0;
    double rows_ = 0;  // weighted means
    double seconds_ = 0;
    double rows_squared_ = 0;  // weighted sums about the means
    double rows_seconds_ = 0;
};

// Drafts that somebody would name for a sequence.
struct Offer {
    double first = 0;        // chance of the first draft
    double later = 0;        // of each further one, if all before hold
    std::uint32_t most = 0;  // drafts
    double seconds = 0;      // a draft, beside its row in the trunk's step
};

struct Choice {
    std::array<Offer, 2> offers;
    bool drafting = false;  // had drafts in its latest step: hysteresis

    // The answer.
    std::uint32_t offer = 0;
    std::uint32_t depth = 0;
};

// Fills every choice's answer for the step with one row each and the drafts chosen.
void choose_depths(std::span<Choice> choices, const StepCosts& costs);

}  // namespace percheron::draft
