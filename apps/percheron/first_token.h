// How long a prompt takes to its first token, for benchmarks that send one at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "percheron/engine.h"

#include "text/tokenizer.h"

namespace percheron::apps {

struct FirstToken {
    double seconds = 0;
    TokenId token{};
    std::uint32_t cached = 0;
};

// Sends the prompt, greedy, and waits for its reply of one token.
Result<FirstToken> first_token_of(Engine& engine, const std::vector<TokenId>& prompt);

// Random ids of text, always the same.
std::vector<TokenId> ordinary_prompt(const Tokenizer& tokenizer, std::uint32_t tokens);

}  // namespace percheron::apps
