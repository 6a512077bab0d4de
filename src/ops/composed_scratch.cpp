#include "ops/composed_scratch.h"

namespace percheron::ops {

KdaScratch KdaScratch::lay_out(ScratchArena& arena, const NetworkShape& shape, std::size_t rows) {
    const std::size_t width = shape.kda_heads * shape.kda_dim;
    KdaScratch scratch;
    scratch.raw = arena.rows<float>(rows, 3 * width);
    scratch.convolved = arena.rows<float>(rows, 3 * width);
    scratch.decay_rank = arena.rows<float>(rows, shape.kda_dim);
    scratch.gate_rank = arena.rows<float>(rows, shape.kda_dim);
    scratch.decay = arena.rows<float>(rows, width);
    scratch.gate = arena.rows<float>(rows, width);
    scratch.beta = arena.rows<float>(rows, shape.kda_heads);
    scratch.mixed = arena.rows<float>(rows, width);
    return scratch;
}

SparseScratch SparseScratch::lay_out(ScratchArena& arena, const NetworkShape& shape,
                                     std::size_t rows) {
    const std::size_t heads = shape.attention_heads;
    SparseScratch scratch;
    scratch.query_rank = arena.rows<float>(rows, shape.query_rank);
    scratch.latent = arena.rows<float>(rows, shape.latent);
    scratch.query = arena.rows<float>(rows, heads * shape.query_key_dim);
    scratch.index_key = arena.rows<float>(rows, shape.index_dim);
    scratch.index_gate = arena.rows<float>(rows, shape.index_dim);
    scratch.index_query = arena.rows<float>(rows, shape.index_heads * shape.index_dim);
    scratch.index_head_weights = arena.rows<float>(rows, shape.index_heads);
    scratch.positions = arena.rows<std::uint32_t>(rows, shape.index_topk + shape.index_pool - 1);
    scratch.counts = arena.span<std::uint32_t>(rows);
    scratch.absorbed = arena.rows<float>(rows, heads * shape.latent);
    scratch.read = arena.rows<float>(rows, heads * shape.latent);
    scratch.values = arena.rows<float>(rows, heads * shape.value_dim);
    return scratch;
}

FeedForwardScratch FeedForwardScratch::lay_out(ScratchArena& arena, std::size_t rows,
                                               std::size_t intermediate) {
    FeedForwardScratch scratch;
    scratch.gate = arena.rows<float>(rows, intermediate);
    scratch.up = arena.rows<float>(rows, intermediate);
    return scratch;
}

ExpertsScratch ExpertsScratch::lay_out(ScratchArena& arena, const NetworkShape& shape,
                                       std::size_t rows) {
    const std::size_t chosen = shape.experts_per_token;
    ExpertsScratch scratch;
    scratch.experts = arena.rows<std::uint32_t>(rows, chosen);
    scratch.weights = arena.rows<float>(rows, chosen);
    scratch.place = arena.rows<std::uint32_t>(rows, chosen);
    scratch.first_row = arena.span<std::uint32_t>(shape.experts + 1);
    scratch.wanted = arena.span<std::uint32_t>(shape.experts);
    scratch.source = arena.span<std::uint32_t>(rows * chosen);
    scratch.routed = FeedForwardScratch::lay_out(arena, rows * chosen, shape.expert_intermediate);
    scratch.output = arena.rows<float>(rows * chosen, shape.hidden);
    scratch.shared = FeedForwardScratch::lay_out(arena, rows, shape.shared_intermediate);
    return scratch;
}

MhcScratch MhcScratch::lay_out(ScratchArena& arena, const NetworkShape& shape, std::size_t rows) {
    MhcScratch scratch;
    scratch.pre = arena.rows<float>(rows, shape.streams);
    return scratch;
}

}  // namespace percheron::ops
