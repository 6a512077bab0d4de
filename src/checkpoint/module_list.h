// Lists of modules as quantisation tools write them, and as people do on a command line.
//
// An entry is
//   "re:EXPRESSION"   matched from the start of the module's name
//   "a.*.b"           a shell pattern for the whole name
//   "Linear"          every linear layer
//   any other         the module of that name and everything below it
// Names and expressions may use any of the prefixes of names.h.
//
// Entries come from files, so that what matching them may cost is bounded: by steps, not by time,
// so that the same file has the same account everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/status.h"

namespace percheron::checkpoint {

// What lists that are matched together may still cost.  An entry that takes too long on one name is
// given up: from then on it names nothing.  Once nothing is left, no entry names anything.
class MatchBudget {
  public:
    // Seconds; some 40 expressions over all weights of the published model are well below.
    static constexpr std::uint64_t default_steps = 30'000'000;
    static constexpr std::uint64_t steps_of_a_match = 100'000;

    explicit MatchBudget(std::uint64_t steps = default_steps) : left_(steps) {}

    bool spend(std::uint64_t steps) {
        left_ = steps < left_ ? left_ - steps : 0;
        return left_ > 0;
    }
    std::uint64_t left() const { return left_; }
    bool exhausted() const { return left_ == 0; }
    void give_up(const std::string& entry) { given_up_.insert(entry); }
    const std::unordered_set<std::string>& given_up() const { return given_up_; }

    // One sentence about each entry that was given up, cut where it is long, of at most ten; and
    // one if nothing was left.
    std::vector<std::string> complaints() const;

  private:
    std::uint64_t left_;
    std::unordered_set<std::string> given_up_;
};

class ModuleList {
  public:
    // Errors: corrupt (an expression that does not compile, named).
    Status add(std::string_view entry);

    // `stem` is canonical.
    bool contains(std::string_view stem, MatchBudget& budget) const;
    // Whether "Linear" is listed.
    bool every_linear() const { return every_linear_; }
    bool empty() const;

  private:
    struct Expression;

    std::unordered_set<std::string> names_;  // canonical
    std::vector<std::string> patterns_;
    std::vector<std::shared_ptr<const Expression>> expressions_;
    bool every_linear_ = false;
};

// At most 80 bytes of an entry, for messages.
std::string shortened(std::string_view entry);

}  // namespace percheron::checkpoint
