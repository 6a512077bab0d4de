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
#include <optional>
#include <span>
#include <vector>

#include "percheron/engine.h"
#include "percheron/types.h"

#include "core/status.h"
#include "sampling/coupled_noise.h"
#include "sampling/logit_row.h"
#include "sampling/token_counts.h"

namespace percheron::sampling {

// Everything that decides the token at one position.
struct SamplingRow {
    LogitRow logits;  // a digest's leave out `banned`
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

    // The token at row.position; a digest decides where it leaves no doubt, else the row is
    // fetched.  Errors (internal): numerical_fault when a logit is not finite or all are equal,
    // no_token_left when the masks leave nothing; a fetch's.
    Result<TokenId> choose(const SamplingRow& row);

    // Steps 1 to 8: the candidates A_p with their l, valid until the next call.  Same errors.
    Result<std::span<const Candidate>> candidates(const SamplingRow& row);

    // Of the model's own distribution, softmax(logits) over the whole vocabulary: the chosen
    // token's log-probability and the `top` largest, ties to the lower id, banned ids left out.
    // Errors: a fetch's.
    Status log_probabilities(const LogitRow& logits, TokenId chosen, std::size_t top,
                             std::span<const TokenId> banned, EngineEvents::Logprobs& out);

  private:
    // From digests (digest_sampling.cpp); nothing: the row must be looked at.
    std::optional<Result<TokenId>> choose_from_digest(const SamplingRow& row);
    std::optional<TokenId> choose_among_top(const SamplingRow& row);
    bool keep_top_p_of_digest(const ops::LogitDigest& digest, double share, double left_out,
                              double doubt);
    static bool log_probabilities_from_digest(const ops::LogitDigest& digest, TokenId chosen,
                                              std::size_t top, EngineEvents::Logprobs& out);

    Result<TokenId> choose_from_row(const SamplingRow& row);
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

// What a row's digest has to tell so that choose() and log_probabilities() need not look at the
// row, as far as digests can: `masks` says that ids beside the banned ones may be left out.
ops::DigestRequest digest_request(const SamplingParameters& parameters, NoiseStream noise,
                                  Position position, bool masks);

// Errors (numerical_fault) of a row that no network that works gives.
Status check_logits(bool finite, float largest, float smallest, std::size_t vocabulary,
                    Position position);

// argmax over the candidates of logit + g; the noise of a proposer's own candidates is the same.
TokenId coupled_argmax(std::span<const Sampler::Candidate> candidates, NoiseStream noise,
                       Position position);

}  // namespace percheron::sampling
