// Log-probabilities and top tokens at every position of given token ids: how engines and quants are
// compared without a tokenizer or a sampler between them.
//
// Every sequence is computed as a prompt, in prefill class, by itself.  For ids x_0 .. x_{T-1} and
// p(. | x_0 .. x_t) the softmax of the logits at position t, without temperature or mask:
//   logprobs[0] is absent, logprobs[t] = log p(x_t | x_0 .. x_{t-1})            t = 1 .. T-1
//   top[t]: the N most likely next tokens after x_0 .. x_t, most likely first,  t = 0 .. T-1
//           ties to the lower id
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "percheron/types.h"

#include "core/status.h"
#include "ops/batch.h"

namespace percheron::tools {

struct ScoreOptions {
    std::filesystem::path folder;  // of resolve_model()
    ops::Arithmetic arithmetic = ops::Arithmetic::standard;
    std::size_t top = 0;          // tokens a position; at most the vocabulary
    std::size_t threads = 0;      // 0: as many as the process may run on
    std::string device = "auto";  // tools/devices.h
    // Called after every step with the positions computed so far and in all.
    std::function<void(std::size_t done, std::size_t total)> progress;
};

struct SequenceScore {
    std::vector<double> logprobs;                              // of x_1 .. x_{T-1}
    std::vector<std::vector<std::pair<TokenId, double>>> top;  // of positions 0 .. T-1
};

// A JSON list of lists of token ids, each list at least one id.
// Errors: invalid_argument, naming what is wrong and where.
Result<std::vector<std::vector<TokenId>>> parse_sequences(const std::string& json);

// Errors: of the model's files (named); invalid_argument for an id outside the vocabulary or a
// sequence longer than the model's context; out_of_memory.
Result<std::vector<SequenceScore>> score(const std::vector<std::vector<TokenId>>& sequences,
                                         const ScoreOptions& options);

// The document `percheron score --json` prints: {"sequences": [{"logprobs": [null, ...], "top":
// [[[id, logprob], ...], ...]}]}.  Numbers carry every digit of the computation.
std::string to_json(const std::vector<SequenceScore>& scores);

}  // namespace percheron::tools
