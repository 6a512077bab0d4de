// A grammar of hashes: which ids may come next is a hash of all that came, so a state that is off
// by one token, belongs to another choice or was begun at the wrong place allows other ids at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "percheron/token_constraint.h"

namespace percheron::engine::testing {

inline std::uint64_t fake_grammar_hash(std::uint64_t seed, std::span<const TokenId> text) {
    std::uint64_t hash = seed;
    for (const TokenId token : text) {
        hash = (hash ^ static_cast<std::uint64_t>(to_int(token) + 1)) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

// The rule itself: `text` is the reply so far, its thinking left out.  A text has `length` tokens,
// or fewer where the hash lets it end.
struct FakeGrammarRule {
    std::uint64_t seed = 1;
    std::size_t length = 20;
    std::uint32_t vocabulary = 0;
    std::vector<TokenId> stops;

    bool allows(std::span<const TokenId> text, TokenId next) const {
        const std::uint64_t hash = fake_grammar_hash(seed, text);
        for (const TokenId stop : stops) {
            if (stop == next) return text.size() >= length || hash >> 60 == 0;
        }
        // 40 and 41 are the tags of the thinking.
        if (to_int(next) == 40 || to_int(next) == 41) return false;
        return text.size() < length &&
               (hash >> (static_cast<std::uint32_t>(to_int(next)) % 40) & 3u) != 0;
    }
};

class FakeConstraint final : public TokenConstraint {
  public:
    explicit FakeConstraint(FakeGrammarRule rule) : rule_(std::move(rule)) {}

    Status fill(std::span<std::uint32_t> allowed) override {
        for (std::uint32_t& word : allowed)
            word = 0;
        for (std::uint32_t v = 0; v < rule_.vocabulary; ++v) {
            if (rule_.allows(text_, TokenId(static_cast<int>(v)))) allowed[v / 32] |= 1u << v % 32;
        }
        return {};
    }
    bool accept(TokenId token) override {
        if (!rule_.allows(text_, token)) return false;
        text_.push_back(token);
        return true;
    }
    void roll_back(std::size_t count) override { text_.resize(text_.size() - count); }

  private:
    FakeGrammarRule rule_;
    std::vector<TokenId> text_;
};

class FakeGrammar final : public OutputGrammar {
  public:
    explicit FakeGrammar(FakeGrammarRule rule) : rule_(std::move(rule)) {}
    std::unique_ptr<TokenConstraint> start() const override {
        return std::make_unique<FakeConstraint>(rule_);
    }
    const FakeGrammarRule& rule() const { return rule_; }

  private:
    FakeGrammarRule rule_;
};

}  // namespace percheron::engine::testing
