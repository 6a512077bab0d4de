#include "engine/loop_guard.h"

#include <algorithm>

namespace percheron::engine {

namespace {

constexpr std::size_t kept = LoopGuard::shortest_evidence;
static_assert(kept >= LoopGuard::longest_cycle);

// Tokens in a row that equal the one c before them when a cycle of c fills the evidence: its first
// c have nothing to be compared with.
constexpr std::uint32_t needed(std::size_t cycle) {
    return static_cast<std::uint32_t>(
        std::max(LoopGuard::shortest_evidence, LoopGuard::repeats * cycle) - cycle);
}

}  // namespace

LoopGuard::LoopGuard() {
    latest_.reserve(4 * kept);
}

bool LoopGuard::observe(TokenId token) {
    // Kept in one piece; moved to the front once in a while.
    if (latest_.size() == 4 * kept) {
        latest_.erase(latest_.begin(), latest_.end() - static_cast<std::ptrdiff_t>(kept));
    }
    const bool cycle = in_a_cycle(token);
    const bool one_token = nearly_one_token(token);
    latest_.push_back(token);
    return cycle || one_token;
}

bool LoopGuard::in_a_cycle(TokenId token) {
    const std::size_t cycles = std::min(longest_cycle, latest_.size());
    const TokenId* const end = latest_.data() + latest_.size();
    bool found = false;
    for (std::size_t c = 1; c <= cycles; ++c) {
        repeated_[c] = end[-static_cast<std::ptrdiff_t>(c)] == token ? repeated_[c] + 1 : 0;
        found |= repeated_[c] >= needed(c);
    }
    return found;
}

bool LoopGuard::nearly_one_token(TokenId token) {
    if (latest_.size() + 1 < kept) return false;
    if (fills_the_latest(token, token)) candidate_ = token;
    return fills_the_latest(candidate_, token);
}

// Whether `token` is nearly all of the last shortest_evidence tokens, `next` the newest of them.
bool LoopGuard::fills_the_latest(TokenId token, TokenId next) const {
    constexpr auto many = static_cast<std::ptrdiff_t>(one_token_share * kept);  // 1,945.6
    const auto first = latest_.end() - static_cast<std::ptrdiff_t>(kept - 1);
    return std::count(first, latest_.end(), token) + (next == token ? 1 : 0) > many;
}

void LoopGuard::forget() {
    latest_.clear();
    repeated_.fill(0);
}

}  // namespace percheron::engine
