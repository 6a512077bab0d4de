// The lay-outs of the composed stages' working memory.
#pragma once

#include <cassert>
#include <cstdint>
#include <span>

#include "core/views.h"
#include "ops/backend.h"
#include "ops/scratch_arena.h"

namespace percheron::ops {

// Activations of floats, as rows.
inline Rows<float> float_rows(const Activations& activations) {
    assert(activations.dtype == DType::f32);
    return {static_cast<float*>(activations.data), activations.rows, activations.columns};
}

struct KdaScratch {
    Rows<float> raw;         // q | k | v before convolution [R, 3 * H * d]
    Rows<float> convolved;   // after [R, 3 * H * d]
    Rows<float> decay_rank;  // f_a x [R, d]
    Rows<float> gate_rank;   // g_a x [R, d]
    Rows<float> decay;       // f_b f_a x, then the log decay [R, H * d]
    Rows<float> gate;        // g_b g_a x [R, H * d]
    Rows<float> beta;        // [R, H]
    Rows<float> mixed;       // the recurrence's output [R, H * d]
    static KdaScratch lay_out(ScratchArena& arena, const NetworkShape& shape, std::size_t rows);
};

struct SparseScratch {
    Rows<float> query_rank;          // c_q [R, query rank]
    Rows<float> latent;              // c [R, latent]
    Rows<float> query;               // [R, H * query_key_dim]
    Rows<float> index_key;           // [R, index dim]
    Rows<float> index_gate;          // [R, index dim]
    Rows<float> index_query;         // [R, index heads * index dim]
    Rows<float> index_head_weights;  // [R, index heads]
    Rows<std::uint32_t> positions;   // [R, topk + pool - 1]
    std::span<std::uint32_t> counts;
    Rows<float> absorbed;  // [R, H * latent]
    Rows<float> read;      // [R, H * latent]
    Rows<float> values;    // [R, H * value_dim]
    static SparseScratch lay_out(ScratchArena& arena, const NetworkShape& shape, std::size_t rows);
};

struct FeedForwardScratch {
    Rows<float> gate;  // [R, I], then the activation
    Rows<float> up;    // [R, I]
    static FeedForwardScratch lay_out(ScratchArena& arena, std::size_t rows,
                                      std::size_t intermediate);
};

struct ExpertsScratch {
    Rows<std::uint32_t> experts;         // [R, chosen]
    Rows<float> weights;                 // [R, chosen]
    Rows<std::uint32_t> place;           // row of (r, j) among the rows sorted by expert
    std::span<std::uint32_t> first_row;  // [E + 1]
    std::span<std::uint32_t> wanted;     // [E] experts with rows, ascending; used of a store only
    std::span<std::uint32_t> source;     // [R * chosen] the row of each, sorted by expert
    FeedForwardScratch routed;           // [R * chosen, I]
    Rows<float> output;                  // [R * chosen, D]
    FeedForwardScratch shared;           // [R, I]
    static ExpertsScratch lay_out(ScratchArena& arena, const NetworkShape& shape, std::size_t rows);
};

struct MhcScratch {
    Rows<float> pre;  // [R, S]
    static MhcScratch lay_out(ScratchArena& arena, const NetworkShape& shape, std::size_t rows);
};

}  // namespace percheron::ops
