#include "ops/cuda/cuda_stages.h"

#include "ops/cuda/embed_rows.h"
#include "ops/cuda/kda_step.h"
#include "ops/cuda/latent_attention.h"
#include "ops/cuda/mhc_turn.h"
#include "ops/cuda/prefill_rows.h"
#include "ops/cuda/prefill_turn.h"
#include "ops/cuda/select_tokens.h"
#include "ops/cuda/sparse_rows.h"
#include "ops/cuda/stage_products.h"
#include "ops/cuda/weight_prefetch.h"
#include "ops/latent_attention.h"

namespace percheron::ops::cuda {
namespace {

// Up to so many rows weights are prefetched: with more the kernels in between leave little time.
constexpr int prefetch_rows = 8;

// The grid of the index scores is cut for a power of two of pools, so that a growing context
// changes a recorded step seldom.  At most `all`: none is scored.
int pools_bucket(std::size_t pools, std::size_t all, std::size_t limit) {
    if (pools <= all) return static_cast<int>(all);
    std::size_t bucket = 1024;
    while (bucket < pools)
        bucket *= 2;
    return static_cast<int>(std::min(bucket, limit));
}

}  // namespace

const __nv_bfloat16* CudaBackend::parts_of(const Activations& x) {
    auto* const memory = reinterpret_cast<__nv_bfloat16*>(parts_memory_.data());
    if (x.data != parts_from_) {
        note(split_rows(floats(x), static_cast<int>(x.rows), static_cast<int>(x.columns), memory,
                        raised_rows(), context_));
        parts_from_ = x.data;
    }
    return memory;
}

StageInputs CudaBackend::inputs_of(const Activations& x) {
    const __nv_bfloat16* const parts = parts_of(x);
    const int hidden = static_cast<int>(shape_.hidden);
    if (!prompt_) return {parts, row_parts * hidden};
    OrderedRows op;
    op.rows = batch_.view().rows;
    op.columns = hidden;
    op.x = parts;
    op.x_stride = row_parts * hidden;
    op.out = reinterpret_cast<__nv_bfloat16*>(ordered_memory_.data());
    note(order_rows(op, context_));
    return {op.out, hidden};
}

const __nv_bfloat16* CudaBackend::as_input(const __nv_bfloat16* rows, int count, int columns,
                                           __nv_bfloat16* room) {
    if (!prompt_) return rows;
    OrderedRows op;
    op.rows = count;
    op.columns = op.x_stride = columns;
    op.x = rows;
    op.out = room;
    note(order_rows(op, context_));
    return room;
}

void CudaBackend::settle_pairs() {
    if (pairs_) note(sum_experts(*pairs_, context_));
    pairs_.reset();
}

void CudaBackend::multiply(std::span<const FewRowProduct> products, int rows,
                           const WeightsAhead& ahead) {
    multiply(products, rows, context_, ahead);
}

void CudaBackend::multiply(std::span<const FewRowProduct> products, int rows,
                           const LaunchContext& context, const WeightsAhead& ahead) {
    if (prompt_) {
        multiply_prompt_by_format(products, rows, shape_.swiglu_limit, context,
                                  [this](const Status& status) { note(status); });
        return;
    }
    multiply_by_format(
        products, rows, shape_.swiglu_limit, context,
        [this](const Status& status) { note(status); }, ahead);
}

void CudaBackend::embed(const WeightMatrix& table, const RowBatch& batch, Activations streams) {
    if (only_noted(table.data, streams.data)) return;
    Embedding op;
    op.table = table;
    op.tokens = batch_.tokens();
    op.rows = static_cast<int>(batch.rows());
    op.streams = static_cast<int>(shape_.streams);
    op.out = floats(streams);
    // The upload is no kernel: nothing may start before it.
    LaunchContext first = context_;
    first.dependent = false;
    note(embed_rows(op, first));
    for (const EmbeddingOverride& replacement : batch.overrides) {
        for (std::size_t stream = 0; stream < shape_.streams; ++stream) {
            note(check(cudaMemcpyAsync(streams.row<float>(replacement.row) + stream * shape_.hidden,
                                       replacement.features, shape_.hidden * sizeof(float),
                                       cudaMemcpyDefault, stream_),
                       "placing image features"));
        }
    }
}

void CudaBackend::mhc_turn(const MhcTurn& turn, const RowBatch& batch) {
    const void* const output = turn.output != nullptr ? turn.output->data : nullptr;
    const void* const tap = turn.tap != nullptr ? turn.tap->data : nullptr;
    const void* const fn = turn.next != nullptr ? turn.next->fn.data : nullptr;
    if (only_noted(turn.streams.data, output, tap, fn, turn.gates.post.data, turn.gates.comb.data,
                   turn.final_norm, turn.normed.data))
        return;
    HyperConnectionTurn op;
    op.rows = static_cast<int>(batch.rows());
    op.hidden = static_cast<int>(shape_.hidden);
    op.streams = floats(turn.streams);
    op.output = static_cast<const float*>(output);
    if (pairs_ && pairs_->y == output) {
        op.output = pairs_->shared;
        op.pairs = pairs_->pairs;
        pairs_.reset();
    }
    settle_pairs();
    op.post = floats(turn.gates.post);
    op.comb = floats(turn.gates.comb);
    if (turn.next != nullptr) {
        if (turn.next->fn.format != WeightFormat::bf16) {
            note(Error(ErrorCode::unsupported,
                       "CUDA hyper-connections read their gates' matrix as bf16"));
            return;
        }
        op.next = {static_cast<const __nv_bfloat16*>(fn), turn.next->base, turn.next->scale,
                   turn.next->norm};
    }
    op.final_norm = turn.final_norm;
    op.iterations = static_cast<int>(shape_.sinkhorn_iterations);
    op.rms_eps = shape_.rms_eps;
    op.mhc_eps = shape_.mhc_eps;
    op.normed = reinterpret_cast<__nv_bfloat16*>(parts_memory_.data());
    op.raised = raised_rows();
    op.normed_wide = floats(turn.normed);
    op.tap = static_cast<float*>(const_cast<void*>(tap));
    if (prompt_)
        note(prompt_turn(op, reinterpret_cast<float*>(turn_memory_.data()), context_));
    else
        note(cuda::mhc_turn(op, context_));
    parts_from_ = turn.normed.data;
}

void CudaBackend::kda_mixer(const KdaWeights& weights, const KdaSlots& slots, const RowBatch& batch,
                            Activations x, Activations y) {
    if (only_noted(weights.q.data, weights.out.data, slots.state, slots.state_stride, slots.conv,
                   slots.conv_stride, slots.kept, slots.kept_stride, slots.ring, x.data, y.data))
        return;
    settle_pairs();
    note_behind({{packed_view(weights.q), packed_view(weights.k), packed_view(weights.v)}, 3, 8});
    scratch_.restart();
    const int rows = static_cast<int>(batch.rows());
    const int hidden = static_cast<int>(shape_.hidden), dim = static_cast<int>(shape_.kda_dim);
    const int heads = static_cast<int>(shape_.kda_heads), width = heads * dim;
    const KdaScratch s = KdaScratch::lay_out(scratch_, shape_, batch.rows());
    const auto [in, stride] = inputs_of(x);
    float* const raw = s.projections;
    FewRowProduct projections[] = {
        product(packed_view(weights.q), in, stride, raw, s.stride),
        product(packed_view(weights.k), in, stride, raw + width, s.stride),
        product(packed_view(weights.v), in, stride, raw + 2 * width, s.stride),
        product(packed_view(weights.f_a), in, stride, s.decay_rank, dim),
        product(packed_view(weights.g_a), in, stride, s.gate_rank, dim),
        product(packed_view(weights.beta), in, stride, raw + 3 * width, s.stride),
    };
    projections[3].y_is_input = projections[4].y_is_input = true;
    multiply(projections, rows);
    const int sequences = batch_.view().sequence_count;

    KdaStep step;
    const PackedMatrix decay_weight = packed_view(weights.f_b);
    const PackedMatrix gate_weight = packed_view(weights.g_b);
    if (!prompt_ && gates_in_place(heads, sequences, decay_weight, gate_weight, context_)) {
        step.decay_rank = s.decay_rank;
        step.gate_rank = s.gate_rank;
        step.decay_weight = decay_weight;
        step.gate_weight = gate_weight;
        if (sequences == 1 && rows <= prefetch_rows)
            step.ahead = {{packed_view(weights.out)}, 1, 4};
    } else {
        const FewRowProduct expansions[] = {
            product(decay_weight, s.decay_rank, dim, s.decay, width),
            product(gate_weight, s.gate_rank, dim, s.gate, width),
        };
        multiply(expansions, rows);
    }
    if (prompt_) {
        prompt_kda(weights, slots, batch, s);
    } else {
        step.heads = heads;
        step.projections = raw;
        step.projection_stride = s.stride;
        step.beta = raw + 3 * width;
        step.beta_stride = s.stride;
        step.decay = s.decay;
        step.decay_stride = width;
        step.gate = s.gate;
        step.gate_stride = width;
        step.conv = weights.conv;
        step.a_log = weights.a_log;
        step.dt_bias = weights.dt_bias;
        step.out_norm = weights.out_norm;
        step.lower_bound = shape_.kda_gate_lower_bound;
        step.norm_eps = shape_.rms_eps;
        step.slots = slots;
        step.sequences = batch_.view().sequences;
        step.sequence_count = sequences;
        step.output = s.mixed;
        note(kda_step(step, context_));
    }
    const FewRowProduct out[] = {
        product(packed_view(weights.out), s.mixed, width, floats(y), hidden)};
    multiply(out, rows);
}

void CudaBackend::sparse_mixer(const SparseAttentionWeights& weights, const LatentPages& pages,
                               const RowBatch& batch, Activations x, Activations y) {
    const std::size_t all_rows = batch.rows();
    const std::size_t limit = shape_.context_limit / shape_.index_pool;
    const int most_pools = pools_bucket(batch_.most_pools(shape_.index_pool),
                                        shape_.index_topk / shape_.index_pool, limit);
    const std::size_t most_selected = shape_.index_topk + shape_.index_pool - 1;
    // Whole splits, for the same reason as the bucket of pools.
    const std::size_t most_tokens =
        std::min((batch_.furthest() + attention_split - 1) / attention_split * attention_split,
                 most_selected);
    if (only_noted(weights.q_a.data, weights.out.data, pages.latents, pages.latent_page_bytes,
                   pages.pooled, pages.pooled_page_bytes, pages.tails, pages.tail_stride,
                   pages.tail_ring, x.data, y.data, most_pools, most_tokens))
        return;
    settle_pairs();
    latest_router_ = nullptr;
    scratch_.restart();
    const int rows = static_cast<int>(all_rows), hidden = static_cast<int>(shape_.hidden);
    const int heads = static_cast<int>(shape_.attention_heads);
    const int rank = static_cast<int>(shape_.query_rank), latent = static_cast<int>(shape_.latent);
    const int keys = static_cast<int>(shape_.query_key_dim);
    const int values = static_cast<int>(shape_.value_dim);
    const int index_width = static_cast<int>(shape_.index_heads * shape_.index_dim);
    const SparseScratch s = SparseScratch::lay_out(scratch_, shape_, all_rows);
    const auto [in, stride] = inputs_of(x);
    float* const raw = s.projections;
    const FewRowProduct projections[] = {
        product(packed_view(weights.q_a), in, stride, raw, s.stride),
        product(packed_view(weights.kv_a), in, stride, raw + s.latent_at, s.stride),
        product(packed_view(weights.index_k), in, stride, raw + s.key_at, s.stride),
        product(packed_view(weights.index_gate), in, stride, raw + s.gate_at, s.stride),
        product(packed_view(weights.index_head_weights), in, stride, raw + s.head_weights_at,
                s.stride),
    };
    multiply(projections, rows);

    SparseRows own = cached_rows(weights, pages, s);
    own.query_rank = rank;
    own.query_norm = weights.q_a_norm;
    own.query = s.query_rank;
    note(sparse_rows(own, context_));
    const __nv_bfloat16* const query_rank = as_input(s.query_rank, rows, rank, s.ordered);
    FewRowProduct queries[] = {
        product(packed_view(weights.q_b), query_rank, rank, s.query, heads * keys),
        product(packed_view(weights.index_q), query_rank, rank, s.index_query, index_width),
    };
    queries[0].y_is_input = true;
    multiply(queries, rows);
    const LatentHeadMatrices kv_b = latent_heads_view(weights.kv_b, shape_);
    FewRowProduct absorb = product(kv_b.keys, s.query, heads * keys, s.absorbed, heads * latent);
    absorb.outputs_per_input = latent;
    absorb.input_step = keys;
    // While a row's tokens are chosen and attended to, the memory rests.
    multiply({&absorb, 1}, rows,
             rows == 1 ? WeightsAhead{{packed_view(weights.out)}, 1, 5} : WeightsAhead{});

    if (prompt_)
        prompt_attention_of(pages, s, most_pools);
    else
        attend(pages, s, most_pools, static_cast<int>(most_tokens));
    FewRowProduct expand = product(kv_b.values, s.read, heads * latent, s.values, heads * values);
    expand.y_is_input = true;
    expand.outputs_per_input = values;
    expand.input_step = latent;
    multiply({&expand, 1}, rows);
    const FewRowProduct out[] = {
        product(packed_view(weights.out), s.values, heads * values, floats(y), hidden)};
    multiply(out, rows);
}

TokenSelection CudaBackend::selection_of(const LatentPages& pages, const SparseScratch& s,
                                         int most_pools, std::size_t first,
                                         std::size_t count) const {
    TokenSelection selection;
    selection.heads = static_cast<int>(shape_.index_heads);
    selection.topk = static_cast<int>(shape_.index_topk);
    selection.query_stride = static_cast<int>(shape_.index_heads * shape_.index_dim);
    selection.query = s.index_query + first * static_cast<std::size_t>(selection.query_stride);
    selection.head_weight =
        s.projections + first * static_cast<std::size_t>(s.stride) + s.head_weights_at;
    selection.head_weight_stride = s.stride;
    selection.pages = pages;
    selection.batch = batch_.rows(first, count);
    selection.most_pools = most_pools;
    selection.scores = s.scores;
    selection.positions = s.positions + first * static_cast<std::size_t>(s.positions_stride);
    selection.positions_stride = s.positions_stride;
    selection.counts = s.counts + first;
    return selection;
}

void CudaBackend::attend(const LatentPages& pages, const SparseScratch& s, int most_pools,
                         int most_tokens) {
    const std::size_t rows = static_cast<std::size_t>(batch_.view().rows);
    const std::size_t width = shape_.attention_heads * shape_.latent;
    for (std::size_t first = 0; first < rows; first += attention_rows) {
        const std::size_t count = std::min(attention_rows, rows - first);
        const TokenSelection selection = selection_of(pages, s, most_pools, first, count);
        note(select_tokens(selection, context_));
        SelectedAttention attention;
        attention.heads = static_cast<int>(shape_.attention_heads);
        attention.scale = attention_scale();
        attention.absorbed = s.absorbed + first * width;
        attention.pages = pages;
        attention.batch = selection.batch;
        attention.positions = selection.positions;
        attention.positions_stride = s.positions_stride;
        attention.counts = selection.counts;
        attention.most_tokens = most_tokens;
        attention.partial = s.partial;
        attention.read = s.read + first * width;
        note(selected_attention(attention, context_));
    }
}

SparseRows CudaBackend::cached_rows(const SparseAttentionWeights& weights, const LatentPages& pages,
                                    const SparseScratch& scratch) const {
    SparseRows own;
    own.projections = scratch.projections;
    own.stride = scratch.stride;
    own.latent_at = scratch.latent_at;
    own.key_at = scratch.key_at;
    own.gate_at = scratch.gate_at;
    own.latent_norm = weights.kv_a_norm;
    own.key_norm = weights.index_k_norm;
    own.key_bias = weights.index_k_bias;
    own.ape = weights.index_ape;
    own.eps = shape_.rms_eps;
    own.pages = pages;
    own.batch = batch_.view();
    return own;
}

void CudaBackend::feed_forward(const FeedForwardWeights& weights, int rows, const StageInputs& x,
                               __nv_bfloat16* inside, float* y, const LaunchContext& context,
                               const WeightsAhead& ahead) {
    const int width = static_cast<int>(weights.gate.n), hidden = static_cast<int>(weights.gate.k);
    FewRowProduct gate = product(packed_view(weights.gate), x.x, x.stride, inside, width);
    gate.y_is_input = true;
    gate.up = packed_view(weights.up);
    multiply({&gate, 1}, rows, context);
    const FewRowProduct down = product(packed_view(weights.down), inside, width, y, hidden);
    multiply({&down, 1}, rows, context, ahead);
}

void CudaBackend::dense_ffn(const FeedForwardWeights& weights, const RowBatch& batch, Activations x,
                            Activations y) {
    if (only_noted(weights.gate.data, weights.down.data, x.data, y.data)) return;
    settle_pairs();
    scratch_.restart();
    auto* const inside = scratch_.take<__nv_bfloat16>(batch.rows() * shape_.dense_intermediate);
    feed_forward(weights, static_cast<int>(batch.rows()), inputs_of(x), inside, floats(y),
                 context_);
}

void CudaBackend::note_behind(const WeightsAhead& ahead) {
    if (latest_router_ != nullptr) behind_[latest_router_] = ahead;
    latest_router_ = nullptr;
}

void CudaBackend::moe_ffn(const ExpertsWeights& weights, const RowBatch& batch, Activations x,
                          Activations y) {
    if (only_noted(weights.router.data, weights.table, weights.shared.gate.data, x.data, y.data))
        return;
    settle_pairs();
    if (prompt_) {
        prompt_experts(weights, static_cast<int>(batch.rows()), x, y);
        return;
    }
    scratch_.restart();
    const auto& table = *static_cast<const ExpertTable*>(weights.table);
    const int rows = static_cast<int>(batch.rows()), hidden = static_cast<int>(shape_.hidden);
    const int inner = static_cast<int>(shape_.expert_intermediate);
    const int chosen = static_cast<int>(shape_.experts_per_token);
    const ExpertsScratch s = ExpertsScratch::lay_out(scratch_, shape_, batch.rows());
    const __nv_bfloat16* const in = parts_of(x);
    // The shared expert is computed beside the routed ones: while the few blocks of the router
    // choose, it has the memory for itself.
    note(check(cudaEventRecord(side_.leaves, stream_), "leaving the main stream"));

    Routing routing;
    routing.rows = rows;
    routing.hidden = hidden;
    routing.experts = static_cast<int>(shape_.experts);
    routing.chosen = chosen;
    routing.x = in;
    routing.weight = packed_view(weights.router);
    routing.bias = weights.router_bias;
    routing.scale = shape_.router_scale;
    routing.normalise = shape_.normalise_router_weights;
    routing.logits = s.logits;
    routing.choice = s.choice;
    routing.choice.touched = table.touched;
    note(route(routing, context_));
    note(check(cudaStreamWaitEvent(side_.stream, side_.leaves), "leaving the main stream"));
    LaunchContext beside = context_;
    beside.stream = side_.stream;
    // While the experts are chosen the memory rests: weights of the layer behind them.
    latest_router_ = weights.router.data;
    const auto found = behind_.find(latest_router_);
    feed_forward(weights.shared, rows, {in, row_parts * hidden}, s.shared_inside, s.shared, beside,
                 found != behind_.end() && rows <= prefetch_rows ? found->second : WeightsAhead{});
    note(check(cudaEventRecord(side_.returns, side_.stream), "returning to the main stream"));
    // Back before the routed experts rather than behind them: the memory has been busy all the
    // time, and down and the turn, each behind one kernel alone, can start early.
    note(check(cudaStreamWaitEvent(stream_, side_.returns), "returning to the main stream"));

    ExpertProduct inside;
    inside.format = table.gate_format;
    inside.n = inner;
    inside.k = hidden;
    inside.weights = table.gates;
    inside.ups = table.ups;
    inside.scales = table.gate_scales;
    inside.up_scales = table.up_scales;
    const bool raised = table.gate_format == WeightFormat::w4a16;
    inside.x = raised ? raised_rows() : in;
    inside.x_stride = raised ? hidden : row_parts * hidden;
    inside.pairs_per_row = chosen;
    inside.y = s.inside;
    inside.y_stride = inner;
    inside.y_is_raised = table.down_format == WeightFormat::w4a16;
    note(expert_gemm(inside, s.choice, shape_.swiglu_limit, context_));
    ExpertProduct down;
    down.format = table.down_format;
    down.n = hidden;
    down.k = inner;
    down.weights = table.downs;
    down.scales = table.down_scales;
    down.up_scales = table.down_scales;
    down.x = s.inside;
    down.x_stride = inner;
    down.y = s.pair_output;
    down.y_stride = hidden;
    down.choice_is_older = true;
    note(expert_gemm(down, s.choice, shape_.swiglu_limit, context_));
    // The turn that follows adds the experts up as it reads them.
    pairs_ =
        ExpertSum{rows, hidden, {chosen, s.choice.weights, s.pair_output}, s.shared, floats(y)};
}

void CudaBackend::head(const WeightMatrix& head, const RowBatch& batch, Activations hidden,
                       Activations logits) {
    const std::size_t count = batch.logit_rows.size();
    if (count == 0) return;
    auto* const values = reinterpret_cast<float*>(logits_memory_.data());
    const bool digested = !batch.digests.empty();
    digests_.note_rows(values, digested ? count : 0);
    if (only_noted(head.data, hidden.data, logits.data, count, batch_.all_logits(), digested))
        return;
    const int width = static_cast<int>(shape_.hidden);
    const auto vocabulary = static_cast<std::size_t>(head.n);
    settle_pairs();
    const __nv_bfloat16* in = parts_of(hidden);
    int stride = row_parts * width;
    if (!batch_.all_logits()) {
        auto* const wanted =
            reinterpret_cast<__nv_bfloat16*>(values + rows_behind_logits(count, vocabulary));
        note(gather_rows(in, stride, batch_.logit_rows(), static_cast<int>(count), width, wanted,
                         context_));
        in = wanted;
        stride = width;
    }
    const FewRowProduct all =
        product(packed_view(head), in, stride, values, static_cast<int>(head.n));
    // In both classes: few rows, if any, are wanted of a prompt.
    note(few_row_gemm({&all, 1}, static_cast<int>(count), shape_.swiglu_limit, context_));
    if (digested) {
        note(digests_.launch(values, count, batch_.digests(), context_));
        return;
    }
    note(check(cudaMemcpyAsync(logits.data, values, count * vocabulary * sizeof(float),
                               cudaMemcpyDeviceToHost, stream_),
               "reading logits"));
}

}  // namespace percheron::ops::cuda
