#include "engine/prompt_scorer.h"

#include <algorithm>

#include "engine/sequence.h"

namespace percheron::engine {

Result<sampling::LogitRows> PromptScorer::score(const StepPlan& plan,
                                                const sampling::LogitRows& logits,
                                                EventBatches& events) {
    const auto is_scored = [](const PlannedRows& planned) {
        const Sequence& sequence = *planned.sequence;
        return sequence.prompt_logprobs >= 0 && sequence.scored < sequence.prompt_tokens;
    };
    if (plan.background || std::none_of(plan.rows.begin(), plan.rows.end(), is_scored))
        return logits;
    kept_.assign(logits.values().begin(), logits.values().end());
    std::uint32_t first_row = 0;
    for (const PlannedRows& planned : plan.rows) {
        if (is_scored(planned)) {
            PERCHERON_TRY(score(planned, first_row, events.of(planned.sequence->sink)));
        }
        first_row += planned.count;
    }
    return sampling::LogitRows(kept_, logits.vocabulary());
}

Status PromptScorer::score(const PlannedRows& planned, std::uint32_t first_row,
                           EngineEvents& events) {
    Sequence& sequence = *planned.sequence;
    // After a preemption positions come again whose tokens have their scores.
    Position next = std::max(planned.first + 1, sequence.scored);
    const Position end = std::min(planned.first + planned.count + 1, sequence.prompt_tokens);
    if (next >= end) return {};
    EngineEvents::PromptScores scores;
    scores.request = sequence.request;
    scores.first = next;
    scores.count = end - next;
    scores.first_logprob = static_cast<std::uint32_t>(events.logprobs.size());
    const auto most = static_cast<std::uint32_t>(runner_.most_logit_rows());
    while (next < end) {
        const std::uint32_t count = std::min(most, end - next);
        rows_.clear();
        for (std::uint32_t i = 0; i < count; ++i)
            rows_.push_back(first_row + next + i - 1 - planned.first);
        PERCHERON_ASSIGN(const std::span<const float> logits, runner_.logits_of(rows_));
        const std::size_t vocabulary = logits.size() / count;
        for (std::uint32_t i = 0; i < count; ++i) {
            PERCHERON_TRY(sampler_.log_probabilities(
                logits.subspan(i * vocabulary, vocabulary), sequence.tokens[next + i],
                static_cast<std::size_t>(sequence.prompt_logprobs), banned_tokens_,
                events.logprobs.emplace_back()));
        }
        next += count;
    }
    sequence.scored = end;
    events.prompt_scores.push_back(scores);
    return {};
}

}  // namespace percheron::engine
