#include <atomic>
#include <chrono>
#include <thread>

#include "cuda/full_network.cuh"
#include "cuda/overlap_steps.h"
#include "ops/cuda/cuda_backend.h"

using namespace percheron;
using namespace percheron::bench;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t context = 8192;
constexpr std::uint32_t most_sequences = 64;

// A network of its own, on a stream of its own.
class Side {
  public:
    Side(std::size_t layers, std::size_t most_rows, bool first)
        : config_(full_config(layers, 1)),
          backend_(must(ops::make_cuda_backend({.goes_first = first}))) {
        DeviceWeights weights(WeightFormat::w4a16);
        model::NetworkOptions options;
        options.max_rows = most_rows;
        options.max_logit_rows = most_sequences;
        network_ = must(model::Network::load(config_, weights, *backend_, options));
        if (const Status used = network_->use_digests({}); !used.ok()) {
            std::printf("%s\n", used.error().message().c_str());
            std::exit(1);
        }
        const std::uint32_t pages_each = cache::pages_for(context + most_rows);
        const std::uint32_t pages = pages_each * most_sequences;
        caches_ = must(cache::CacheStore::create(cache::CacheShape::of(config_, DType::bf16), pages,
                                                 most_sequences, *backend_));
        for (std::uint32_t slot = 0; slot < most_sequences; ++slot) {
            caches_->clear_slot(RequestSlot(slot));
            for (std::uint32_t page = 0; page < pages_each; ++page)
                tables_[slot].push_back(PageId(slot * pages_each + page));
        }
        fill_caches(*caches_, pages);
    }

    // So many sequences of `each` rows behind the context.
    void step(ops::NumericClass numeric_class, std::uint32_t count, std::uint32_t each) {
        std::vector<ops::SequenceRows> sequences(count);
        std::vector<TokenId> tokens(std::size_t{count} * each);
        std::vector<std::uint32_t> last(count);
        for (TokenId& token : tokens) {
            seed_ = seed_ * 1664525u + 1013904223u;
            token = TokenId(static_cast<int>((seed_ >> 8) % config_.vocabulary));
        }
        for (std::uint32_t i = 0; i < count; ++i) {
            sequences[i].first_row = i * each;
            sequences[i].row_count = sequences[i].commit_rows = each;
            sequences[i].first_position = sequences[i].state_position = context;
            sequences[i].slot = RequestSlot(i);
            sequences[i].pages = tables_[i];
            last[i] = (i + 1) * each - 1;
        }
        const std::vector<ops::DigestRequest> digests(count);
        ops::RowBatch batch;
        batch.numeric_class = numeric_class;
        batch.sequences = sequences;
        batch.tokens = tokens;
        batch.logit_rows = last;
        batch.digests = digests;
        must(network_->forward(batch, caches_->views()));
    }

  private:
    model::ModelConfig config_;
    std::unique_ptr<ops::Backend> backend_;
    std::unique_ptr<model::Network> network_;
    std::unique_ptr<cache::CacheStore> caches_;
    std::vector<PageId> tables_[most_sequences];
    std::uint32_t seed_ = 1;
};

// Steps a second of what is not null, for so long.
std::pair<double, double> rates(Side* prompts, std::uint32_t rows, Side* decoding,
                                std::uint32_t sequences, double seconds) {
    std::atomic<bool> over = false;
    std::atomic<int> prompt_steps = 0, decode_steps = 0;
    const auto begin = Clock::now();
    std::thread beside;
    if (prompts != nullptr) {
        beside = std::thread([&] {
            for (; !over.load(); ++prompt_steps)
                prompts->step(ops::NumericClass::prefill, 1, rows);
        });
    }
    const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    while (passed() < seconds) {
        if (decoding != nullptr) {
            decoding->step(ops::NumericClass::decode, sequences, 1);
            ++decode_steps;
        } else {
            std::this_thread::yield();
        }
    }
    const double time = passed();
    const int prompt_count = prompt_steps.load();
    over = true;
    if (beside.joinable()) beside.join();
    return {prompt_count / time, decode_steps.load() / time};
}

}  // namespace

void percheron::bench::bench_overlap(std::size_t layers) {
    constexpr double seconds = 0.8;
    Side prompts(layers, 2048, false);
    for (const bool first : {false, true}) {
        Side decoding(layers, most_sequences, first);
        for (const std::uint32_t sequences : {1u, 8u, 64u}) {
            for (const std::uint32_t rows : {512u, 2048u}) {
                rates(&prompts, rows, nullptr, 0, seconds / 4);
                rates(nullptr, 0, &decoding, sequences, seconds / 4);
                const double prompts_alone = rates(&prompts, rows, nullptr, 0, seconds).first;
                const double alone = rates(nullptr, 0, &decoding, sequences, seconds).second;
                const auto [prompt_rate, rate] =
                    rates(&prompts, rows, &decoding, sequences, seconds);
                std::printf(
                    "%zu layers, decoding %s: %u sequences beside steps of %u rows: decode step "
                    "%.0f us alone, %.0f together; prompts %.0f rows/s alone, %.0f together; "
                    "shares %.3f + %.3f = %.3f\n",
                    layers, first ? "goes first" : "as others", sequences, rows, 1e6 / alone,
                    1e6 / rate, prompts_alone * rows, prompt_rate * rows, rate / alone,
                    prompt_rate / prompts_alone, rate / alone + prompt_rate / prompts_alone);
                std::fflush(stdout);
            }
        }
    }
}
