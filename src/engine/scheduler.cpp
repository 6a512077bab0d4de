#include "engine/scheduler.h"

#include <algorithm>
#include <cassert>

#include "cache/cache_shape.h"
#include "engine/sequence_order.h"

namespace percheron::engine {

namespace {

constexpr std::uint32_t grid = ops::page_tokens;

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options), pages_(options.pages), slots_(options.max_running) {
    assert(options.prefill_rows >= grid && options.prefill_rows % grid == 0);
    assert(options.decode_rows >= options.max_running && options.refeed_rows >= 1);
    assert(options.decode_share >= 0 && options.decode_share < 1);
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
    assert(cache::pages_for(sequence->prompt_tokens + sequence->token_limit) <= pages_.total());
    insert_in_order(waiting_, std::move(sequence));
}

void Scheduler::plan(StepPlan& plan) {
    plan.clear();
    grow_decoding(plan);
    admit(plan);

    const auto is_prefilling = [](const auto& sequence) { return sequence->prefilling(); };
    const bool prefill = std::any_of(running_.begin(), running_.end(), is_prefilling);
    const bool decode = !std::all_of(running_.begin(), running_.end(), is_prefilling);
    if (!decode) {
        decode_owed_ = 0;
    }
    if (prefill && !(decode && decode_owed_ > 0)) {
        plan_prefill(plan, prefill_row_limit(decode));
    } else if (decode) {
        plan_decode(plan);
    }
}

// A running sequence always owns the pages of its next step; the pool running dry costs the last in
// order its place (S8: the first in order always gets there).
void Scheduler::grow_decoding(StepPlan& plan) {
    for (std::size_t i = 0; i < running_.size(); ++i) {
        Sequence& sequence = *running_[i];
        while (sequence.slot &&
               !pages_.grow(sequence.pages, cache::pages_for(sequence.tokens.size()))) {
            preempt(*running_.back(), plan);
        }
    }
}

void Scheduler::admit(StepPlan& plan) {
    while (!waiting_.empty() && slots_.free() > 0) {
        Sequence& first = *waiting_.front();
        const std::uint32_t needed = cache::pages_for(first.tokens.size());
        const std::uint32_t headroom = running();
        if (pages_.free() < needed + headroom) {
            break;
        }
        [[maybe_unused]] const bool grown = pages_.grow(first.pages, needed);
        assert(grown);
        first.slot = slots_.take();
        first.computed = 0;
        plan.admitted.push_back(&first);
        insert_in_order(running_, std::move(waiting_.front()));
        waiting_.erase(waiting_.begin());
    }
}

void Scheduler::plan_decode(StepPlan& plan) const {
    plan.numeric_class = ops::NumericClass::decode;
    std::uint32_t left = options_.decode_rows;
    std::uint32_t others = static_cast<std::uint32_t>(
        std::count_if(running_.begin(), running_.end(),
                      [](const auto& sequence) { return !sequence->prefilling(); }));
    for (const auto& sequence : running_) {
        if (sequence->prefilling()) {
            continue;
        }
        // Everybody keeps one row; what is over goes to those who re-feed, in order.
        --others;
        const auto missing =
            static_cast<std::uint32_t>(sequence->tokens.size()) - sequence->computed;
        const std::uint32_t count = std::min({missing, options_.refeed_rows, left - others});
        plan.rows.push_back({sequence.get(), sequence->computed, count, count == missing});
        left -= count;
    }
}

void Scheduler::plan_prefill(StepPlan& plan, std::uint32_t row_limit) const {
    plan.numeric_class = ops::NumericClass::prefill;
    std::uint32_t left = row_limit;
    for (const auto& sequence : running_) {
        if (!sequence->prefilling()) {
            continue;
        }
        const std::uint32_t missing = sequence->prompt_tokens - sequence->computed;
        const std::uint32_t count = missing <= left ? missing : left / grid * grid;  // S2
        if (count == 0) {
            continue;
        }
        const bool first_time = sequence->generated() == 0;
        plan.rows.push_back(
            {sequence.get(), sequence->computed, count, count == missing && first_time});
        left -= count;
    }
}

std::uint32_t Scheduler::prefill_row_limit(bool others_decode) const {
    if (!others_decode) {
        return options_.prefill_rows;
    }
    if (seconds_per_prefill_row_ == 0) {
        return grid;
    }
    const double rows = options_.prefill_slice / seconds_per_prefill_row_;
    const double whole = std::clamp<double>(rows, grid, options_.prefill_rows);
    return static_cast<std::uint32_t>(whole) / grid * grid;
}

void Scheduler::commit(const StepPlan& plan, double seconds) {
    std::uint32_t rows = 0;
    for (const PlannedRows& planned : plan.rows) {
        planned.sequence->computed += planned.count;
        rows += planned.count;
    }
    if (plan.numeric_class == ops::NumericClass::decode) {
        decode_owed_ = std::max(0.0, decode_owed_ - seconds);
        return;
    }
    const double share = options_.decode_share;
    decode_owed_ += seconds * share / (1 - share);
    const double per_row = seconds / rows;
    seconds_per_prefill_row_ =
        seconds_per_prefill_row_ == 0 ? per_row : 0.7 * seconds_per_prefill_row_ + 0.3 * per_row;
}

void Scheduler::preempt(Sequence& victim, StepPlan& plan) {
    const auto place = std::find_if(running_.begin(), running_.end(),
                                    [&](const auto& held) { return held.get() == &victim; });
    release(victim);
    plan.preempted.push_back(&victim);
    insert_in_order(waiting_, std::move(*place));
    running_.erase(place);
}

void Scheduler::release(Sequence& sequence) {
    pages_.release(sequence.pages);
    if (sequence.slot) {
        slots_.release(*sequence.slot);
        sequence.slot.reset();
    }
    sequence.computed = 0;
}

std::unique_ptr<Sequence> Scheduler::remove(const Sequence& sequence) {
    for (Sequences* list : {&running_, &waiting_}) {
        if (std::unique_ptr<Sequence> taken = take_from(*list, sequence)) {
            release(*taken);
            return taken;
        }
    }
    return nullptr;
}

std::vector<Sequence*> Scheduler::all() const {
    std::vector<Sequence*> result;
    for (const Sequences* list : {&running_, &waiting_}) {
        for (const auto& sequence : *list) {
            result.push_back(sequence.get());
        }
    }
    return result;
}

}  // namespace percheron::engine
