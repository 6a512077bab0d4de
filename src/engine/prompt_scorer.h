// Log-probs of the prompts' own tokens, where requests ask for them.
//
// The row of position p predicts the token at p + 1, so a step that computes positions [a, b) of a
// prompt scores the tokens (a, b], as far as they belong to the prompt.  The head is run once more
// over those rows, some at a time: a step keeps its size whatever is asked for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "percheron/engine.h"
#include "percheron/types.h"

#include "core/status.h"
#include "engine/event_batches.h"
#include "engine/scheduler.h"
#include "engine/step_runner.h"
#include "sampling/sampler.h"

namespace percheron::engine {

class PromptScorer {
  public:
    // All of them must outlive the scorer.
    PromptScorer(StepRunner& runner, sampling::Sampler& sampler,
                 std::span<const TokenId> banned_tokens)
        : runner_(runner), sampler_(sampler), banned_tokens_(banned_tokens) {}

    // Scores what the step just run computed.  Returns its logits, which are elsewhere now if
    // anything was scored; valid until the next step.
    Result<sampling::LogitRows> score(const StepPlan& plan, const sampling::LogitRows& logits,
                                      EventBatches& events);

  private:
    Status score(const PlannedRows& planned, std::uint32_t first_row, EngineEvents& events);

    StepRunner& runner_;
    sampling::Sampler& sampler_;
    std::span<const TokenId> banned_tokens_;
    std::vector<float> kept_;  // the step's logits while others take their place
    std::vector<std::uint32_t> rows_;
};

}  // namespace percheron::engine
