// The KDA recurrence, token by token (decode class) and in chunks of 64 (prefill class).
// H heads; per head a state S [d keys][d values], query q, key k, value v, log decay g [d], step
// size beta, all as kda_gates leaves them.
//
// kda_step, one token:
//   S <- diag(e^g) S
//   delta = beta * (v - S^T k)
//   S <- S + k delta^T
//   o = S^T q
//
// Which rows change the slot's state is said by SequenceRows: first the kept rows of positions
// [state_position, first_position) are folded in from the ring, in order; then the step's own rows
// run.  The state written back covers [0, first_position + commit_rows).  Rows that are not
// committed ([commit_rows, row_count)) are stored in the ring at position % ring, key, value,
// decay, beta as in KdaSlots, and leave no trace in the state.  Folding a kept row changes the
// state by the same operations in the same order as running it did: decoding with commit_rows = 0
// and folding later is bit-equal to committing at once.
//
// kda_chunk, rows i of one chunk of at most 64 positions that starts on a multiple of 64,
// G_i = sum_{t <= i} g_t within the chunk, S the state entering it:
//   L_ij = beta_i sum_c k_i[c] k_j[c] e^(G_i[c] - G_j[c])   for j < i, else 0
//   (I + L) U = diag(beta) V,   (I + L) W = diag(beta) (K * e^G)      forward substitution
//   V' = U - W S
//   o_i = (q_i * e^G_i)^T S + sum_{j <= i} (sum_c q_i[c] k_j[c] e^(G_i[c] - G_j[c])) V'_j
//   S  <- diag(e^G_last) S + sum_j (k_j * e^(G_last - G_j)) V'_j^T
// Both forms agree up to rounding.  G reaches -320: e^G_i and e^-G_j are never formed apart from
// each other; e^(G_i - G_j) with i >= j is.  A prefill sequence has first_position a multiple of
// 64, state_position == first_position and commit_rows == row_count; longer runs are cut at every
// absolute multiple of 64, so any chunking on that grid gives the same bits.
//
// With state_position 0 the state is S = 0, whatever the slot holds.
//
// Shapes:   query, key, value, decay, output [rows of the batch, H * d]; beta [rows, H].
// Numerics: fp32 in both arithmetics, the triangular solve included.  Bits of a row depend on its
//           own sequence alone.
// Effects:  writes output, the slots' states, and (kda_step) the ring of rows not committed.
//           output overlaps nothing.
#pragma once

#include "core/views.h"
#include "ops/batch.h"
#include "ops/cache_views.h"

namespace percheron::ops {

inline constexpr std::size_t kda_chunk_tokens = page_tokens;

// The arguments of both forms.
struct KdaRecurrence {
    std::size_t heads = 0;
    std::size_t dim = 0;
    Rows<const float> query;
    Rows<const float> key;
    Rows<const float> value;
    Rows<const float> decay;
    Rows<const float> beta;
    KdaSlots slots;
    const RowBatch* batch = nullptr;
    Rows<float> output;
};

}  // namespace percheron::ops
