#include "engine/prefill_order.h"

#include <algorithm>

#include "ops/batch.h"

namespace percheron::engine {

namespace {

std::uint32_t missing(const Sequence& sequence) {
    return sequence.prompt_tokens - sequence.computed;
}

bool shorter(const Sequence* a, const Sequence* b) {
    if (a->priority != b->priority) return a->priority > b->priority;
    return missing(*a) != missing(*b) ? missing(*a) < missing(*b) : a->arrival < b->arrival;
}

}  // namespace

std::uint32_t PrefillOrder::rows_of(double seconds) const {
    constexpr std::uint32_t grid = ops::page_tokens;
    if (seconds_per_row_ == 0) return grid;
    const double rows = std::clamp<double>(seconds / seconds_per_row_, grid, most_rows_);
    return static_cast<std::uint32_t>(rows) / grid * grid;
}

void PrefillOrder::list(const Sequences& running) {
    prompts_.clear();
    for (const auto& sequence : running) {
        if (sequence->prefilling()) prompts_.push_back(sequence.get());
    }
    if (prompts_.empty()) return;
    const Sequence& first = *prompts_.front();
    if (first.arrival != first_arrival_) owed_ = 0;
    first_arrival_ = first.arrival;
    first_priority_ = first.priority;
    std::sort(prompts_.begin(), prompts_.end(), shorter);
}

std::span<Sequence* const> PrefillOrder::short_ones() const {
    const std::uint32_t most = rows_of(short_slice());
    const auto end = std::find_if(prompts_.begin(), prompts_.end(), [&](const Sequence* prompt) {
        return missing(*prompt) > most || prompt->priority != first_priority_;
    });
    return {prompts_.begin(), end};
}

std::span<Sequence* const> PrefillOrder::choose(const Sequences& running, std::uint32_t rows) {
    list(running);
    if (prompts_.empty()) return {};
    const std::span<Sequence* const> some = short_ones();
    if (!some.empty() && owed_ < 3 * rows) return some;
    if (owed_ >= rows) {
        const auto place =
            std::find_if(prompts_.begin(), prompts_.end(),
                         [&](const Sequence* prompt) { return prompt->arrival == first_arrival_; });
        std::rotate(prompts_.begin(), place, place + 1);
    }
    return prompts_;
}

std::span<Sequence* const> PrefillOrder::choose_short(const Sequences& running) {
    list(running);
    if (prompts_.empty() || owed_ >= 3 * rows_of(slice_)) return {};
    return short_ones();
}

void PrefillOrder::add_rows(const Sequence& sequence, std::uint32_t rows) {
    if (sequence.arrival == first_arrival_) {
        owed_ -= std::min(owed_, rows);
    } else if (sequence.priority == first_priority_) {
        owed_ += rows;
    }
}

void PrefillOrder::add_time(std::uint32_t rows, double seconds) {
    const double per_row = seconds / rows;
    seconds_per_row_ = seconds_per_row_ == 0 ? per_row : 0.7 * seconds_per_row_ + 0.3 * per_row;
}

}  // namespace percheron::engine
