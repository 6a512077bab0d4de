// The step loop makes no allocation once everybody decodes: sampling, events, bookkeeping and the
// next plan work in memory that the steps before have left.
#include "support/allocations.h"

#include <atomic>
#include <latch>
#include <random>

#include <gtest/gtest.h>

#include "engine/fake_network.h"

namespace percheron::engine::testing {
namespace {

constexpr std::uint32_t requests = 4;

// Allocates nothing itself.
class Waiting final : public EngineEventSink {
  public:
    void on_events(EngineEvents& events) override {
        tokens += events.tokens.size();
        all_ended.count_down(static_cast<std::ptrdiff_t>(events.finished.size()));
    }
    std::atomic<std::size_t> tokens = 0;
    std::latch all_ended{requests};
};

// Counts from the last row that the network computes to the start of its next step: what lies in
// between is the engine's.
struct Counter {
    std::size_t at_the_end_of_a_step = 0;
    std::size_t rows = 0, allocations = 0, steps = 0;
    bool decoding = false;

    void before(const ops::RowBatch& batch) {
        // From the second decode step on: the first one may still grow lists to its size.
        const bool all_decode =
            batch.numeric_class == ops::NumericClass::decode && batch.sequences.size() == requests;
        if (decoding && all_decode) {
            allocations += tests::allocations - at_the_end_of_a_step;
            ++steps;
        }
        decoding = all_decode && warm++ >= 1;
        rows = 0;
    }
    void after_a_row() {
        if (++rows == requests) at_the_end_of_a_step = tests::allocations;
    }
    std::size_t warm = 0;
};

TEST(Allocations, AStepOfDecodingMakesNone) {
    Counter counter;
    std::latch all_submitted{1};  // or the first might end before the last begins
    auto network = std::make_unique<FakeNetwork>();
    network->before_forward = [&](const ops::RowBatch& batch) {
        all_submitted.wait();
        counter.before(batch);
        return Status();
    };
    network->spoil = [&counter](TokenId, std::span<float>) { counter.after_a_row(); };
    Waiting sink;
    {
        LocalEngineOptions options = fake_options(40, requests);
        options.scheduler.decode_share = 0;  // nobody decodes before all prompts are computed
        const auto engine = make_fake_engine(options, std::move(network));
        std::mt19937 random(5);
        for (std::uint32_t i = 0; i < requests; ++i) {
            GenerationRequest request;
            for (std::uint32_t token = 0; token < 60 + i; ++token) {
                request.prompt.push_back(TokenId(static_cast<int>(random() % 40)));
            }
            request.sampling.seed = i;
            request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
            request.max_tokens = 200;  // over several pages
            request.min_tokens = 200;
            request.loop_guard = true;  // looks on, and keeps tokens
            ASSERT_TRUE(engine->submit(std::move(request), sink).ok());
        }
        all_submitted.count_down();
        sink.all_ended.wait();
    }
    EXPECT_EQ(sink.tokens, requests * 200u);
    EXPECT_GE(counter.steps, 150u);
    EXPECT_EQ(counter.allocations, 0u);
}

}  // namespace
}  // namespace percheron::engine::testing
