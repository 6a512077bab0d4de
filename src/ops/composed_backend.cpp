#include "ops/composed_backend.h"

#include <algorithm>
#include <cassert>
#include <new>

#include <sys/mman.h>

#include "ops/composed_scratch.h"
#include "ops/stored_values.h"

namespace percheron::ops {
namespace {

class HostBuffer final : public BackendBuffer {
  public:
    HostBuffer(void* data, Bytes bytes) : data_(data), bytes_(bytes) {}
    ~HostBuffer() override { ::operator delete(data_, alignment_of(bytes_)); }
    HostBuffer(const HostBuffer&) = delete;
    HostBuffer& operator=(const HostBuffer&) = delete;

    void* data() const override { return data_; }
    Bytes size() const override { return bytes_; }

    // Whole huge pages for what is large.
    static constexpr Bytes huge_page = Bytes{2} << 20;
    static constexpr std::align_val_t alignment_of(Bytes bytes) {
        return std::align_val_t{bytes >= huge_page ? huge_page : 64};
    }

  private:
    void* data_;
    Bytes bytes_;
};

// Lays out every stage on an arena without memory, so that its peak is known.
void measure_stages(ScratchArena& arena, const NetworkShape& shape, std::size_t rows,
                    std::size_t logit_rows) {
    const auto measure = [&arena](auto lay_out) {
        arena.restart();
        lay_out();
    };
    measure([&] { KdaScratch::lay_out(arena, shape, rows); });
    measure([&] { SparseScratch::lay_out(arena, shape, rows); });
    measure([&] { FeedForwardScratch::lay_out(arena, rows, shape.dense_intermediate); });
    measure([&] { ExpertsScratch::lay_out(arena, shape, rows); });
    measure([&] { MhcScratch::lay_out(arena, shape, rows); });
    measure([&] { arena.rows<float>(logit_rows, shape.hidden); });
    measure([&] { arena.rows<float>(rows, 2 * shape.hidden); });
}

}  // namespace

ComposedBackend::ComposedBackend(std::string name, Arithmetic arithmetic,
                                 std::unique_ptr<Primitives> primitives)
    : name_(std::move(name)),
      arithmetic_(arithmetic),
      primitives_(std::move(primitives)),
      vision_(*primitives_, arithmetic),
      drafter_(*primitives_, arithmetic) {}

ComposedBackend::~ComposedBackend() = default;

// ---- memory

Result<std::unique_ptr<BackendBuffer>> ComposedBackend::allocate(Bytes bytes,
                                                                 std::string_view purpose) {
    void* const data =
        ::operator new(std::max<Bytes>(bytes, 1), HostBuffer::alignment_of(bytes), std::nothrow);
    if (data == nullptr) {
        return Error(ErrorCode::out_of_memory, "No memory for " + std::string(purpose) + " (" +
                                                   std::to_string(bytes) +
                                                   " bytes): lower the context or the requests.");
    }
    // A state of a KDA head is sixteen small pages, each a miss of the address cache and a new
    // start for the prefetcher.  Only advice: without huge pages everything works as before.
    if (bytes >= HostBuffer::huge_page) {
        (void)madvise(data, bytes / HostBuffer::huge_page * HostBuffer::huge_page, MADV_HUGEPAGE);
    }
    return std::unique_ptr<BackendBuffer>(std::make_unique<HostBuffer>(data, bytes));
}

Result<std::unique_ptr<BackendBuffer>> ComposedBackend::allocate_host_readable(
    Bytes bytes, std::string_view purpose) {
    return allocate(bytes, purpose);
}

Result<WeightMatrix> ComposedBackend::place(const WeightMatrix& stored, std::string_view,
                                            WeightUse) {
    return stored;
}

Result<const float*> ComposedBackend::place(std::span<const float> vector, std::string_view name) {
    std::unique_ptr<float[]> copy(
        new (std::nothrow) float[std::max<std::size_t>(vector.size(), 1)]);
    if (copy == nullptr) {
        return Error(ErrorCode::out_of_memory, "No memory for " + std::string(name) + ".");
    }
    std::copy(vector.begin(), vector.end(), copy.get());
    vectors_.push_back(std::move(copy));
    return static_cast<const float*>(vectors_.back().get());
}

Bytes ComposedBackend::working_bytes(const NetworkShape& shape, std::size_t rows,
                                     std::size_t logit_rows) const {
    ScratchArena arena;
    measure_stages(arena, shape, rows, logit_rows);
    return arena.peak() + primitives_->working_bytes(shape, rows, logit_rows);
}

Status ComposedBackend::prepare(const NetworkShape& shape, std::size_t rows,
                                std::size_t logit_rows) {
    shape_ = shape;
    expert_products_.reserve(2 * shape.experts + 2);
    measure_stages(scratch_, shape, rows, logit_rows);
    PERCHERON_TRY(scratch_.reserve());
    return primitives_->prepare(shape, rows, logit_rows);
}

Linear ComposedBackend::product(const RowBatch& batch, const WeightMatrix& weight,
                                Rows<const float> input, Rows<float> output) const {
    assert(weight.k == input.columns && weight.n == output.columns && input.rows == output.rows);
    return Linear{weight, input, output, arithmetic_, batch.numeric_class};
}

// ---- stages

Status ComposedBackend::run(const RowBatch&, const std::function<void()>& stages) {
    fault_ = {};
    stages();
    return fault_;
}

void ComposedBackend::embed(const WeightMatrix& table, const RowBatch& batch, Activations streams) {
    const Rows<float> state = float_rows(streams);
    const std::size_t hidden = table.k;
    for (std::size_t row = 0; row < batch.rows(); ++row) {
        dequantise_row(table, static_cast<std::size_t>(to_int(batch.tokens[row])), state.row(row));
    }
    for (const EmbeddingOverride& replacement : batch.overrides) {
        std::copy_n(replacement.features, hidden, state.row(replacement.row));
    }
    for (std::size_t row = 0; row < batch.rows(); ++row) {
        for (std::size_t stream = 1; stream < shape_.streams; ++stream) {
            std::copy_n(state.row(row), hidden, state.row(row) + stream * hidden);
        }
    }
}

void ComposedBackend::mhc_turn(const MhcTurn& turn, const RowBatch& batch) {
    const Rows<float> state = float_rows(turn.streams);
    if (turn.output != nullptr) {
        primitives_->mhc_update({shape_.streams, float_rows(*turn.output),
                                 float_rows(turn.gates.post), float_rows(turn.gates.comb), state});
    }
    if (turn.tap != nullptr) {
        primitives_->mhc_collapse(
            {shape_.streams, state, {}, nullptr, shape_.rms_eps, float_rows(*turn.tap)});
    }
    if (turn.next != nullptr) {
        scratch_.restart();
        const MhcScratch scratch = MhcScratch::lay_out(scratch_, shape_, batch.rows());
        primitives_->mhc_gates({shape_.streams, shape_.sinkhorn_iterations, shape_.rms_eps,
                                shape_.mhc_eps, turn.next->fn, turn.next->base, turn.next->scale,
                                state, scratch.pre, float_rows(turn.gates.post),
                                float_rows(turn.gates.comb)});
        primitives_->mhc_collapse({shape_.streams, state, scratch.pre, turn.next->norm,
                                   shape_.rms_eps, float_rows(turn.normed)});
    }
    if (turn.final_norm != nullptr) {
        primitives_->mhc_collapse(
            {shape_.streams, state, {}, turn.final_norm, shape_.rms_eps, float_rows(turn.normed)});
    }
}

void ComposedBackend::kda_mixer(const KdaWeights& weights, const KdaSlots& slots,
                                const RowBatch& batch, Activations x, Activations y) {
    scratch_.restart();
    const KdaScratch s = KdaScratch::lay_out(scratch_, shape_, batch.rows());
    const Rows<const float> input = float_rows(x);
    const std::size_t heads = shape_.kda_heads;
    const std::size_t dim = shape_.kda_dim;
    const std::size_t width = heads * dim;

    const Linear projections[] = {
        product(batch, weights.q, input, s.raw.column_slice(0, width)),
        product(batch, weights.k, input, s.raw.column_slice(width, width)),
        product(batch, weights.v, input, s.raw.column_slice(2 * width, width)),
        product(batch, weights.f_a, input, s.decay_rank),
        product(batch, weights.g_a, input, s.gate_rank),
        product(batch, weights.beta, input, s.beta),
    };
    primitives_->linear(projections);
    const Linear expansions[] = {
        product(batch, weights.f_b, s.decay_rank, s.decay),
        product(batch, weights.g_b, s.gate_rank, s.gate),
    };
    primitives_->linear(expansions);

    primitives_->short_conv({s.raw, weights.conv, shape_.kda_conv, slots, &batch, s.convolved});
    const Rows<float> query = s.convolved.column_slice(0, width);
    const Rows<float> key = s.convolved.column_slice(width, width);
    const Rows<float> value = s.convolved.column_slice(2 * width, width);
    primitives_->kda_gates({heads, dim, weights.a_log, weights.dt_bias, shape_.kda_gate_lower_bound,
                            query, key, s.decay, s.beta});

    const KdaRecurrence recurrence{heads,   dim,    query, key,    value,
                                   s.decay, s.beta, slots, &batch, s.mixed};
    if (batch.numeric_class == NumericClass::prefill) {
        primitives_->kda_chunk(recurrence);
    } else {
        primitives_->kda_step(recurrence);
    }
    primitives_->gated_norm({dim, s.mixed, s.gate, weights.out_norm, shape_.rms_eps, s.mixed});
    const Linear out[] = {product(batch, weights.out, s.mixed, float_rows(y))};
    primitives_->linear(out);
}

void ComposedBackend::sparse_mixer(const SparseAttentionWeights& weights, const LatentPages& pages,
                                   const RowBatch& batch, Activations x, Activations y) {
    scratch_.restart();
    const SparseScratch s = SparseScratch::lay_out(scratch_, shape_, batch.rows());
    const Rows<const float> input = float_rows(x);
    const Linear projections[] = {
        product(batch, weights.q_a, input, s.query_rank),
        product(batch, weights.kv_a, input, s.latent),
        product(batch, weights.index_k, input, s.index_key),
        product(batch, weights.index_gate, input, s.index_gate),
        product(batch, weights.index_head_weights, input, s.index_head_weights),
    };
    primitives_->linear(projections);
    primitives_->rms_norm({s.query_rank, weights.q_a_norm, shape_.rms_eps, s.query_rank});
    const Linear queries[] = {
        product(batch, weights.q_b, s.query_rank, s.query),
        product(batch, weights.index_q, s.query_rank, s.index_query),
    };
    primitives_->linear(queries);

    write_caches(weights, pages, batch, s);
    const SelectTokens selection{shape_.index_heads,
                                 shape_.index_dim,
                                 shape_.index_pool,
                                 shape_.index_topk,
                                 s.index_query,
                                 s.index_head_weights,
                                 pages,
                                 &batch,
                                 arithmetic_,
                                 s.positions,
                                 s.counts};
    primitives_->select_tokens(selection);
    if (selection_observer_) selection_observer_(selection);

    const LatentHeads heads{shape_.attention_heads, shape_.query_key_dim, shape_.value_dim,
                            shape_.latent};
    primitives_->absorb_queries(
        {heads, weights.kv_b, s.query, arithmetic_, s.absorbed, batch.numeric_class});
    primitives_->latent_attention(
        {heads, s.absorbed, s.positions, s.counts, pages, &batch, arithmetic_, s.read});
    primitives_->expand_values(
        {heads, weights.kv_b, s.read, arithmetic_, s.values, batch.numeric_class});
    const Linear out[] = {product(batch, weights.out, s.values, float_rows(y))};
    primitives_->linear(out);
}

void ComposedBackend::write_caches(const SparseAttentionWeights& weights, const LatentPages& pages,
                                   const RowBatch& batch, const SparseScratch& s) {
    constexpr float index_norm_eps = 1e-6f;
    primitives_->rms_norm({s.latent, weights.kv_a_norm, shape_.rms_eps, s.latent});
    primitives_->layer_norm(
        {s.index_key, weights.index_k_norm, weights.index_k_bias, index_norm_eps, s.index_key});
    primitives_->store_latents({s.latent, pages, &batch});
    primitives_->index_pool(
        {shape_.index_pool, s.index_key, s.index_gate, weights.index_ape, pages, &batch});
}

void ComposedBackend::dense_ffn(const FeedForwardWeights& weights, const RowBatch& batch,
                                Activations x, Activations y) {
    scratch_.restart();
    const FeedForwardScratch s =
        FeedForwardScratch::lay_out(scratch_, batch.rows(), weights.gate.n);
    const Rows<const float> input = float_rows(x);
    const Linear in[] = {product(batch, weights.gate, input, s.gate),
                         product(batch, weights.up, input, s.up)};
    primitives_->linear(in);
    primitives_->swiglu({s.gate, s.up, shape_.swiglu_limit, s.gate});
    const Linear out[] = {product(batch, weights.down, s.gate, float_rows(y))};
    primitives_->linear(out);
}

void ComposedBackend::moe_ffn(const ExpertsWeights& weights, const RowBatch& batch, Activations x,
                              Activations y) {
    scratch_.restart();
    const std::size_t rows = batch.rows();
    const std::size_t chosen = shape_.experts_per_token;
    const ExpertsScratch s = ExpertsScratch::lay_out(scratch_, shape_, rows);
    const Rows<const float> input = float_rows(x);
    const Rows<float> output = float_rows(y);

    primitives_->router({weights.router, weights.router_bias, shape_.router_scale,
                         shape_.normalise_router_weights, input, s.experts, s.weights});

    // Rows sorted by expert, so that an expert's weights are read once a step.
    std::fill(s.first_row.begin(), s.first_row.end(), 0u);
    for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t j = 0; j < chosen; ++j) {
            ++s.first_row[s.experts.row(row)[j] + 1];
        }
    }
    for (std::size_t expert = 0; expert < shape_.experts; ++expert) {
        s.first_row[expert + 1] += s.first_row[expert];
    }
    for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t j = 0; j < chosen; ++j) {
            // Taking the next place moves the expert's first row; it is moved back below.
            const std::uint32_t place = s.first_row[s.experts.row(row)[j]]++;
            s.place.row(row)[j] = place;
            s.source[place] = static_cast<std::uint32_t>(row);
        }
    }
    for (std::size_t expert = shape_.experts; expert > 0; --expert) {
        s.first_row[expert] = s.first_row[expert - 1];
    }
    s.first_row[0] = 0;

    if (weights.streamed.store == nullptr) {
        routed_experts(weights, batch, s, input, output);
    } else {
        streamed_experts(weights, batch, s, input, output);
    }
    primitives_->combine_experts({s.output, s.place, s.weights, output, output});
}

void ComposedBackend::routed_experts(const ExpertsWeights& weights, const RowBatch& batch,
                                     const ExpertsScratch& s, Rows<const float> input,
                                     Rows<float> output) {
    const auto each_expert = [&](auto add) {
        expert_products_.clear();
        for (std::size_t expert = 0; expert < shape_.experts; ++expert) {
            const std::size_t first = s.first_row[expert];
            const std::size_t count = s.first_row[expert + 1] - first;
            if (count > 0) add(weights.experts[expert], first, count);
        }
    };
    each_expert([&](const FeedForwardWeights& expert, std::size_t first, std::size_t count) {
        add_expert_inputs(expert, batch, s, input, first, count);
    });
    expert_products_.push_back(product(batch, weights.shared.gate, input, s.shared.gate));
    expert_products_.push_back(product(batch, weights.shared.up, input, s.shared.up));
    primitives_->linear(expert_products_);
    primitives_->swiglu({s.routed.gate, s.routed.up, shape_.swiglu_limit, s.routed.gate});
    primitives_->swiglu({s.shared.gate, s.shared.up, shape_.swiglu_limit, s.shared.gate});

    each_expert([&](const FeedForwardWeights& expert, std::size_t first, std::size_t count) {
        expert_products_.push_back(product(batch, expert.down, s.routed.gate.slice(first, count),
                                           s.output.slice(first, count)));
    });
    expert_products_.push_back(product(batch, weights.shared.down, s.shared.gate, output));
    primitives_->linear(expert_products_);
}

// Rows keep their bits in any company, so that groups give what one set gives.
void ComposedBackend::streamed_experts(const ExpertsWeights& weights, const RowBatch& batch,
                                       const ExpertsScratch& s, Rows<const float> input,
                                       Rows<float> output) {
    ExpertStore& store = *weights.streamed.store;
    std::size_t wanted = 0;
    for (std::uint32_t expert = 0; expert < shape_.experts; ++expert) {
        if (s.first_row[expert + 1] > s.first_row[expert]) s.wanted[wanted++] = expert;
    }
    store.want(weights.streamed.layer, s.wanted.first(wanted));

    // The shared expert while others come.
    expert_products_.clear();
    expert_products_.push_back(product(batch, weights.shared.gate, input, s.shared.gate));
    expert_products_.push_back(product(batch, weights.shared.up, input, s.shared.up));
    primitives_->linear(expert_products_);
    primitives_->swiglu({s.shared.gate, s.shared.up, shape_.swiglu_limit, s.shared.gate});
    const Linear shared_down = product(batch, weights.shared.down, s.shared.gate, output);
    primitives_->linear({&shared_down, 1});

    while (wanted > 0) {
        const std::span<const ExpertStore::Present> group = store.next();
        if (group.empty()) {
            if (fault_.ok()) fault_ = store.status();
            return;
        }
        wanted -= group.size();
        const auto each_expert = [&](auto compute) {
            for (const ExpertStore::Present& present : group) {
                const std::size_t first = s.first_row[present.expert];
                compute(*present.weights, first, s.first_row[present.expert + 1] - first);
            }
        };
        expert_products_.clear();
        each_expert([&](const FeedForwardWeights& expert, std::size_t first, std::size_t count) {
            add_expert_inputs(expert, batch, s, input, first, count);
        });
        primitives_->linear(expert_products_);
        expert_products_.clear();
        each_expert([&](const FeedForwardWeights& expert, std::size_t first, std::size_t count) {
            const Rows<float> gate = s.routed.gate.slice(first, count);
            primitives_->swiglu({gate, s.routed.up.slice(first, count), shape_.swiglu_limit, gate});
            expert_products_.push_back(
                product(batch, expert.down, gate, s.output.slice(first, count)));
        });
        primitives_->linear(expert_products_);
    }
}

void ComposedBackend::add_expert_inputs(const FeedForwardWeights& expert, const RowBatch& batch,
                                        const ExpertsScratch& s, Rows<const float> input,
                                        std::size_t first, std::size_t count) {
    const auto add = [&](const WeightMatrix& weight, Rows<float> out) {
        Linear op{weight, input, out.slice(first, count), arithmetic_, batch.numeric_class};
        op.rows = s.source.subspan(first, count);
        expert_products_.push_back(op);
    };
    add(expert.gate, s.routed.gate);
    add(expert.up, s.routed.up);
}

void ComposedBackend::mtp_input(const MtpWeights& weights, const WeightMatrix& embedding,
                                const RowBatch& batch, Activations hidden,
                                std::span<const std::uint32_t> hidden_rows, Activations x,
                                Activations normed) {
    scratch_.restart();
    const std::size_t width = embedding.k;
    const Rows<float> joined = scratch_.rows<float>(batch.rows(), 2 * width);
    for (std::size_t row = 0; row < batch.rows(); ++row) {
        dequantise_row(embedding, static_cast<std::size_t>(to_int(batch.tokens[row])),
                       joined.row(row));
    }
    for (const EmbeddingOverride& replacement : batch.overrides) {
        std::copy_n(replacement.features, width, joined.row(replacement.row));
    }
    for (const SequenceRows& sequence : batch.sequences) {
        if (sequence.first_position == 0) {
            std::fill_n(joined.row(sequence.first_row), width, 0.0f);
        }
    }
    const Rows<float> embedded = joined.column_slice(0, width);
    primitives_->rms_norm({embedded, weights.embedding_norm, shape_.rms_eps, embedded});
    const Rows<float> before = joined.column_slice(width, width);
    for (std::size_t row = 0; row < batch.rows(); ++row) {
        std::copy_n(float_rows(hidden).row(hidden_rows[row]), width, before.row(row));
    }
    primitives_->rms_norm({before, weights.hidden_norm, shape_.rms_eps, before});
    const Linear projection[] = {product(batch, weights.projection, joined, float_rows(x))};
    primitives_->linear(projection);
    primitives_->rms_norm({float_rows(x), weights.input_norm, shape_.rms_eps, float_rows(normed)});
}

void ComposedBackend::sparse_caches(const SparseAttentionWeights& weights, const LatentPages& pages,
                                    const RowBatch& batch, Activations normed) {
    scratch_.restart();
    const SparseScratch s = SparseScratch::lay_out(scratch_, shape_, batch.rows());
    const Rows<const float> input = float_rows(normed);
    const Linear projections[] = {
        product(batch, weights.kv_a, input, s.latent),
        product(batch, weights.index_k, input, s.index_key),
        product(batch, weights.index_gate, input, s.index_gate),
    };
    primitives_->linear(projections);
    write_caches(weights, pages, batch, s);
}

void ComposedBackend::residual_turn(const float* norm, Activations y, Activations x,
                                    Activations normed) {
    primitives_->add_rows({float_rows(y), nullptr, float_rows(x), float_rows(x)});
    primitives_->rms_norm({float_rows(x), norm, shape_.rms_eps, float_rows(normed)});
}

void ComposedBackend::head(const WeightMatrix& head, const RowBatch& batch, Activations hidden,
                           Activations logits) {
    if (batch.logit_rows.empty()) return;
    scratch_.restart();
    const Rows<float> wanted = scratch_.rows<float>(batch.logit_rows.size(), hidden.columns);
    for (std::size_t i = 0; i < batch.logit_rows.size(); ++i) {
        std::copy_n(float_rows(hidden).row(batch.logit_rows[i]), hidden.columns, wanted.row(i));
    }
    const Linear products[] = {product(batch, head, wanted, float_rows(logits))};
    primitives_->linear(products);
}

void ComposedBackend::read(const Activations& rows, float* out) {
    std::copy_n(float_rows(rows).data, rows.rows * rows.columns, out);
}

}  // namespace percheron::ops
