#include "ops/cuda/stage_scratch.h"

#include "ops/cuda/latent_attention.h"
#include "ops/cuda/prefill_kda.h"

namespace percheron::ops::cuda {
namespace {

int whole_fours(std::size_t count) {
    return static_cast<int>((count + 3) / 4 * 4);
}

}  // namespace

KdaScratch KdaScratch::lay_out(DeviceScratch& scratch, const NetworkShape& shape,
                               std::size_t rows) {
    const std::size_t width = shape.kda_heads * shape.kda_dim;
    KdaScratch s;
    s.stride = whole_fours(3 * width + shape.kda_heads);
    s.projections = scratch.take<float>(rows * static_cast<std::size_t>(s.stride));
    s.decay_rank = scratch.take<__nv_bfloat16>(rows * shape.kda_dim);
    s.gate_rank = scratch.take<__nv_bfloat16>(rows * shape.kda_dim);
    s.decay = scratch.take<float>(rows * width);
    s.gate = scratch.take<float>(rows * width);
    s.mixed = scratch.take<__nv_bfloat16>(rows * width);
    // Whole chunks of one long sequence, or some of many short ones at a time.
    s.prepared_chunks = static_cast<int>(rows / 64 + 8);
    s.prepared = scratch.take<std::byte>(
        kda_prompt_bytes(static_cast<int>(shape.kda_heads), s.prepared_chunks));
    return s;
}

SparseScratch SparseScratch::lay_out(DeviceScratch& scratch, const NetworkShape& shape,
                                     std::size_t rows) {
    const std::size_t heads = shape.attention_heads;
    const std::size_t together = std::min(rows, attention_rows);
    SparseScratch s;
    s.latent_at = static_cast<int>(shape.query_rank);
    s.key_at = s.latent_at + static_cast<int>(shape.latent);
    s.gate_at = s.key_at + static_cast<int>(shape.index_dim);
    s.head_weights_at = s.gate_at + static_cast<int>(shape.index_dim);
    s.stride = s.head_weights_at + whole_fours(shape.index_heads);
    s.projections = scratch.take<float>(rows * static_cast<std::size_t>(s.stride));
    s.query_rank = scratch.take<__nv_bfloat16>(rows * shape.query_rank);
    s.query = scratch.take<__nv_bfloat16>(rows * heads * shape.query_key_dim);
    s.index_query = scratch.take<__nv_bfloat16>(rows * shape.index_heads * shape.index_dim);
    s.positions_stride = whole_fours(shape.index_topk + shape.index_pool);
    s.positions = scratch.take<std::uint32_t>(rows * static_cast<std::size_t>(s.positions_stride));
    s.counts = scratch.take<std::uint32_t>(rows);
    s.score_count = together * (shape.context_limit / shape.index_pool);
    s.scores = scratch.take<float>(s.score_count);
    s.absorbed = scratch.take<__nv_bfloat16>(rows * heads * shape.latent);
    s.partial = scratch.take<float>(attention_partial_floats(
        static_cast<int>(heads), static_cast<int>(shape.index_topk + shape.index_pool - 1),
        static_cast<int>(together)));
    s.read = scratch.take<__nv_bfloat16>(rows * heads * shape.latent);
    s.values = scratch.take<__nv_bfloat16>(rows * heads * shape.value_dim);
    s.ordered = scratch.take<__nv_bfloat16>(rows * shape.query_rank);
    return s;
}

ExpertsScratch ExpertsScratch::lay_out(DeviceScratch& scratch, const NetworkShape& shape,
                                       std::size_t rows) {
    const std::size_t pairs = rows * shape.experts_per_token;
    ExpertsScratch s;
    s.logits = scratch.take<float>(rows * row_parts * shape.experts);
    s.choice.experts = scratch.take<std::uint32_t>(pairs);
    s.choice.weights = scratch.take<float>(pairs);
    s.choice.pair_order = scratch.take<std::uint32_t>(pairs);
    s.choice.groups = scratch.take<ExpertGroup>(pairs);
    s.choice.group_count = scratch.take<std::int32_t>(1);
    s.choice.pairs = static_cast<int>(pairs);
    s.inside = scratch.take<__nv_bfloat16>(pairs * shape.expert_intermediate);
    s.pair_output = scratch.take<float>(pairs * shape.hidden);
    s.shared_inside = scratch.take<__nv_bfloat16>(rows * shape.shared_intermediate);
    s.shared = scratch.take<float>(rows * shape.hidden);
    s.ordered = scratch.take<__nv_bfloat16>(rows * row_parts * shape.hidden);
    s.gathered = scratch.take<__nv_bfloat16>(pairs * shape.hidden);
    return s;
}

MtpScratch MtpScratch::lay_out(DeviceScratch& scratch, const NetworkShape& shape,
                               std::size_t rows) {
    MtpScratch s;
    s.embedded = scratch.take<float>(rows * shape.hidden);
    s.joined = scratch.take<__nv_bfloat16>(rows * 2 * shape.hidden);
    s.ordered = scratch.take<__nv_bfloat16>(rows * 2 * shape.hidden);
    return s;
}

std::size_t stage_scratch_bytes(const NetworkShape& shape, std::size_t rows) {
    DeviceScratch scratch;
    const auto measure = [&](auto lay_out) {
        scratch.restart();
        lay_out();
    };
    measure([&] { KdaScratch::lay_out(scratch, shape, rows); });
    measure([&] { SparseScratch::lay_out(scratch, shape, rows); });
    measure([&] { ExpertsScratch::lay_out(scratch, shape, rows); });
    measure([&] { MtpScratch::lay_out(scratch, shape, rows); });
    measure([&] { scratch.take<__nv_bfloat16>(rows * shape.dense_intermediate); });
    return scratch.peak();
}

}  // namespace percheron::ops::cuda
