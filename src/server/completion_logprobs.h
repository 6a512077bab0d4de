// The log-probs of a completion: four lists of one length.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "percheron/engine.h"

#include "text/tokenizer.h"

namespace percheron::server {

class CompletionLogprobs {
  public:
    explicit CompletionLogprobs(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

    // The next token; without `scores` (a prompt's first token has none) its log-prob is null.
    // Its offset is where its text begins, counted in characters from `offset` on; returns where
    // it ends.
    std::uint64_t add(TokenId id, const EngineEvents::Logprobs* scores, std::uint64_t offset);

    // {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    void append_to(std::string& json) const;

  private:
    std::string name_of(TokenId id) const;
    void add_top(TokenId id, const EngineEvents::Logprobs& scores);

    const Tokenizer& tokenizer_;
    std::string tokens_, logprobs_, top_, offsets_;  // the lists without their brackets
};

}  // namespace percheron::server
