// Which tokens a query attends to: the best pools by index score, and the incomplete tail.
//
// For a row at position t, n = t + 1 visible tokens, pools P with pool * P + pool - 1 <= t (a pool
// is a candidate as soon as its last token is visible; the query's own token may be that one):
//
//   score(P) = sum_h w_h * max(0, query_h . pooled(P) * dim^-1/2),   w_h = head_weight[h] * H^-1/2
//
// The topk / pool candidates of the largest score are taken (all, if there are fewer), ties to the
// lower P; each stands for its `pool` tokens.  The last n % pool tokens are always added.  The
// positions are written in ascending order.
//
// Shapes:   query [rows of the batch, H * dim]; head_weight [rows, H]; positions
//           [rows, >= topk + pool - 1]; counts [rows].
// Numerics: `standard` rounds query to bf16; pooled keys are read as stored.  Dot products, relu,
//           weighting and sums are fp32 (an oracle may sum wider), h ascending.  A row's bits and
//           choice depend on its own sequence alone.  When every candidate fits, no score matters
//           and none need be computed.
// Effects:  writes counts and the first counts[r] positions of every row.
#pragma once

#include <cstdint>
#include <span>

#include "core/views.h"
#include "ops/batch.h"
#include "ops/cache_views.h"

namespace percheron::ops {

struct SelectTokens {
    std::size_t heads = 0;
    std::size_t dim = 0;
    std::size_t pool = 4;
    std::size_t topk = 0;
    Rows<const float> query;
    Rows<const float> head_weight;
    LatentPages pages;
    const RowBatch* batch = nullptr;
    Arithmetic arithmetic = Arithmetic::standard;
    Rows<std::uint32_t> positions;
    std::span<std::uint32_t> counts;
};

}  // namespace percheron::ops
