// Routed experts that are not all in memory: a stage says which it wants and gets them one group
// after the other, those that are there at once and the rest as they come from the disk.
#pragma once

#include <cstdint>
#include <span>

#include "core/status.h"

namespace percheron::ops {

struct FeedForwardWeights;

class ExpertStore {
  public:
    struct Present {
        std::uint32_t expert = 0;
        const FeedForwardWeights* weights = nullptr;
    };

    virtual ~ExpertStore() = default;

    // Begins to get experts of a layer, ascending and without repetition.  What an earlier call
    // wanted must have been given out before.
    virtual void want(std::uint32_t layer, std::span<const std::uint32_t> experts) = 0;

    // Some of the wanted ones, in any order; waits until there is one.  They stay in place until
    // the next call of this or of want().  Empty: all have been given, or reading failed.
    virtual std::span<const Present> next() = 0;

    // The first fault of reading; it stays.
    virtual Status status() const = 0;
};

// Where a layer's experts come from; without a store they lie where their matrices point.
struct StreamedExperts {
    ExpertStore* store = nullptr;
    std::uint32_t layer = 0;  // the store's number of it
};

}  // namespace percheron::ops
