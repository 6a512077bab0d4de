#include "ops/batch.h"

#include <string>

namespace percheron::ops {
namespace {

Error broken(std::string what) {
    return Error(ErrorCode::invalid_argument, "The step's batch is malformed: " + std::move(what));
}

Status check_sequence(const SequenceRows& sequence, NumericClass numeric_class) {
    if (sequence.row_count == 0) return broken("a sequence has no rows.");
    if (sequence.state_position > sequence.first_position) {
        return broken("a sequence's state lies beyond its first position.");
    }
    if (sequence.commit_rows > sequence.row_count) {
        return broken("a sequence commits more rows than it has.");
    }
    const std::size_t end = std::size_t{sequence.first_position} + sequence.row_count;
    if (sequence.pages.size() * page_tokens < end) {
        return broken("a sequence has too few pages for its positions.");
    }
    if (numeric_class == NumericClass::prefill) {
        if (sequence.first_position % page_tokens != 0) {
            return broken("a prefill chunk starts off the grid of 64 positions.");
        }
        if (sequence.state_position != sequence.first_position ||
            sequence.commit_rows != sequence.row_count) {
            return broken("a prefill chunk must commit every row.");
        }
    }
    return {};
}

}  // namespace

Status check_batch(const RowBatch& batch, std::size_t vocabulary) {
    std::size_t next_row = 0;
    for (const SequenceRows& sequence : batch.sequences) {
        if (sequence.first_row != next_row) return broken("its sequences' rows have gaps.");
        PERCHERON_TRY(check_sequence(sequence, batch.numeric_class));
        next_row += sequence.row_count;
    }
    if (next_row != batch.rows()) return broken("its tokens and its sequences' rows differ.");
    for (const TokenId token : batch.tokens) {
        if (to_int(token) < 0 || static_cast<std::size_t>(to_int(token)) >= vocabulary) {
            return Error(ErrorCode::invalid_argument, "Token id " + std::to_string(to_int(token)) +
                                                          " is not in the vocabulary of " +
                                                          std::to_string(vocabulary) + " ids.");
        }
    }
    for (const EmbeddingOverride& replacement : batch.overrides) {
        if (replacement.row >= batch.rows()) return broken("an override names a row it lacks.");
    }
    for (std::size_t i = 0; i < batch.logit_rows.size(); ++i) {
        if (batch.logit_rows[i] >= batch.rows() ||
            (i > 0 && batch.logit_rows[i] <= batch.logit_rows[i - 1])) {
            return broken("its logit rows are not ascending rows of the step.");
        }
    }
    return {};
}

}  // namespace percheron::ops
