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
    ++counts_[token];
    if (latest_.size() >= kept) {
        const auto leaving = counts_.find(latest_[latest_.size() - kept]);
        if (--leaving->second == 0) counts_.erase(leaving);
    }
    if (latest_.size() + 1 < kept) return false;
    constexpr auto many = static_cast<std::uint32_t>(one_token_share * kept);  // 1,945.6
    if (counts_.at(token) > many) candidate_ = token;
    const auto candidate = counts_.find(candidate_);
    return candidate != counts_.end() && candidate->second > many;
}

void LoopGuard::forget() {
    latest_.clear();
    repeated_.fill(0);
    counts_.clear();
}

}  // namespace percheron::engine
