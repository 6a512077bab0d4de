#include "tools/step_costs.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <set>

#include "cache/cache_store.h"
#include "model/network.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/forwarding_backend.h"
#include "ops/reference/reference_primitives.h"
#include "tools/model_source.h"

namespace percheron::tools {
namespace {

using Clock = std::chrono::steady_clock;

// Takes the time of every stage, and counts what it had to read and do.
class CountingBackend final : public ops::ForwardingBackend {
  public:
    using ForwardingBackend::ForwardingBackend;

    Status prepare(const ops::NetworkShape& shape, std::size_t rows,
                   std::size_t logit_rows) override {
        shape_ = shape;
        return inner_.prepare(shape, rows, logit_rows);
    }
    void embed(const ops::WeightMatrix& table, const ops::RowBatch& batch,
               ops::Activations streams) override {
        const double rows = static_cast<double>(batch.rows());
        const double row =
            static_cast<double>(ops::stored_bytes(table)) / static_cast<double>(table.n);
        timed("embed", rows * row, 0, [&] { inner_.embed(table, batch, streams); });
    }
    void mhc_turn(const ops::MhcTurn& turn, const ops::RowBatch& batch) override {
        Work work;
        if (turn.next != nullptr) work.add(turn.next->fn, batch.rows());
        timed("mhc_turn", work.bytes, work.operations, [&] { inner_.mhc_turn(turn, batch); });
    }
    void kda_mixer(const ops::KdaWeights& w, const ops::KdaSlots& slots, const ops::RowBatch& batch,
                   ops::Activations x, ops::Activations y) override {
        Work work;
        for (const ops::WeightMatrix* matrix :
             {&w.q, &w.k, &w.v, &w.f_a, &w.g_a, &w.f_b, &w.g_b, &w.beta, &w.out}) {
            work.add(*matrix, batch.rows());
        }
        const double state =
            static_cast<double>(shape_.kda_heads * shape_.kda_dim * shape_.kda_dim);
        work.bytes += 2 * state * sizeof(float) * static_cast<double>(batch.sequences.size());
        work.operations += 7 * state * static_cast<double>(batch.rows());
        timed("kda_mixer", work.bytes, work.operations,
              [&] { inner_.kda_mixer(w, slots, batch, x, y); });
    }
    void sparse_mixer(const ops::SparseAttentionWeights& w, const ops::LatentPages& pages,
                      const ops::RowBatch& batch, ops::Activations x, ops::Activations y) override {
        Work work;
        for (const ops::WeightMatrix* matrix :
             {&w.q_a, &w.q_b, &w.kv_a, &w.kv_b, &w.out, &w.index_q, &w.index_k, &w.index_gate,
              &w.index_head_weights}) {
            work.add(*matrix, batch.rows());
        }
        for (const ops::SequenceRows& rows : batch.sequences) {
            const double last = rows.first_position + rows.row_count;
            const double most = static_cast<double>(shape_.index_topk + shape_.index_pool - 1);
            const double seen = std::min(last, most) * static_cast<double>(rows.row_count);
            const auto latent = static_cast<double>(shape_.latent);
            // A prompt's rows share what they read; a generated row reads its own.
            work.bytes += (rows.row_count > 1 ? last : seen) * latent *
                          static_cast<double>(size_of(pages.latent_dtype));
            work.operations += 4 * seen * latent * static_cast<double>(shape_.attention_heads);
        }
        timed("sparse_mixer", work.bytes, work.operations,
              [&] { inner_.sparse_mixer(w, pages, batch, x, y); });
    }
    void dense_ffn(const ops::FeedForwardWeights& w, const ops::RowBatch& batch, ops::Activations x,
                   ops::Activations y) override {
        Work work;
        work.add(w, batch.rows());
        timed("dense_ffn", work.bytes, work.operations, [&] { inner_.dense_ffn(w, batch, x, y); });
    }
    void moe_ffn(const ops::ExpertsWeights& w, const ops::RowBatch& batch, ops::Activations x,
                 ops::Activations y) override {
        Work work;
        work.add(w.router, batch.rows());
        work.add(w.shared, batch.rows());
        const std::vector<std::size_t> rows_of = choices(w, x);
        for (std::size_t expert = 0; expert < rows_of.size(); ++expert) {
            if (rows_of[expert] > 0) work.add(w.experts[expert], rows_of[expert]);
            experts_ += rows_of[expert] > 0 ? 1 : 0;
        }
        ++expert_layers_;
        timed("moe_ffn", work.bytes, work.operations, [&] { inner_.moe_ffn(w, batch, x, y); });
    }
    void head(const ops::WeightMatrix& head, const ops::RowBatch& batch, ops::Activations hidden,
              ops::Activations logits) override {
        Work work;
        if (!batch.logit_rows.empty()) work.add(head, batch.logit_rows.size());
        timed("head", work.bytes, work.operations,
              [&] { inner_.head(head, batch, hidden, logits); });
    }

    void forget() {
        stages_.clear();
        experts_ = expert_layers_ = 0;
    }
    const std::map<std::string, StageCost>& stages() const { return stages_; }
    double experts() const {
        return expert_layers_ == 0
                   ? 0
                   : static_cast<double>(experts_) / static_cast<double>(expert_layers_);
    }

  private:
    struct Work {
        double bytes = 0, operations = 0;
        void add(const ops::WeightMatrix& matrix, std::size_t rows) {
            bytes += static_cast<double>(ops::stored_bytes(matrix));
            operations += 2.0 * static_cast<double>(matrix.n * matrix.k * rows);
        }
        void add(const ops::FeedForwardWeights& weights, std::size_t rows) {
            add(weights.gate, rows);
            add(weights.up, rows);
            add(weights.down, rows);
        }
    };

    // Rows by expert, as the router's contract chooses them; outside the time taken.
    std::vector<std::size_t> choices(const ops::ExpertsWeights& w, const ops::Activations& x) {
        const std::size_t chosen = shape_.experts_per_token;
        std::vector<std::uint32_t> experts(x.rows * chosen);
        std::vector<float> weights(x.rows * chosen);
        oracle_.router({w.router, w.router_bias, shape_.router_scale,
                        shape_.normalise_router_weights,
                        Rows<const float>(static_cast<const float*>(x.data), x.rows, x.columns),
                        Rows<std::uint32_t>(experts.data(), x.rows, chosen),
                        Rows<float>(weights.data(), x.rows, chosen)});
        std::vector<std::size_t> rows(w.experts.size());
        for (const std::uint32_t expert : experts) {
            ++rows[expert];
        }
        return rows;
    }

    template <class Body>
    void timed(const char* name, double bytes, double operations, Body&& body) {
        const auto start = Clock::now();
        body();
        StageCost& stage = stages_[name];
        stage.seconds += std::chrono::duration<double>(Clock::now() - start).count();
        stage.bytes += bytes;
        stage.operations += operations;
        ++stage.calls;
    }

    ops::NetworkShape shape_;
    ops::reference::ReferencePrimitives oracle_;
    std::map<std::string, StageCost> stages_;
    std::size_t experts_ = 0;
    std::size_t expert_layers_ = 0;
};

class StepBench {
  public:
    StepBench(const model::ModelConfig& config, CountingBackend& backend, model::Network& network,
              cache::CacheStore& caches, std::uint32_t pages_each)
        : config_(config),
          backend_(backend),
          network_(network),
          caches_(caches),
          pages_each_(pages_each) {}

    Result<StepCosts> decode(std::size_t streams, std::size_t context, std::size_t repeat) {
        for (std::size_t stream = 0; stream < streams; ++stream) {
            caches_.clear_slot(RequestSlot(static_cast<std::uint32_t>(stream)));
            for (std::size_t first = 0; first < context; first += chunk) {
                PERCHERON_TRY(step(ops::NumericClass::prefill, stream, 1, first,
                                   std::min(chunk, context - first)));
            }
        }
        PERCHERON_TRY(step(ops::NumericClass::decode, 0, streams, context, 1));
        backend_.forget();
        for (std::size_t i = 1; i <= repeat; ++i) {
            PERCHERON_TRY(step(ops::NumericClass::decode, 0, streams, context + i, 1));
        }
        return costs(true, streams, repeat);
    }

    Result<StepCosts> prefill(std::size_t rows, std::size_t repeat) {
        for (std::size_t i = 0; i <= repeat; ++i) {
            caches_.clear_slot(RequestSlot(0));
            if (i == 1) backend_.forget();
            PERCHERON_TRY(step(ops::NumericClass::prefill, 0, 1, 0, rows));
        }
        return costs(false, rows, repeat);
    }

  private:
    static constexpr std::size_t chunk = 512;

    // `count` positions from `first` of `streams` streams.
    Status step(ops::NumericClass numeric_class, std::size_t from, std::size_t streams,
                std::size_t first, std::size_t count) {
        std::vector<ops::SequenceRows> sequences;
        std::vector<std::vector<PageId>> pages(streams);
        std::vector<TokenId> tokens;
        std::vector<std::uint32_t> logit_rows;
        for (std::size_t i = 0; i < streams; ++i) {
            const auto stream = static_cast<std::uint32_t>(from + i);
            for (std::uint32_t page = 0; page < pages_each_; ++page) {
                pages[i].push_back(PageId(stream * pages_each_ + page));
            }
            ops::SequenceRows rows;
            rows.first_row = static_cast<std::uint32_t>(tokens.size());
            rows.row_count = rows.commit_rows = static_cast<std::uint32_t>(count);
            rows.first_position = rows.state_position = static_cast<Position>(first);
            rows.slot = RequestSlot(stream);
            rows.pages = pages[i];
            sequences.push_back(rows);
            for (std::size_t token = 0; token < count; ++token) {
                tokens.push_back(TokenId(static_cast<int>(random_() % config_.vocabulary)));
            }
            logit_rows.push_back(static_cast<std::uint32_t>(tokens.size() - 1));
        }
        ops::RowBatch batch;
        batch.numeric_class = numeric_class;
        batch.sequences = sequences;
        batch.tokens = tokens;
        batch.logit_rows = logit_rows;
        PERCHERON_TRY(network_.forward(batch, caches_.views()));
        return {};
    }

    StepCosts costs(bool decode, std::size_t rows, std::size_t repeat) const {
        StepCosts costs;
        costs.decode = decode;
        costs.rows = rows;
        const auto times = static_cast<double>(repeat);
        for (auto [name, stage] : backend_.stages()) {
            stage.calls /= repeat;
            stage.bytes /= times;
            stage.operations /= times;
            stage.seconds /= times;
            costs.seconds += stage.seconds;
            costs.stages[name] = stage;
        }
        costs.experts = backend_.experts();
        const auto experts = static_cast<double>(config_.experts);
        const double missed = 1 - static_cast<double>(config_.experts_per_token) / experts;
        costs.experts_expected = experts * (1 - std::pow(missed, static_cast<double>(rows)));
        return costs;
    }

    const model::ModelConfig& config_;
    CountingBackend& backend_;
    model::Network& network_;
    cache::CacheStore& caches_;
    std::uint32_t pages_each_;
    std::mt19937_64 random_{1};
};

}  // namespace

Result<std::vector<StepCosts>> measure_steps(const StepBenchOptions& options) {
    PERCHERON_ASSIGN(const ModelSource source, open_model(options.model, options.threads));
    ops::CpuBackendOptions cpu;
    cpu.threads = options.threads;
    PERCHERON_ASSIGN(const auto backend, ops::make_cpu_backend(cpu));
    CountingBackend counting(*backend);
    const auto most_of = [](const std::vector<std::size_t>& list, std::size_t least) {
        return list.empty() ? least : std::max(least, *std::max_element(list.begin(), list.end()));
    };
    const std::size_t streams = most_of(options.decode_rows, 1);
    const std::size_t prompt = most_of(options.prefill_rows, 1);
    model::NetworkOptions network_options;
    network_options.max_rows = std::max<std::size_t>(prompt, 512);
    network_options.max_logit_rows = streams;
    PERCHERON_ASSIGN(const auto network, model::Network::load(source.config, *source.weights,
                                                              counting, network_options));
    const std::uint32_t pages_each =
        cache::pages_for(std::max(options.context + options.repeat + 1, prompt));
    PERCHERON_ASSIGN(const auto caches,
                     cache::CacheStore::create(cache::CacheShape::of(source.config, DType::bf16),
                                               pages_each * static_cast<std::uint32_t>(streams),
                                               static_cast<std::uint32_t>(streams), counting));
    StepBench bench(source.config, counting, *network, *caches, pages_each);
    std::vector<StepCosts> all;
    for (const std::size_t rows : options.decode_rows) {
        PERCHERON_ASSIGN(all.emplace_back(), bench.decode(rows, options.context, options.repeat));
    }
    for (const std::size_t rows : options.prefill_rows) {
        PERCHERON_ASSIGN(all.emplace_back(), bench.prefill(rows, options.repeat));
    }
    return all;
}

}  // namespace percheron::tools
