// From rules to masks over a model's tokens: xgrammar's core behind OutputGrammar.
//
// The vocabulary is the tokenizer's bytes.  Added tokens (control tokens, tags) are no text: they
// come only where a rule names their id with Token(id).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "percheron/token_constraint.h"
#include "percheron/types.h"

#include "core/status.h"
#include "text/tokenizer.h"

namespace percheron::grammar {

struct GrammarCompilerOptions {
    std::uint32_t vocabulary = 0;  // logits of the model; at least the tokenizer's size
    std::vector<TokenId> stop_tokens;
    std::size_t cache_bytes = 256u << 20;  // of compiled grammars kept for the next request
    double token_seconds = 0.1;            // of processor time a choice may take for one token
};

class GrammarCompiler {
  public:
    GrammarCompiler(const Tokenizer& tokenizer, GrammarCompilerOptions options);
    ~GrammarCompiler();

    // Rules in xgrammar's EBNF with the start rule `root`.  One compilation at a time: others wait.
    // Any thread, but not one that must not wait.  Errors: invalid_argument (the rules are wrong).
    Result<std::shared_ptr<const OutputGrammar>> compile(const std::string& rules);

    struct CacheStatus {
        std::size_t entries = 0;
        std::size_t bytes = 0;
        std::uint64_t hits = 0;
        std::uint64_t misses = 0;
    };
    CacheStatus cache_status() const;

  private:
    class State;
    std::unique_ptr<State> state_;
};

}  // namespace percheron::grammar
