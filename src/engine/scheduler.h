// Who runs, who waits, and which rows the next step computes (docs/SCHEDULER.md).  Knows pages,
// slots and positions; never looks at a token's value (the prefix cache compares them), a logit or
// a clock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "percheron/types.h"

#include "cache/pools.h"
#include "cache/prefix_cache.h"
#include "engine/decode_share.h"
#include "engine/prefill_order.h"
#include "engine/sequence_order.h"
#include "ops/batch.h"

namespace percheron::engine {

struct SchedulerOptions {
    std::uint32_t pages = 0;  // at least the pages of the longest sequence
    std::uint32_t max_running = 1;
    std::uint32_t prefill_rows = 512;  // of a prefill step; a multiple of 64
    std::uint32_t decode_rows = 512;   // of a decode step; at least max_running
    std::uint32_t refeed_rows = 8;     // of one sequence that re-computes what it had generated
    std::uint32_t draft_rows = 0;      // of drafts in a decode step, over all sequences
    double decode_share = 0.52;        // of their rate that streams keep beside prompts; below 1
    double prefill_slice = 0.08;       // seconds of a prefill step while others decode
    std::uint32_t checkpoints = 0;     // of the prefix cache; 0: there is none
};

// The rows of one sequence in the step: positions [first, first + count).
struct PlannedRows {
    Sequence* sequence = nullptr;
    Position first = 0;
    std::uint32_t count = 0;
    std::uint32_t drafts = 0;  // so many rows at the end are drafts, behind the newest token
    bool wants_token = false;  // the newest token's row gives the next, drafts' rows those after
};

// A sequence that got a slot: before the step it must hold the state of sequence->computed
// positions, that of the checkpoint or, without one, of none.
struct Admission {
    Sequence* sequence = nullptr;
    std::optional<CheckpointId> restore;
};

// A state to be copied out of its slot after the step.
struct StateCopy {
    Sequence* sequence = nullptr;
    cache::CheckpointKind kind{};
    RequestSlot slot{};
    Position position = 0;
    CheckpointId checkpoint{};
};

struct StepPlan {
    ops::NumericClass numeric_class = ops::NumericClass::decode;
    std::vector<PlannedRows> rows;
    std::vector<Admission> admitted;
    std::vector<Sequence*> preempted;  // lost slot and pages
    std::vector<StateCopy> copies;     // filled by commit()
    bool background = false;           // the rows are the background's

    void clear() {
        rows.clear();
        admitted.clear();
        preempted.clear();
        copies.clear();
        background = false;
    }
};

class Scheduler {
  public:
    explicit Scheduler(const SchedulerOptions& options);

    // Joins the waiting list.
    void add(std::unique_ptr<Sequence> sequence);

    // Reserves what the next step needs and lists its rows; no rows: nothing to do.
    void plan(StepPlan& plan);

    // Pages for the first `positions` positions of a running sequence, if a page for everybody
    // stays free; how many positions the table covers then, at most `positions`.
    std::uint32_t reserve(Sequence& sequence, std::uint32_t positions);

    // The planned step was computed and took `seconds`.  Rows of drafts count for nothing until
    // they are accepted.  Publishes full blocks and lists in plan.copies the states to be copied
    // before the next plan.
    void commit(StepPlan& plan, double seconds);

    // The first `drafts` drafts of the sequence's rows were right.
    static void accept(Sequence& sequence, std::uint32_t drafts);

    // Takes a sequence out, with its slot and pages given back.
    std::unique_ptr<Sequence> remove(const Sequence& sequence);

    // C11: work for when nothing runs or waits.  plan() computes the sequence up to its prompt's
    // end; what remains of it are blocks and a checkpoint at its latest chunk's end.  Whoever set
    // it takes it back (null) when it is done or a request comes; it loses slot and pages then.
    void set_background(Sequence* sequence);
    bool idle() const { return running_.empty() && waiting_.empty(); }
    // How far into a sequence's prompt a hit would reach, its last token not kept out.
    Position reusable_positions(const Sequence& sequence);
    // Pages for the taking, at once: free ones, idle ones of the cache, the background's.
    std::uint32_t available_pages() const;

    // Every sequence, running ones first.
    void append_all(std::vector<Sequence*>& to) const;

    // Running ones that wait for a mask; they take no part in steps.
    std::uint32_t held() const;
    std::uint32_t running() const { return static_cast<std::uint32_t>(running_.size()); }
    std::uint32_t waiting() const { return static_cast<std::uint32_t>(waiting_.size()); }
    const cache::PrefixCache& cache() const { return cache_; }
    cache::PrefixCache& cache() { return cache_; }
    // Whether it looks for hits and leaves blocks behind (C12).
    bool uses_cache(const Sequence& sequence) const;
    const cache::SlotPool& slots() const { return slots_; }

  private:
    void grow_decoding(StepPlan& plan);
    void admit(StepPlan& plan);
    void plan_decode(StepPlan& plan) const;
    bool plan_short_prefill(StepPlan& plan);
    static void plan_prefill(StepPlan& plan, std::span<Sequence* const> prompts,
                             std::uint32_t row_limit);
    void plan_background(StepPlan& plan);
    bool admit_one(Sequence& sequence, StepPlan& plan);
    bool take_place(Sequence& sequence, std::uint32_t most_blocks, std::uint32_t headroom,
                    StepPlan& plan);
    bool waits_for_a_sibling(const Sequence& sequence) const;
    void leave_in_cache(Sequence& sequence, StepPlan& plan);
    void save(Sequence& sequence, cache::CheckpointKind kind, StepPlan& plan);
    void preempt(Sequence& victim, StepPlan& plan);
    void release(Sequence& sequence);
    std::uint32_t prefill_row_limit(bool others_decode) const;

    SchedulerOptions options_;
    cache::PrefixCache cache_;
    cache::SlotPool slots_;
    Sequences waiting_;  // by priority, then arrival
    Sequences running_;  // the same order
    Sequence* background_ = nullptr;
    PrefillOrder prefill_order_;
    DecodeShare decode_share_;
};

}  // namespace percheron::engine
