// Steps of a whole network on the CPU backend: decode with several streams, prefill, and where the
// time goes by stage.
//
//   step_bench MODEL [--streams N] [--steps N] [--context N] [--prefill N] [--threads N]
//              [--simd LEVEL] [--arithmetic standard|fp32] [--stages]
//
// Prints one JSON object a measurement, for scripts/bench-decode-cpu.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "bench/measure.h"
#include "cache/cache_store.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "model/network.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/forwarding_backend.h"

namespace percheron::bench {
namespace {

struct Options {
    std::string model;
    std::size_t streams = 1, steps = 200, context = 64, prefill = 0, threads = 0;
    std::string simd;
    ops::Arithmetic arithmetic = ops::Arithmetic::standard;
    bool stages = false;
};

[[noreturn]] void fail(const std::string& message) {
    std::fprintf(stderr, "step_bench: %s\n", message.c_str());
    std::exit(2);
}

Options parse(int count, char** values) {
    Options options;
    for (int i = 1; i < count; ++i) {
        const std::string name = values[i];
        if (name == "--stages") {
            options.stages = true;
            continue;
        }
        if (name.rfind("--", 0) != 0) {
            options.model = name;
            continue;
        }
        if (++i == count) fail(name + " needs a value");
        const std::string value = values[i];
        const auto number = [&] { return static_cast<std::size_t>(std::stoul(value)); };
        if (name == "--streams")
            options.streams = number();
        else if (name == "--steps")
            options.steps = number();
        else if (name == "--context")
            options.context = number();
        else if (name == "--prefill")
            options.prefill = number();
        else if (name == "--threads")
            options.threads = number();
        else if (name == "--simd")
            options.simd = value;
        else if (name == "--arithmetic")
            options.arithmetic =
                value == "fp32" ? ops::Arithmetic::fp32 : ops::Arithmetic::standard;
        else
            fail("unknown option " + name);
    }
    if (options.model.empty()) fail("name a model folder");
    return options;
}

template <class T>
T value_of(Result<T> result) {
    if (!result.ok()) fail(result.error().message());
    return std::move(result).value();
}

// Adds up the time of every stage.
class TimedBackend final : public ops::ForwardingBackend {
  public:
    using ForwardingBackend::ForwardingBackend;

    void embed(const ops::WeightMatrix& table, const ops::RowBatch& batch,
               ops::Activations streams) override {
        timed("embed", [&] { inner_.embed(table, batch, streams); });
    }
    void mhc_turn(const ops::MhcTurn& turn, const ops::RowBatch& batch) override {
        timed("mhc_turn", [&] { inner_.mhc_turn(turn, batch); });
    }
    void kda_mixer(const ops::KdaWeights& weights, const ops::KdaSlots& slots,
                   const ops::RowBatch& batch, ops::Activations x, ops::Activations y) override {
        timed("kda_mixer", [&] { inner_.kda_mixer(weights, slots, batch, x, y); });
    }
    void sparse_mixer(const ops::SparseAttentionWeights& weights, const ops::LatentPages& pages,
                      const ops::RowBatch& batch, ops::Activations x, ops::Activations y) override {
        timed("sparse_mixer", [&] { inner_.sparse_mixer(weights, pages, batch, x, y); });
    }
    void dense_ffn(const ops::FeedForwardWeights& weights, const ops::RowBatch& batch,
                   ops::Activations x, ops::Activations y) override {
        timed("dense_ffn", [&] { inner_.dense_ffn(weights, batch, x, y); });
    }
    void moe_ffn(const ops::ExpertsWeights& weights, const ops::RowBatch& batch, ops::Activations x,
                 ops::Activations y) override {
        timed("moe_ffn", [&] { inner_.moe_ffn(weights, batch, x, y); });
    }
    void head(const ops::WeightMatrix& head, const ops::RowBatch& batch, ops::Activations hidden,
              ops::Activations logits) override {
        timed("head", [&] { inner_.head(head, batch, hidden, logits); });
    }

    void forget() { stages_.clear(); }
    void print(std::size_t steps) const {
        for (const auto& [name, stage] : stages_)
            std::fprintf(
                stderr,
                "  %-13s %3zu calls a step, %8.2f us each, %8.2f at least, %9.2f us a step\n",
                name.c_str(), stage.calls / steps,
                1e6 * stage.seconds / static_cast<double>(stage.calls), 1e6 * stage.least,
                1e6 * stage.seconds / static_cast<double>(steps));
    }

  private:
    struct Stage {
        std::size_t calls = 0;
        double seconds = 0;
        double least = 0;  // what the stage takes undisturbed
    };
    template <class Body>
    void timed(const char* name, Body&& body) {
        const auto start = Clock::now();
        body();
        const double seconds = seconds_since(start);
        Stage& stage = stages_[name];
        stage.seconds += seconds;
        stage.least = stage.calls == 0 ? seconds : std::min(stage.least, seconds);
        ++stage.calls;
    }
    std::map<std::string, Stage> stages_;
};

class Bench {
  public:
    explicit Bench(const Options& options)
        : options_(options),
          config_(value_of(checkpoint::read_config(options.model))),
          checkpoint_(value_of(checkpoint::Checkpoint::open(options.model))),
          backend_(
              value_of(ops::make_cpu_backend({options.threads, options.arithmetic, options.simd}))),
          timed_(*backend_) {
        ops::Backend& used = options.stages ? static_cast<ops::Backend&>(timed_) : *backend_;
        network_ = value_of(model::Network::load(config_, *checkpoint_, used, {chunk, chunk}));
        const DType kv = options.arithmetic == ops::Arithmetic::fp32 ? DType::f32 : DType::bf16;
        const std::size_t tokens = std::max(options.context + options.steps, options.prefill) + 64;
        pages_each_ = cache::pages_for(tokens);
        store_ = value_of(
            cache::CacheStore::create(cache::CacheShape::of(config_, kv),
                                      pages_each_ * static_cast<std::uint32_t>(options.streams),
                                      static_cast<std::uint32_t>(options.streams), used));
        for (std::size_t stream = 0; stream < options.streams; ++stream) {
            pages_.emplace_back();
            for (std::uint32_t page = 0; page < pages_each_; ++page)
                pages_.back().push_back(
                    PageId{static_cast<std::uint32_t>(stream) * pages_each_ + page});
        }
    }

    void run() {
        Clock::exclusive = options_.threads == 1;
        if (options_.prefill != 0) prefill();
        if (options_.steps != 0) decode();
    }

  private:
    static constexpr std::size_t chunk = 512;

    // `count` positions from `first` of the streams [from, to), logits of the last row of each.
    void step(ops::NumericClass numeric_class, std::size_t from, std::size_t to, std::size_t first,
              std::size_t count) {
        std::vector<ops::SequenceRows> sequences;
        std::vector<TokenId> tokens;
        std::vector<std::uint32_t> logit_rows;
        for (std::size_t stream = from; stream < to; ++stream) {
            sequences.push_back({static_cast<std::uint32_t>(tokens.size()),
                                 static_cast<std::uint32_t>(count), static_cast<Position>(first),
                                 static_cast<Position>(first), static_cast<std::uint32_t>(count),
                                 RequestSlot{static_cast<std::uint32_t>(stream)}, pages_[stream]});
            for (std::size_t i = 0; i < count; ++i) {
                // Scattered ids: every stream meets other experts.
                seed_ = seed_ * 1664525u + 1013904223u;
                tokens.push_back(
                    TokenId{static_cast<std::int32_t>((seed_ >> 8) % config_.vocabulary)});
            }
            logit_rows.push_back(static_cast<std::uint32_t>(tokens.size() - 1));
        }
        ops::RowBatch batch;
        batch.numeric_class = numeric_class;
        batch.sequences = sequences;
        batch.tokens = tokens;
        batch.logit_rows = logit_rows;
        const auto logits = network_->forward(batch, store_->views());
        if (!logits.ok()) fail(logits.error().message());
        for (std::size_t row = 0; row < logit_rows.size(); ++row)
            check_ += logits.value()[row * config_.vocabulary];
    }

    void fill(std::size_t stream, std::size_t tokens) {
        for (std::size_t first = 0; first < tokens; first += chunk)
            step(ops::NumericClass::prefill, stream, stream + 1, first,
                 std::min(chunk, tokens - first));
    }

    void prefill() {
        timed_.forget();
        constexpr std::size_t runs = 3;
        const double seconds = least_seconds(runs, [&] { fill(0, options_.prefill); });
        std::printf(
            "{\"what\": \"prefill\", \"tokens\": %zu, \"seconds\": %.6f, "
            "\"tokens_per_second\": %.1f}\n",
            options_.prefill, seconds, static_cast<double>(options_.prefill) / seconds);
        if (options_.stages) timed_.print(runs + 1);
    }

    void decode() {
        for (std::size_t stream = 0; stream < options_.streams; ++stream)
            fill(stream, options_.context);
        timed_.forget();
        std::vector<double> times;
        for (std::size_t i = 0; i < options_.steps; ++i) {
            const auto start = Clock::now();
            step(ops::NumericClass::decode, 0, options_.streams, options_.context + i, 1);
            times.push_back(seconds_since(start));
        }
        const double seconds = median(times);
        const double mean = [&] {
            double sum = 0;
            for (double t : times)
                sum += t;
            return sum / static_cast<double>(times.size());
        }();
        std::printf(
            "{\"what\": \"decode\", \"streams\": %zu, \"step_seconds\": %.9f, "
            "\"mean_step_seconds\": %.9f, \"tokens_per_second\": %.1f, \"check\": %.17g}\n",
            options_.streams, seconds, mean, static_cast<double>(options_.streams) / seconds,
            check_);
        if (options_.stages) timed_.print(options_.steps);
    }

    Options options_;
    model::ModelConfig config_;
    std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
    std::unique_ptr<ops::Backend> backend_;
    TimedBackend timed_;
    std::unique_ptr<model::Network> network_;
    std::unique_ptr<cache::CacheStore> store_;
    std::uint32_t pages_each_ = 0;
    std::vector<std::vector<PageId>> pages_;
    std::uint32_t seed_ = 1;
    double check_ = 0;  // a sum of logits, equal for builds that compute the same bits
};

}  // namespace
}  // namespace percheron::bench

int main(int count, char** values) {
    percheron::bench::Bench(percheron::bench::parse(count, values)).run();
    return 0;
}
