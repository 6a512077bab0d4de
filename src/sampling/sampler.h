// From a row of logits to the one token that belongs at a position.
//
// The order of the steps is fixed and part of the contract; l starts as the raw logits:
//   1. repetition penalty r over every token before p:   l = l > 0 ? l / r : l * r
//   2. presence and frequency penalties, same tokens:    l -= presence + frequency * count
//   3. bias:                                             l += bias[v]
//   4. masks: banned ids, masked stop ids and what the grammar forbids leave the candidates
//   5. temperature:                                      l /= temperature (not when it is 0)
//   6. top-k: the k largest l stay
//   7. top-p: in descending order, the fewest whose probability (softmax over what step 6 left)
//      reaches top_p stay; the token that reaches it included
//   8. min-p: those with probability >= min_p * the largest stay
//   9. token = argmax over the rest of l + g(seed, choice, p, v); temperature 0 drops g
// Ties of any comparison go to the lower id.  Steps 5 to 8 have no say at temperature 0.
// All arithmetic is double, in an order fixed by the logits alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "percheron/engine.h"
#include "percheron/types.h"

#include "core/status.h"
#include "sampling/coupled_noise.h"
#include "sampling/token_counts.h"

namespace percheron::sampling {

// Everything that decides the token at one position.
struct SamplingRow {
    std::span<const float> logits;  // [vocabulary], as the network gave them
    const SamplingParameters* parameters = nullptr;
    const TokenCounts* counts = nullptr;     // of all tokens before p; null: none are penalised
    std::span<const TokenId> banned;         // never chosen, whatever bias says
    std::span<const TokenId> masked;         // not chosen at this position (stop ids)
    std::span<const std::uint32_t> allowed;  // a grammar's bits, v at [v / 32] >> v % 32; empty:
                                             // everything
    NoiseStream noise;
    Position position = 0;
};

// True where a request's parameters look at the tokens before p.
bool uses_counts(const SamplingParameters& parameters);

class Sampler {
  public:
    // A token that may be chosen and its l after step 5.
    struct Candidate {
        double logit = 0;
        TokenId id{};
    };

    explicit Sampler(std::size_t vocabulary);

    // The token at row.position.  Errors (internal): numerical_fault when a logit is not finite or
    // all are equal, no_token_left when the masks leave nothing.
    Result<TokenId> choose(const SamplingRow& row);

    // Steps 1 to 8: the candidates A_p with their l, valid until the next call.  Same errors.
    Result<std::span<const Candidate>> candidates(const SamplingRow& row);

    // Of the model's own distribution, softmax(logits) over the whole vocabulary: the chosen
    // token's log-probability and the `top` largest, ties to the lower id, banned ids left out.
    void log_probabilities(std::span<const float> logits, TokenId chosen, std::size_t top,
                           std::span<const TokenId> banned, EngineEvents::Logprobs& out);

  private:
    Result<TokenId> choose_greedily(const SamplingRow& row);
    void penalise(const SamplingRow& row);
    void exclude(const SamplingRow& row, std::uint8_t mark);  // banned and masked ids
    bool is_allowed(const SamplingRow& row, std::size_t v) const;
    void keep_top_k(std::size_t count);
    void keep_top_p(double share);
    void keep_min_p(double share);

    std::vector<double> logits_;
    std::vector<Candidate> candidates_;
    std::vector<Candidate> sorted_;
    std::vector<std::uint8_t> excluded_;
};

// argmax over the candidates of logit + g; the noise of a proposer's own candidates is the same.
TokenId coupled_argmax(std::span<const Sampler::Candidate> candidates, NoiseStream noise,
                       Position position);

}  // namespace percheron::sampling
