// How time is shared between decode steps and prefill steps while both have work (S9 of
// docs/SCHEDULER.md): running streams keep a share of the rate that they have by themselves.
//
// Decode steps between prefill steps are slower than among themselves: the prompt's rows have taken
// the caches.  So time alone is no measure of what streams keep.  With
//
//     w(rows)  seconds of an undisturbed decode step of so many rows
//     d_i, p_j seconds of the decode and prefill steps
//
// they keep sum w / (sum d + sum p) of their rate.  For that to be `share`, each prefill step owes
// share * p seconds, and each decode step pays w - share * d of it.  At most twice the time that
// decode steps would take if nothing made them slower is given for a prefill step, so that prompts
// keep (1 - share) / (1 + share) of the time whatever the machine does.
#pragma once

#include <cstdint>
#include <vector>

namespace percheron::engine {

class DecodeShare {
  public:
    // share: at least 0, below 1; most_rows: of a decode step.
    DecodeShare(double share, std::uint32_t most_rows)
        : share_(share), undisturbed_(most_rows + 1) {}

    // Seconds of undisturbed decode steps that come before the next prefill step.
    double owed() const { return owed_; }
    // What a prefill step of so many seconds owes.
    double owed_for(double prefill_seconds) const {
        return prefill_seconds * share_ / (1 - share_);
    }

    void add_prefill(double seconds);
    void add_decode(std::uint32_t rows, double seconds);
    // Nobody decodes.
    void forgive() { owed_ = most_ = largest_ = 0; }

  private:
    double share_;
    double owed_ = 0;
    double most_ = 0;     // seconds of decode steps before the next prefill step, slower or not
    double largest_ = 0;  // of owed_ since nothing was owed
    std::vector<double> undisturbed_;  // by rows; 0: none seen
};

}  // namespace percheron::engine
