// Tells when a reply has fallen into a loop: a cycle of c <= 1,024 tokens has filled the last
// max(2,048, 12 c) of its tokens exactly, or one token is 95 % of the last 2,048.
//
// Allocates when it is made and never again: a step of the engine feeds it.  Fed token by token, so
// that its answer does not depend on how many tokens a step brings.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "percheron/types.h"

namespace percheron::engine {

class LoopGuard {
  public:
    static constexpr std::size_t longest_cycle = 1024;
    static constexpr std::size_t shortest_evidence = 2048;  // tokens
    static constexpr std::size_t repeats = 12;
    static constexpr double one_token_share = 0.95;

    LoopGuard();

    // The reply's next token; true: with it the reply is in a loop.
    bool observe(TokenId token);

    // What was seen so far no longer counts.
    void forget();

  private:
    bool in_a_cycle(TokenId token);
    bool nearly_one_token(TokenId token);
    bool fills_the_latest(TokenId token, TokenId next) const;

    // The latest tokens, at least longest_cycle and shortest_evidence of them, oldest first.
    std::vector<TokenId> latest_;
    // [c]: how many of the latest tokens in a row equal the token c before them.
    std::array<std::uint32_t, longest_cycle + 1> repeated_{};
    TokenId candidate_{-1};  // the latest token that was nearly all of shortest_evidence tokens
};

}  // namespace percheron::engine
