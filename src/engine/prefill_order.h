// Whose prompt rows the next prefill step computes (S9 of docs/SCHEDULER.md).  The shortest rest
// goes first, and a prompt that takes a moment goes by itself, so that a newcomer does not wait for
// a long prompt; the first in line keeps half of the rows, so that newcomers do not hold it up for
// ever.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sequence_order.h"

namespace percheron::engine {

class PrefillOrder {
  public:
    // most_rows: of a step, a multiple of 64; slice: seconds of a step while others decode.
    PrefillOrder(std::uint32_t most_prompts, std::uint32_t most_rows, double slice)
        : most_rows_(most_rows), slice_(slice) {
        prompts_.reserve(most_prompts);
    }

    // Rows that take so long by the measured time a row, a multiple of 64 and at least that.
    std::uint32_t rows_of(double seconds) const;

    // The prompts for a step of `rows`, in the order in which they take them; valid until the next
    // call.  `running` is in the order of S10.
    std::span<Sequence* const> choose(const Sequences& running, std::uint32_t rows);

    // Only the prompts that end within `short_slice`; none while the first in line is owed much.
    std::span<Sequence* const> choose_short(const Sequences& running);
    double short_slice() const { return slice_ / 4; }  // seconds

    // `rows` prompt rows of a sequence were planned and computed.
    void add_rows(const Sequence& sequence, std::uint32_t rows);
    // They and what was computed with them, `rows` in all, took so long.
    void add_time(std::uint32_t rows, double seconds);

  private:
    void list(const Sequences& running);
    std::span<Sequence* const> short_ones() const;

    std::uint32_t most_rows_;
    double slice_;
    double seconds_per_row_ = 0;  // moving average; 0: not measured yet
    // The first in line, and the rows that others computed since it had its own.
    std::uint64_t first_arrival_ = 0;
    int first_priority_ = 0;
    std::uint32_t owed_ = 0;
    std::vector<Sequence*> prompts_;  // by priority, what is left of them, arrival
};

}  // namespace percheron::engine
