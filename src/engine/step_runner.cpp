#include "engine/step_runner.h"

namespace percheron::engine {

Result<std::span<const float>> StepRunner::run(const StepPlan& plan) {
    sequences_.clear();
    tokens_.clear();
    logit_rows_.clear();
    for (const PlannedRows& planned : plan.rows) {
        const Sequence& sequence = *planned.sequence;
        ops::SequenceRows rows;
        rows.first_row = static_cast<std::uint32_t>(tokens_.size());
        rows.row_count = planned.count;
        rows.first_position = planned.first;
        rows.state_position = planned.first;
        rows.commit_rows = planned.count;
        rows.slot = *sequence.slot;
        rows.pages = sequence.pages;
        sequences_.push_back(rows);
        const auto first = sequence.tokens.begin() + planned.first;
        tokens_.insert(tokens_.end(), first, first + planned.count);
        if (planned.wants_token) {
            logit_rows_.push_back(static_cast<std::uint32_t>(tokens_.size() - 1));
        }
    }
    ops::RowBatch batch;
    batch.numeric_class = plan.numeric_class;
    batch.sequences = sequences_;
    batch.tokens = tokens_;
    batch.logit_rows = logit_rows_;
    return network_.forward(batch, caches_.views());
}

}  // namespace percheron::engine
