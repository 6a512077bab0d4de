#include <chrono>
#include <map>

#include "cuda/full_network.cuh"
#include "cuda/prompt_steps.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/forwarding_backend.h"

using namespace percheron;
using namespace percheron::bench;

namespace {

double microseconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
        .count();
}

// Adds up the time of every stage while it is asked to.
class TimedBackend final : public ops::ForwardingBackend {
  public:
    using ForwardingBackend::ForwardingBackend;

    void embed(const ops::WeightMatrix& table, const ops::RowBatch& batch,
               ops::Activations streams) override {
        timed("embed", [&] { inner_.embed(table, batch, streams); });
    }
    void mhc_turn(const ops::MhcTurn& turn, const ops::RowBatch& batch) override {
        timed("turn", [&] { inner_.mhc_turn(turn, batch); });
    }
    void kda_mixer(const ops::KdaWeights& weights, const ops::KdaSlots& slots,
                   const ops::RowBatch& batch, ops::Activations x, ops::Activations y) override {
        timed("kda", [&] { inner_.kda_mixer(weights, slots, batch, x, y); });
    }
    void sparse_mixer(const ops::SparseAttentionWeights& weights, const ops::LatentPages& pages,
                      const ops::RowBatch& batch, ops::Activations x, ops::Activations y) override {
        timed("sparse", [&] { inner_.sparse_mixer(weights, pages, batch, x, y); });
    }
    void dense_ffn(const ops::FeedForwardWeights& weights, const ops::RowBatch& batch,
                   ops::Activations x, ops::Activations y) override {
        timed("dense", [&] { inner_.dense_ffn(weights, batch, x, y); });
    }
    void moe_ffn(const ops::ExpertsWeights& weights, const ops::RowBatch& batch, ops::Activations x,
                 ops::Activations y) override {
        timed("experts", [&] { inner_.moe_ffn(weights, batch, x, y); });
    }
    void head(const ops::WeightMatrix& head, const ops::RowBatch& batch, ops::Activations hidden,
              ops::Activations logits) override {
        timed("head", [&] { inner_.head(head, batch, hidden, logits); });
    }

    struct Stage {
        int calls = 0;
        double us = 0;
    };
    bool timing = false;
    std::map<std::string, Stage> stages;

  private:
    template <class Body>
    void timed(const char* name, Body&& body) {
        if (timing) require(cudaDeviceSynchronize(), "the stage before");
        const auto start = std::chrono::steady_clock::now();
        body();
        if (!timing) return;
        require(cudaDeviceSynchronize(), name);
        stages[name].us += microseconds_since(start);
        ++stages[name].calls;
    }
};

class Bench {
  public:
    Bench(std::size_t layers, WeightFormat experts)
        : config_(full_config(layers, 1)),
          backend_(must(ops::make_cuda_backend({}))),
          timed_(*backend_) {
        const auto start = std::chrono::steady_clock::now();
        {
            DeviceWeights weights(experts);
            model::NetworkOptions options;
            options.max_rows = most_rows;
            options.max_logit_rows = 1;
            network_ = must(model::Network::load(config_, weights, timed_, options));
        }
        const cache::CacheShape shape = cache::CacheShape::of(config_, DType::bf16);
        const std::uint32_t pages = cache::pages_for(longest + 64);
        caches_ = must(cache::CacheStore::create(shape, pages, 1, timed_));
        caches_->clear_slot(RequestSlot(0));
        fill_caches(*caches_, pages);
        for (std::uint32_t p = 0; p < pages; ++p)
            table_.push_back(PageId((p * 37u) % pages));
        std::printf("%zu layers, experts in %s, loaded in %.1f s\n", layers,
                    std::string(ops::name_of(experts)).c_str(), microseconds_since(start) / 1e6);
    }

    // A prompt in steps of `rows`: tokens a second.
    double rate(std::size_t tokens, std::size_t rows) {
        const auto start = std::chrono::steady_clock::now();
        for (std::size_t first = 0; first < tokens; first += rows)
            step(first, std::min(rows, tokens - first));
        return static_cast<double>(tokens) / microseconds_since(start) * 1e6;
    }

    // One step of `rows` that begin at `first`.
    void stages(std::size_t first, std::size_t rows) {
        timed_.timing = true;
        step(first, rows);
        timed_.stages.clear();
        step(first, rows);
        timed_.timing = false;
        std::printf("  %5zu rows at %7zu, us a row and call:", rows, first);
        for (const auto& [name, stage] : timed_.stages)
            std::printf("  %s %.3f", name.c_str(),
                        stage.us / stage.calls / static_cast<double>(rows));
        // The released network: 34 KDA and 11 sparse layers, 3 dense and 42 with experts.
        const std::map<std::string, double> released = {
            {"kda", 34}, {"sparse", 11}, {"dense", 3}, {"experts", 42}, {"turn", 91}};
        double all = 0;
        for (const auto& [name, count] : released) {
            if (const auto found = timed_.stages.find(name); found != timed_.stages.end())
                all += count * found->second.us / found->second.calls;
        }
        std::printf("  45 layers: %.1f us a row\n", all / static_cast<double>(rows));
        std::fflush(stdout);
    }

    static constexpr std::size_t most_rows = 8192, longest = 262144;

  private:
    void step(std::size_t first, std::size_t count) {
        std::vector<TokenId> tokens(count);
        for (TokenId& token : tokens) {
            seed_ = seed_ * 1664525u + 1013904223u;
            token = TokenId(static_cast<int>((seed_ >> 8) % config_.vocabulary));
        }
        ops::SequenceRows sequence;
        sequence.row_count = sequence.commit_rows = static_cast<std::uint32_t>(count);
        sequence.first_position = sequence.state_position = static_cast<Position>(first);
        sequence.slot = RequestSlot(0);
        sequence.pages = table_;
        const auto last = static_cast<std::uint32_t>(count - 1);
        ops::RowBatch batch;
        batch.numeric_class = ops::NumericClass::prefill;
        batch.sequences = {&sequence, 1};
        batch.tokens = tokens;
        batch.logit_rows = {&last, 1};
        must(network_->forward(batch, caches_->views()));
    }

    model::ModelConfig config_;
    std::unique_ptr<ops::Backend> backend_;
    TimedBackend timed_;
    std::unique_ptr<model::Network> network_;
    std::unique_ptr<cache::CacheStore> caches_;
    std::vector<PageId> table_;
    std::uint32_t seed_ = 1;
};

}  // namespace

void percheron::bench::bench_prompts(std::size_t layers, WeightFormat experts,
                                     std::size_t longest) {
    Bench bench(layers, experts);
    bench.rate(16384, Bench::most_rows);  // warms up
    for (const std::size_t rows : {512, 2048, 8192}) {
        std::printf("steps of %zu rows:", rows);
        for (const std::size_t tokens : {4096, 16384, 65536, 262144}) {
            if (tokens > longest || (rows == 512 && tokens > 16384)) continue;
            std::printf("  %zu tokens %.0f tokens/s", tokens, bench.rate(tokens, rows));
            std::fflush(stdout);
        }
        std::printf("\n");
    }
    for (const auto& [first, rows] : {std::pair<std::size_t, std::size_t>{0, 512},
                                      {0, 2048},
                                      {8192, 512},
                                      {8192, 2048},
                                      {0, 8192},
                                      {8192, 8192},
                                      {131072, 2048},
                                      {131072, 8192},
                                      {262144 - 8192, 2048},
                                      {262144 - 8192, 8192}}) {
        if (first + rows <= longest) bench.stages(first, rows);
    }
}
