#include "engine/token_mask.h"

#include <algorithm>

namespace percheron::engine {

Status TokenMask::apply(const Sequence& sequence, std::uint32_t number,
                        sampling::SamplingRow& row) {
    const bool goes_on = sequence.ignore_eos || sequence.generated() < sequence.min_tokens;
    if (sequence.masks == nullptr) {
        if (goes_on) row.masked = sequence.stop_tokens;
        return {};
    }
    if (sequence.thinking.inside()) {
        // What was asked for comes after the thinking, so the reply cannot end inside it.
        row.masked = sequence.stop_tokens;
        return {};
    }
    PERCHERON_ASSIGN(const auto mask, sequence.masks->mask(number));
    std::copy(mask.begin(), mask.end(), allowed_.begin());
    if (goes_on) drop_stop_ids(sequence);
    row.allowed = allowed_;
    return {};
}

// Unless nothing else is allowed: a text that is complete has to end.
void TokenMask::drop_stop_ids(const Sequence& sequence) {
    dropped_.clear();
    for (const TokenId stop : sequence.stop_tokens) {
        const auto v = static_cast<std::uint32_t>(to_int(stop));
        if ((allowed_[v / 32] >> v % 32 & 1u) != 0) {
            allowed_[v / 32] &= ~(1u << v % 32);
            dropped_.push_back(stop);
        }
    }
    if (std::any_of(allowed_.begin(), allowed_.end(), [](std::uint32_t word) { return word != 0; }))
        return;
    for (const TokenId stop : dropped_) {
        const auto v = static_cast<std::uint32_t>(to_int(stop));
        allowed_[v / 32] |= 1u << v % 32;
    }
}

}  // namespace percheron::engine
