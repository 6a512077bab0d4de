#include "engine/scheduler.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <utility>

#include "cache/cache_shape.h"
#include "engine/sequence_order.h"

namespace percheron::engine {

namespace {

constexpr std::uint32_t grid = ops::page_tokens;
constexpr std::uint32_t positions_between_checkpoints = 512;

// Has rows of the decode class for the next step.
bool decodes(const Sequence& sequence) {
    return !sequence.prefilling() && !sequence.held();
}

// C7, as far as it is known beforehand: the ends of turns, and the anchors.  `matched`: positions
// of the prompt that were found in the tree, hit or not.
std::vector<CheckpointEdge> checkpoint_edges(const Sequence& sequence, Position matched) {
    using enum cache::CheckpointKind;
    std::vector<CheckpointEdge> edges;
    const auto add = [&](Position position, cache::CheckpointKind kind) {
        if (position <= sequence.computed) return;
        const auto place =
            std::lower_bound(edges.begin(), edges.end(), position,
                             [](const auto& edge, Position at) { return edge.position < at; });
        if (place != edges.end() && place->position == position) {
            place->kind = std::max(place->kind, kind);
        } else {
            edges.insert(place, {position, kind});
        }
    };
    const Position last = sequence.shareable_blocks() * grid;
    add(last, turn_end);
    if (sequence.prompt_tokens % grid == 0) {
        add(sequence.prompt_tokens, turn_end);
    }
    add(std::min(sequence.system_tokens / grid * grid, last), anchor);
    add(std::min(matched, last), anchor);
    return edges;
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      cache_(options.pages, options.checkpoints),
      slots_(options.max_running),
      prefill_order_(options.max_running, options.prefill_rows, options.prefill_slice),
      decode_share_(options.decode_share, options.decode_rows) {
    assert(options.prefill_rows >= grid && options.prefill_rows % grid == 0);
    assert(options.decode_rows >= options.max_running && options.refeed_rows >= 1);
    assert(options.decode_share >= 0 && options.decode_share < 1);
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
    assert(cache::pages_for(sequence->prompt_tokens + sequence->token_limit) <=
           cache_.pages().total());
    insert_in_order(waiting_, std::move(sequence));
}

void Scheduler::plan(StepPlan& plan) {
    plan.clear();
    if (background_ != nullptr) {
        plan_background(plan);
        return;
    }
    grow_decoding(plan);
    admit(plan);

    const bool prefill = std::any_of(running_.begin(), running_.end(),
                                     [](const auto& sequence) { return sequence->prefilling(); });
    const bool decode = std::any_of(running_.begin(), running_.end(),
                                    [](const auto& sequence) { return decodes(*sequence); });
    if (!decode) {
        decode_share_.forgive();
    }
    if (prefill && !(decode && decode_share_.owed() > 0)) {
        // Whoever waits for a mask may have it in a moment.
        const std::uint32_t rows = prefill_row_limit(decode || held() > 0);
        plan_prefill(plan, prefill_order_.choose(running_, rows), rows);
    } else if (!(prefill && plan_short_prefill(plan)) && decode) {
        plan_decode(plan);
    }
}

// S9: a prompt that takes a moment does not wait for the decode steps that a long one owes, as long
// as little more is owed than one slice of prefill owes.
bool Scheduler::plan_short_prefill(StepPlan& plan) {
    if (decode_share_.owed() > decode_share_.owed_for(1.25 * options_.prefill_slice)) {
        return false;
    }
    const std::uint32_t rows = prefill_order_.rows_of(prefill_order_.short_slice());
    plan_prefill(plan, prefill_order_.choose_short(running_), rows);
    return !plan.rows.empty();
}

// A running sequence always owns the pages of its next step; the pool running dry costs the last in
// order its place (S8: the first in order always gets there).
void Scheduler::grow_decoding(StepPlan& plan) {
    for (std::size_t i = 0; i < running_.size(); ++i) {
        Sequence& sequence = *running_[i];
        while (sequence.slot &&
               !cache_.grow(sequence.pages, cache::pages_for(sequence.tokens.size()))) {
            preempt(*running_.back(), plan);
        }
    }
}

void Scheduler::admit(StepPlan& plan) {
    std::size_t next = 0;
    while (next < waiting_.size() && slots_.free() > 0) {
        if (waits_for_a_sibling(*waiting_[next])) {
            ++next;
            continue;
        }
        if (!admit_one(*waiting_[next], plan)) {
            break;
        }
        insert_in_order(running_, std::move(waiting_[next]));
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(next));
    }
}

// False: too few pages are left.
bool Scheduler::admit_one(Sequence& sequence, StepPlan& plan) {
    if (!take_place(sequence, uses_cache(sequence) ? sequence.shareable_blocks() : 0, running(),
                    plan)) {
        return false;
    }
    if (!sequence.first_hit) {
        sequence.first_hit = sequence.computed;
    }
    return true;
}

// Gives a sequence its hit, the rest of its pages and a slot, with `headroom` pages left over.
bool Scheduler::take_place(Sequence& sequence, std::uint32_t most_blocks, std::uint32_t headroom,
                           StepPlan& plan) {
    const cache::PrefixHit hit = cache_.find(sequence.prefix_text(), most_blocks);
    sequence.place = cache_.attach(hit, sequence.pages);
    const std::uint32_t needed = cache::pages_for(sequence.tokens.size());
    if (cache_.available() < needed - hit.blocks() + headroom ||
        !cache_.grow(sequence.pages, needed)) {
        release(sequence);
        return false;
    }
    sequence.slot = slots_.take();
    sequence.computed = hit.blocks() * grid;
    sequence.latest_checkpoint = sequence.computed;
    if (uses_cache(sequence)) {
        sequence.edges = checkpoint_edges(sequence, hit.matched * grid);
    }
    std::optional<CheckpointId> restore;
    if (hit.block != nullptr) {
        restore = hit.block->checkpoint->id;
    }
    plan.admitted.push_back({&sequence, restore});
    return true;
}

// C9: whether another choice of the same request is computing the prompt.
bool Scheduler::waits_for_a_sibling(const Sequence& sequence) const {
    return uses_cache(sequence) && sequence.shareable_blocks() > 0 &&
           std::any_of(running_.begin(), running_.end(), [&](const auto& other) {
               return other->request == sequence.request && other->prefilling();
           });
}

bool Scheduler::uses_cache(const Sequence& sequence) const {
    return cache_.on() && sequence.use_cache;
}

void Scheduler::plan_background(StepPlan& plan) {
    assert(idle());
    Sequence& sequence = *background_;
    plan.background = true;
    plan.numeric_class = ops::NumericClass::prefill;
    const std::uint32_t whole = sequence.prompt_tokens / grid;
    if (!sequence.slot && !take_place(sequence, whole, 0, plan)) {
        return;
    }
    // Short steps: whoever comes waits for the one under way.
    const std::uint32_t count =
        std::min(sequence.prompt_tokens - sequence.computed, prefill_row_limit(true));
    if (count > 0) {
        plan.rows.push_back({&sequence, sequence.computed, count, 0, false});
    }
}

void Scheduler::set_background(Sequence* sequence) {
    if (background_ != nullptr) {
        release(*background_);
    }
    background_ = sequence;
}

Position Scheduler::reusable_positions(const Sequence& sequence) {
    if (!uses_cache(sequence)) {
        return sequence.prompt_tokens;  // nothing that a pass could add
    }
    return cache_.find(sequence.prefix_text(), sequence.prompt_tokens / grid).blocks() * grid;
}

std::uint32_t Scheduler::available_pages() const {
    std::uint32_t pages = cache_.available();
    if (background_ != nullptr) {
        pages += static_cast<std::uint32_t>(background_->pages.size());
    }
    return pages;
}

void Scheduler::plan_decode(StepPlan& plan) const {
    plan.numeric_class = ops::NumericClass::decode;
    std::uint32_t left = options_.decode_rows;
    std::uint32_t draft_rows = options_.draft_rows;
    std::uint32_t others = static_cast<std::uint32_t>(std::count_if(
        running_.begin(), running_.end(), [](const auto& sequence) { return decodes(*sequence); }));
    for (const auto& sequence : running_) {
        if (!decodes(*sequence)) {
            continue;
        }
        // Everybody keeps one row; what is over goes to those who re-feed, in order.
        --others;
        const auto missing =
            static_cast<std::uint32_t>(sequence->tokens.size()) - sequence->computed;
        const std::uint32_t count = std::min({missing, options_.refeed_rows, left - others});
        left -= count;
        std::uint32_t drafts = 0;
        if (count == missing) {
            const auto proposed = static_cast<std::uint32_t>(sequence->drafting.drafts.size());
            drafts = std::min({proposed, draft_rows, left - others});
            left -= drafts;
            draft_rows -= drafts;
        }
        plan.rows.push_back(
            {sequence.get(), sequence->computed, count + drafts, drafts, count == missing});
    }
}

void Scheduler::plan_prefill(StepPlan& plan, std::span<Sequence* const> prompts,
                             std::uint32_t row_limit) {
    plan.numeric_class = ops::NumericClass::prefill;
    std::uint32_t left = row_limit;
    for (Sequence* const sequence : prompts) {
        const std::uint32_t missing = sequence->prompt_tokens - sequence->computed;
        std::uint32_t count = missing <= left ? missing : left / grid * grid;  // S2
        if (!sequence->edges.empty()) {
            count = std::min(count, sequence->edges.front().position - sequence->computed);
        }
        if (count == 0) {
            continue;
        }
        const bool first_time = sequence->generated() == 0;
        plan.rows.push_back(
            {sequence, sequence->computed, count, 0, count == missing && first_time});
        left -= count;
    }
}

std::uint32_t Scheduler::prefill_row_limit(bool others_decode) const {
    return others_decode ? prefill_order_.rows_of(options_.prefill_slice) : options_.prefill_rows;
}

std::uint32_t Scheduler::reserve(Sequence& sequence, std::uint32_t positions) {
    const std::uint32_t needed = cache::pages_for(positions);
    const auto held = static_cast<std::uint32_t>(sequence.pages.size());
    if (needed > held && cache_.available() >= needed - held + running()) {
        [[maybe_unused]] const bool grown = cache_.grow(sequence.pages, needed);
        assert(grown);
    }
    const auto covered = static_cast<std::uint32_t>(sequence.pages.size()) * grid;
    return std::min(positions, covered);
}

void Scheduler::accept(Sequence& sequence, std::uint32_t drafts) {
    sequence.computed += drafts;
    sequence.pending = drafts;
}

void Scheduler::commit(StepPlan& plan, double seconds) {
    std::uint32_t rows = 0;
    for (const PlannedRows& planned : plan.rows) {
        planned.sequence->computed += planned.count - planned.drafts;
        planned.sequence->pending = 0;
        rows += planned.count;
        if (plan.numeric_class != ops::NumericClass::prefill) {
            continue;
        }
        if (!plan.background) {
            prefill_order_.add_rows(*planned.sequence, planned.count);
        }
        if (uses_cache(*planned.sequence)) {
            leave_in_cache(*planned.sequence, plan);
        }
    }
    if (plan.numeric_class == ops::NumericClass::decode) {
        if (rows > 0) decode_share_.add_decode(rows, seconds);
        return;
    }
    decode_share_.add_prefill(seconds);
    prefill_order_.add_time(rows, seconds);
}

// What a chunk leaves behind: its full blocks, and at its end perhaps a checkpoint.
void Scheduler::leave_in_cache(Sequence& sequence, StepPlan& plan) {
    const Position computed = sequence.computed;
    sequence.place =
        cache_.publish(sequence.place, sequence.prefix_text(), sequence.pages, computed / grid);
    if (&sequence == background_) {
        // One checkpoint that moves along, so that nothing is lost when a request comes.
        cache_.drop_checkpoint(std::exchange(sequence.passing_checkpoint, sequence.place));
        save(sequence, cache::CheckpointKind::turn_end, plan);
        return;
    }
    std::optional<cache::CheckpointKind> kind;
    if (!sequence.edges.empty() && sequence.edges.front().position == computed) {
        kind = sequence.edges.front().kind;
        sequence.edges.erase(sequence.edges.begin());
    } else if (computed % grid == 0 &&
               computed - sequence.latest_checkpoint >= positions_between_checkpoints) {
        kind = cache::CheckpointKind::between;
    }
    if (kind) {
        save(sequence, *kind, plan);
    }
}

void Scheduler::save(Sequence& sequence, cache::CheckpointKind kind, StepPlan& plan) {
    sequence.latest_checkpoint = sequence.computed;
    if (const auto checkpoint = cache_.add_checkpoint(sequence.place, kind)) {
        plan.copies.push_back({&sequence, kind, *sequence.slot, sequence.computed, *checkpoint});
    }
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
    cache_.release(sequence.pages);
    sequence.place = {};
    sequence.passing_checkpoint = {};
    sequence.edges.clear();
    if (sequence.slot) {
        slots_.release(*sequence.slot);
        sequence.slot.reset();
    }
    sequence.computed = 0;
    sequence.pending = 0;
    sequence.drafting.drafts.clear();
    sequence.held_logits.clear();
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

std::uint32_t Scheduler::held() const {
    return static_cast<std::uint32_t>(std::count_if(
        running_.begin(), running_.end(), [](const auto& sequence) { return sequence->held(); }));
}

void Scheduler::append_all(std::vector<Sequence*>& to) const {
    for (const Sequences* list : {&running_, &waiting_}) {
        for (const auto& sequence : *list) {
            to.push_back(sequence.get());
        }
    }
}

}  // namespace percheron::engine
