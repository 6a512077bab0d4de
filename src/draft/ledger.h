// What drafting costs and saves, kept as a ledger in seconds, so that finding out what drafts are
// worth never takes more than a small share of the time, and a proposer that loses time is left
// alone whatever the estimates promise.
#pragma once

#include <algorithm>
#include <cstdint>

namespace percheron::draft {

// Drafts that are not expected to pay are tried from an allowance: a share of all time, and what
// such tries turned out to save.
class Allowance {
  public:
    static constexpr double share = 0.005;

    // A step took `seconds`.
    void grow(double seconds) {
        if (most_ == 0) seconds_ = steps_saved * seconds;  // to begin with
        most_ = steps_saved * seconds;
        seconds_ = std::min(seconds_ + share * seconds, most_);
    }
    // Takes the cost of a try, if it is covered.
    bool spend(double cost) {
        if (seconds_ < cost) return false;
        seconds_ -= cost;
        return true;
    }
    // The try held.
    void earn(double saved) { seconds_ = std::min(seconds_ + saved, most_); }
    double seconds() const { return seconds_; }

  private:
    static constexpr double steps_saved = 2;  // no burst of tries is longer
    double seconds_ = 0;
    double most_ = 0;
};

// Of one proposer: what its rounds took beside what their tokens would have taken without it.
class Account {
  public:
    // A step that this proposer alone drafted for.
    void round(double took, double without) {
        took_ = memory * took_ + took;
        without_ = memory * without_ + without;
        ++rounds_;
        if (rounds_ >= rounds_to_judge && without_ < (1 - tolerance) * took_) {
            resting_ = rest_;
            rest_ = std::min(2 * rest_, longest_rest);
            took_ = without_ = 0;
            rounds_ = 0;
        } else if (rounds_ >= 4 * rounds_to_judge) {
            rest_ = first_rest;
        }
    }
    // A step without it.
    void pass_by() { resting_ -= resting_ > 0 ? 1 : 0; }
    bool resting() const { return resting_ > 0; }

  private:
    static constexpr double memory = 0.98;
    static constexpr double tolerance = 0.03;  // what busy machines blur
    static constexpr std::uint32_t rounds_to_judge = 48;
    static constexpr std::uint32_t first_rest = 256;
    static constexpr std::uint32_t longest_rest = 8192;

    double took_ = 0;  // seconds, the latest rounds counting most
    double without_ = 0;
    std::uint32_t rounds_ = 0;
    std::uint32_t resting_ = 0;  // steps to go
    std::uint32_t rest_ = first_rest;
};

}  // namespace percheron::draft
