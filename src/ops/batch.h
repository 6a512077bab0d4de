// What a step computes: rows of several sequences, all of one numeric class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "percheron/types.h"

#include "core/status.h"
#include "ops/logit_digest.h"

namespace percheron::ops {

// The two fixed arithmetics of the promise "batched = alone".  The class of a position depends only
// on whether it belongs to the prompt or was generated (verification rows included), never on
// batch, chunk, threads or load.  Rows of different classes never share a step.
enum class NumericClass : std::uint8_t { prefill, decode };

// standard: inputs of every matrix product are rounded to bf16, latents and pooled index keys are
//           cached in the KV dtype; everything else, sums included, is fp32.
// fp32:     nothing is rounded; caches hold fp32.  For comparing with other implementations.
enum class Arithmetic : std::uint8_t { standard, fp32 };

// Paged groups hold 64 positions a page: 64 latents, 64 / index_pool pooled keys.  The prefill grid
// is the same 64: a prefill chunk starts on a multiple of 64 and ends on one or at the prompt's
// end.
inline constexpr std::size_t page_tokens = 64;

// The rows of one sequence in a step: positions [first_position, first_position + row_count).
//
// The KDA state in the sequence's slot covers positions [0, state_position).  Rows of earlier steps
// in [state_position, first_position) were kept in the slot's ring, not yet written into the state:
// a step first folds them in, in order, then runs its own rows; the state written back covers
// [0, first_position + commit_rows).  Prefill and plain decoding commit every row
// (state_position == first_position, commit_rows == row_count); a verification round commits none,
// so that rejected rows leave no trace.  Rings are addressed by position, so rejected rows are
// simply overwritten.
struct SequenceRows {
    std::uint32_t first_row = 0;  // in the step's row matrices
    std::uint32_t row_count = 0;
    Position first_position = 0;
    Position state_position = 0;
    std::uint32_t commit_rows = 0;
    RequestSlot slot{};
    // Page of position p is pages[p / 64]; covers every position up to the last row's.
    std::span<const PageId> pages;
};

// An embedding that replaces the table's row: vision features at image placeholders.
struct EmbeddingOverride {
    std::uint32_t row = 0;
    const float* features = nullptr;  // [hidden], host memory
};

struct RowBatch {
    NumericClass numeric_class = NumericClass::decode;
    std::span<const SequenceRows> sequences;  // ascending first_row, no gaps
    std::span<const TokenId> tokens;          // one a row
    std::span<const EmbeddingOverride> overrides;
    std::span<const std::uint32_t> logit_rows;  // rows whose logits are wanted, ascending
    // One a logit row: digests are wanted in the place of logits, which stay where they are.  Only
    // of a backend that has them; empty: the logits are wanted.
    std::span<const DigestRequest> digests;

    std::size_t rows() const { return tokens.size(); }
};

// Whether a batch keeps to what is said above and every token is an id below `vocabulary`.
Status check_batch(const RowBatch& batch, std::size_t vocabulary);

}  // namespace percheron::ops
