#include "engine/step_runner.h"

#include <algorithm>

#include "sampling/sampler.h"

namespace percheron::engine {

void StepRunner::add_features(const PlannedRows& planned, std::uint32_t first_row) {
    for (const SequenceImage& image : planned.sequence->images) {
        const Position begin = std::max<Position>(image.place.first, planned.first);
        const Position end = std::min<Position>(image.place.first + image.place.count,
                                                planned.first + planned.count);
        if (begin >= end) {
            continue;  // computed before, or found in the prefix cache: its rows may not be there
        }
        const std::size_t hidden = image.features->size() / image.place.count;
        for (Position position = begin; position < end; ++position) {
            overrides_.push_back(
                {first_row + (position - planned.first),
                 image.features->data() + (position - image.place.first) * hidden});
        }
    }
}

void StepRunner::ask_for_digests(const PlannedRows& planned) {
    const Sequence& sequence = *planned.sequence;
    for (std::uint32_t number = 0; number <= planned.drafts; ++number) {
        const auto position = static_cast<Position>(sequence.tokens.size() + number);
        const bool masks = sequence.masks != nullptr || sequence.ignore_eos ||
                           sequence.generated() + number < sequence.min_tokens;
        digests_.push_back(
            sampling::digest_request(sequence.sampling, sequence.noise(), position, masks));
    }
}

Result<sampling::LogitRows> StepRunner::run(const StepPlan& plan) {
    sequences_.clear();
    tokens_.clear();
    overrides_.clear();
    logit_rows_.clear();
    digests_.clear();
    // Scoring a prompt computes logits between the step and its tokens.
    ops::DigestedRows* const digested =
        std::any_of(plan.rows.begin(), plan.rows.end(),
                    [](const PlannedRows& planned) {
                        return planned.sequence->prompt_logprobs >= 0 &&
                               planned.sequence->scored < planned.sequence->prompt_tokens;
                    })
            ? nullptr
            : network_.digested();
    for (const PlannedRows& planned : plan.rows) {
        const Sequence& sequence = *planned.sequence;
        ops::SequenceRows rows;
        rows.first_row = static_cast<std::uint32_t>(tokens_.size());
        rows.row_count = planned.count;
        rows.first_position = planned.first;
        rows.state_position = planned.first - sequence.pending;
        rows.commit_rows = planned.count - planned.drafts;
        rows.slot = *sequence.slot;
        rows.pages = sequence.pages;
        sequences_.push_back(rows);
        add_features(planned, rows.first_row);
        const auto first = sequence.tokens.begin() + planned.first;
        tokens_.insert(tokens_.end(), first, first + rows.commit_rows);
        const auto drafts = sequence.drafting.drafts.begin();
        tokens_.insert(tokens_.end(), drafts, drafts + planned.drafts);
        if (planned.wants_token) {
            const auto end = static_cast<std::uint32_t>(tokens_.size());
            for (std::uint32_t row = end - planned.drafts - 1; row < end; ++row) {
                logit_rows_.push_back(row);
            }
            if (digested != nullptr) ask_for_digests(planned);
        }
    }
    batch_.numeric_class = plan.numeric_class;
    batch_.sequences = sequences_;
    batch_.tokens = tokens_;
    batch_.overrides = overrides_;
    batch_.logit_rows = logit_rows_;
    batch_.digests = digests_;
    PERCHERON_ASSIGN(const std::span<const float> logits,
                     network_.forward(batch_, caches_.views()));
    return sampling::LogitRows(logits, network_.config().vocabulary,
                               digests_.empty() ? nullptr : digested);
}

}  // namespace percheron::engine
