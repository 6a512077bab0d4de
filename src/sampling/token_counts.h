// How often each token occurs before a position: what penalties look at.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "percheron/types.h"

namespace percheron::sampling {

class TokenCounts {
  public:
    explicit TokenCounts(std::size_t vocabulary) : counts_(vocabulary) {}

    void add(TokenId token) {
        if (counts_[index(token)]++ == 0) {
            seen_.push_back(token);
        }
    }
    // Undoes the newest add() of all that are not undone.
    void remove(TokenId token) {
        assert(counts_[index(token)] > 0);
        if (--counts_[index(token)] == 0) {
            assert(seen_.back() == token);
            seen_.pop_back();
        }
    }
    void add(std::span<const TokenId> tokens) {
        for (const TokenId token : tokens) {
            add(token);
        }
    }

    std::uint32_t of(TokenId token) const { return counts_[index(token)]; }
    // Every token with a count above zero, in order of first appearance.
    std::span<const TokenId> seen() const { return seen_; }

  private:
    static std::size_t index(TokenId token) { return static_cast<std::size_t>(to_int(token)); }

    std::vector<std::uint32_t> counts_;
    std::vector<TokenId> seen_;
};

}  // namespace percheron::sampling
