#include <algorithm>

#include "ops/cuda/cuda_stages.h"
#include "ops/cuda/embed_rows.h"
#include "ops/cuda/mtp_rows.h"
#include "ops/cuda/stage_products.h"

namespace percheron::ops::cuda {

void CudaBackend::mtp_input(const MtpWeights& weights, const WeightMatrix& embedding,
                            const RowBatch& batch, Activations hidden,
                            std::span<const std::uint32_t> hidden_rows, Activations x,
                            Activations normed) {
    // A recorded step copies from here what this step's rows are, so they are written whether the
    // step is launched or replayed.
    std::copy(hidden_rows.begin(), hidden_rows.end(),
              reinterpret_cast<std::uint32_t*>(hidden_rows_host_.data()));
    if (only_noted(weights.projection.data, embedding.data, hidden.data, x.data, normed.data))
        return;
    settle_pairs();
    scratch_.restart();
    const int rows = static_cast<int>(batch.rows()), width = static_cast<int>(shape_.hidden);
    const MtpScratch s = MtpScratch::lay_out(scratch_, shape_, batch.rows());
    note(check(cudaMemcpyAsync(hidden_rows_.data(), hidden_rows_host_.data(),
                               hidden_rows.size_bytes(), cudaMemcpyHostToDevice, stream_),
               "uploading an MTP step's rows"));
    Embedding table;
    table.table = embedding;
    table.tokens = batch_.tokens();
    table.rows = rows;
    table.streams = 1;
    table.out = s.embedded;
    // Uploads are no kernels: nothing may start before them.
    LaunchContext behind_uploads = context_;
    behind_uploads.dependent = false;
    note(embed_rows(table, behind_uploads));
    for (const EmbeddingOverride& replacement : batch.overrides) {
        note(check(
            cudaMemcpyAsync(s.embedded + replacement.row * shape_.hidden, replacement.features,
                            shape_.hidden * sizeof(float), cudaMemcpyDefault, stream_),
            "placing image features"));
    }
    JoinedRows join;
    join.hidden = width;
    join.batch = batch_.view();
    join.embedded = s.embedded;
    join.hidden_state = floats(hidden);
    join.hidden_rows = reinterpret_cast<const std::uint32_t*>(hidden_rows_.data());
    join.embedding_norm = weights.embedding_norm;
    join.hidden_norm = weights.hidden_norm;
    join.eps = shape_.rms_eps;
    join.joined = s.joined;
    note(join_rows(join, batch.overrides.empty() ? context_ : behind_uploads));
    const FewRowProduct projection =
        product(packed_view(weights.projection), as_input(s.joined, rows, 2 * width, s.ordered),
                2 * width, floats(x), width);
    multiply({&projection, 1}, rows);
    residual_turn_of(weights.input_norm, nullptr, x, normed);
}

void CudaBackend::sparse_caches(const SparseAttentionWeights& weights, const LatentPages& pages,
                                const RowBatch& batch, Activations normed) {
    if (only_noted(weights.kv_a.data, weights.index_k.data, pages.latents, pages.latent_page_bytes,
                   pages.pooled, pages.pooled_page_bytes, pages.tails, pages.tail_stride,
                   pages.tail_ring, normed.data))
        return;
    settle_pairs();
    scratch_.restart();
    const SparseScratch s = SparseScratch::lay_out(scratch_, shape_, batch.rows());
    const auto [in, stride] = inputs_of(normed);
    float* const raw = s.projections;
    const FewRowProduct projections[] = {
        product(packed_view(weights.kv_a), in, stride, raw + s.latent_at, s.stride),
        product(packed_view(weights.index_k), in, stride, raw + s.key_at, s.stride),
        product(packed_view(weights.index_gate), in, stride, raw + s.gate_at, s.stride),
    };
    multiply(projections, static_cast<int>(batch.rows()));
    note(sparse_rows(cached_rows(weights, pages, s), context_));
}

void CudaBackend::residual_turn(const float* norm, Activations y, Activations x,
                                Activations normed) {
    if (only_noted(norm, y.data, x.data, normed.data)) return;
    residual_turn_of(norm, floats(y), x, normed);
}

void CudaBackend::residual_turn_of(const float* norm, const float* y, Activations x,
                                   Activations normed) {
    ResidualTurn turn;
    turn.rows = static_cast<int>(x.rows);
    turn.hidden = static_cast<int>(shape_.hidden);
    turn.x = floats(x);
    turn.y = y;
    if (pairs_ && pairs_->y == y) {
        turn.y = pairs_->shared;
        turn.pairs = pairs_->pairs;
        pairs_.reset();
    }
    settle_pairs();
    turn.norm = norm;
    turn.eps = shape_.rms_eps;
    turn.parts = reinterpret_cast<__nv_bfloat16*>(parts_memory_.data());
    turn.raised = raised_rows();
    turn.normed = floats(normed);
    note(cuda::residual_turn(turn, context_));
    parts_from_ = normed.data;
}

}  // namespace percheron::ops::cuda
