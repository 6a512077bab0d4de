// Who runs, who waits, and which rows the next step computes (docs/SCHEDULER.md).  Knows pages,
// slots and positions; never looks at a token's value, a logit or a clock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "percheron/types.h"

#include "cache/pools.h"
#include "engine/sequence_order.h"
#include "ops/batch.h"

namespace percheron::engine {

struct SchedulerOptions {
    std::uint32_t pages = 0;  // at least the pages of the longest sequence
    std::uint32_t max_running = 1;
    std::uint32_t prefill_rows = 512;  // of a prefill step; a multiple of 64
    std::uint32_t decode_rows = 512;   // of a decode step; at least max_running
    std::uint32_t refeed_rows = 8;     // of one sequence that re-computes what it had generated
    double decode_share = 0.5;         // of the time while both classes have work; below 1
    double prefill_slice = 0.1;        // seconds of a prefill step while others decode
};

// The rows of one sequence in the step: positions [first, first + count).
struct PlannedRows {
    Sequence* sequence = nullptr;
    Position first = 0;
    std::uint32_t count = 0;
    bool wants_token = false;  // the last row is the newest token: its logits give the next
};

struct StepPlan {
    ops::NumericClass numeric_class = ops::NumericClass::decode;
    std::vector<PlannedRows> rows;
    std::vector<Sequence*> admitted;   // got a slot that must be cleared before the step
    std::vector<Sequence*> preempted;  // lost slot and pages

    void clear() {
        rows.clear();
        admitted.clear();
        preempted.clear();
    }
};

class Scheduler {
  public:
    explicit Scheduler(const SchedulerOptions& options);

    // Joins the waiting list.
    void add(std::unique_ptr<Sequence> sequence);

    // Reserves what the next step needs and lists its rows; no rows: nothing to do.
    void plan(StepPlan& plan);

    // The planned step was computed and took `seconds`.
    void commit(const StepPlan& plan, double seconds);

    // Takes a sequence out, with its slot and pages given back.
    std::unique_ptr<Sequence> remove(const Sequence& sequence);

    // Every sequence, running ones first.
    std::vector<Sequence*> all() const;

    std::uint32_t running() const { return static_cast<std::uint32_t>(running_.size()); }
    std::uint32_t waiting() const { return static_cast<std::uint32_t>(waiting_.size()); }
    const cache::PagePool& pages() const { return pages_; }
    const cache::SlotPool& slots() const { return slots_; }

  private:
    void grow_decoding(StepPlan& plan);
    void admit(StepPlan& plan);
    void plan_decode(StepPlan& plan) const;
    void plan_prefill(StepPlan& plan, std::uint32_t row_limit) const;
    void preempt(Sequence& victim, StepPlan& plan);
    void release(Sequence& sequence);
    std::uint32_t prefill_row_limit(bool others_decode) const;

    SchedulerOptions options_;
    cache::PagePool pages_;
    cache::SlotPool slots_;
    Sequences waiting_;                   // by priority, then arrival
    Sequences running_;                   // the same order
    double decode_owed_ = 0;              // seconds of decoding before the next prefill step
    double seconds_per_prefill_row_ = 0;  // moving average; 0: not measured yet
};

}  // namespace percheron::engine
