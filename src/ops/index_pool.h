// The indexer's cache: raw index keys of a sequence's last tokens, and one pooled key for every
// complete group of `pool` tokens, counted from the sequence's first.
//
// For pool P with tokens t_j = pool * P + j and each channel c by itself:
//   alpha_j[c]   = softmax over j of (gate_{t_j}[c] + ape[j][c])
//   pooled(P)[c] = sum_j alpha_j[c] * key_{t_j}[c]
//
// key and gate of a token come from the step's rows or, for tokens before first_position, from the
// slot's tail ring (position % tail_ring).  A pool is computed by the row that holds its last
// token.
//
// Shapes:   key, gate [rows of the batch, index dim]; ape [pool][index dim].
// Numerics: fp32 in both arithmetics, j ascending; the pooled key is stored in pooled_dtype as
//           stored_rows.h says.
// Effects:  writes pooled(P) of every pool completed by a row of the batch at
//           [page of its tokens][P % (64 / pool)], then stores key and gate of each sequence's last
//           min(rows, tail_ring) rows in the ring.
#pragma once

#include "core/views.h"
#include "ops/batch.h"
#include "ops/cache_views.h"

namespace percheron::ops {

struct IndexPool {
    std::size_t pool = 4;
    Rows<const float> key;
    Rows<const float> gate;
    const float* ape = nullptr;
    LatentPages pages;
    const RowBatch* batch = nullptr;
};

}  // namespace percheron::ops
