// The life of a choice: admission, tokens, its end for every reason, and what the engine holds
// afterwards (S6, S7, S8 of docs/SCHEDULER.md).
#include <atomic>
#include <cmath>
#include <latch>
#include <limits>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "engine/fake_network.h"
#include "engine/reply_collector.h"
#include "engine/request_check.h"
#include "support/quiet_log.h"

namespace percheron::engine::testing {
namespace {

// Failures are logged on purpose here.
GenerationRequest simple_request(std::uint32_t prompt, std::uint32_t output, unsigned seed = 1) {
    GenerationRequest request;
    std::mt19937 random(seed);
    for (std::uint32_t i = 0; i < prompt; ++i) {
        request.prompt.push_back(TokenId(static_cast<int>(random() % 40)));
    }
    request.sampling.seed = seed;
    request.max_tokens = output;
    request.ignore_eos = true;
    return request;
}

void expect_back_to_start(const Engine& engine) {
    const EngineStatus status = engine.status();
    EXPECT_EQ(status.running, 0u);
    EXPECT_EQ(status.waiting, 0u);
    EXPECT_EQ(status.kv_tokens_free, status.kv_tokens_total);
}

// Holds the step loop at the first step until opened, so that a test can arrange what waits.
struct Gate {
    std::latch open{1};
    std::latch reached{1};
    std::atomic<bool> closed = true;

    void hold(const StepRecord&) {
        if (closed.exchange(false)) {
            reached.count_down();
            open.wait();
        }
    }
};

TEST(Life, RangesAreRefusedByName) {
    const auto engine = make_fake_engine(fake_options(10, 2));
    ReplyCollector collector;
    const auto refused = [&](auto change, std::string_view reason) {
        GenerationRequest request = simple_request(10, 5);
        change(request);
        const auto result = engine->submit(std::move(request), collector);
        ASSERT_FALSE(result.ok());
        EXPECT_EQ(result.error().reason(), reason);
        EXPECT_FALSE(result.error().message().empty());
    };
    const float nan = std::nanf("");
    using R = GenerationRequest&;
    for (const float bad : {-0.1f, nan, std::numeric_limits<float>::infinity()}) {
        refused([&](R r) { r.sampling.temperature = bad; }, reasons::invalid_value);
    }
    for (const float bad : {0.0f, -1.0f, 1.01f, nan}) {
        refused([&](R r) { r.sampling.top_p = bad; }, reasons::invalid_value);
    }
    for (const float bad : {-0.1f, 1.0f, nan}) {
        refused([&](R r) { r.sampling.min_p = bad; }, reasons::invalid_value);
    }
    for (const float bad : {0.0f, -2.0f, nan}) {
        refused([&](R r) { r.sampling.repetition_penalty = bad; }, reasons::invalid_value);
    }
    for (const float bad : {-2.1f, 2.1f, nan}) {
        refused([&](R r) { r.sampling.presence_penalty = bad; }, reasons::invalid_value);
        refused([&](R r) { r.sampling.frequency_penalty = bad; }, reasons::invalid_value);
    }
    refused([](R r) { r.sampling.top_k = -1; }, reasons::invalid_value);
    refused([](R r) { r.sampling.top_logprobs = 21; }, reasons::invalid_value);
    refused([&](R r) { r.sampling.logit_bias = {{TokenId(3), nan}}; }, reasons::invalid_value);
    refused([](R r) { r.sampling.logit_bias = {{TokenId(48), 1.0f}}; }, reasons::invalid_value);
    refused([](R r) { r.prompt.clear(); }, reasons::invalid_value);
    refused([](R r) { r.prompt[3] = TokenId(48); }, reasons::invalid_value);
    refused([](R r) { r.prompt[3] = TokenId(-1); }, reasons::invalid_value);
    refused([](R r) { r.extra_stop_tokens = {TokenId(99)}; }, reasons::invalid_value);
    refused([](R r) { r.max_tokens = 0; }, reasons::invalid_value);
    refused([](R r) { r.choices = 0; }, reasons::invalid_value);
    refused([](R r) { r.choices = 1'000'000; }, reasons::invalid_value);
    refused([](R r) { r.min_tokens = 6; }, reasons::invalid_value);
    const auto canvas = std::make_shared<const ImageCanvas>();
    refused([&](R r) { r.images = {{2, 4, 4, 4, canvas, {}}}; }, reasons::unsupported_parameter);
    EXPECT_EQ(collector.calls(), 0u);
    EXPECT_TRUE(engine->submit(simple_request(10, 5), collector).ok());
    collector.wait_for(1);
}

// A11 and A20: the limit to the token, both numbers in the message, and the next one served.
TEST(Life, WhatCanNeverFitIsRefusedAtOnce) {
    LocalEngineOptions options = fake_options(10, 2);
    options.context_tokens = 600;
    const auto engine = make_fake_engine(options);
    ReplyCollector collector;
    for (const auto& [prompt, output] :
         {std::pair{601u, 1u}, {600u, 1u}, {500u, 101u}, {1u, 600u}}) {
        const auto result = engine->submit(simple_request(prompt, output), collector);
        ASSERT_FALSE(result.ok());
        EXPECT_EQ(result.error().reason(), reasons::context_length_exceeded);
        EXPECT_NE(result.error().message().find(std::to_string(prompt)), std::string::npos);
        EXPECT_NE(result.error().message().find("600"), std::string::npos);
    }
    const RequestId exact = engine->submit(simple_request(500, 100), collector).value();
    GenerationRequest open = simple_request(500, 1);
    open.max_tokens.reset();
    const RequestId rest = engine->submit(open, collector).value();
    collector.wait_for(2);
    EXPECT_EQ(collector.reply(exact).tokens.size(), 100u);
    EXPECT_EQ(collector.reply(exact).finished->reason, FinishReason::max_tokens);
    EXPECT_EQ(collector.reply(rest).tokens.size(), 100u);
    EXPECT_EQ(collector.reply(rest).finished->reason, FinishReason::context);
    expect_back_to_start(*engine);
}

TEST(Life, AFullWaitingListIsSaidByName) {
    Gate gate;
    LocalEngineOptions options = fake_options(20, 2);
    options.max_queued = 3;
    options.on_step = [&](const StepRecord& record) { gate.hold(record); };
    const auto engine = make_fake_engine(options);
    ReplyCollector collector;
    ASSERT_TRUE(engine->submit(simple_request(10, 50), collector).ok());
    gate.reached.wait();
    for (int i = 0; i < 4; ++i) {
        ASSERT_TRUE(engine->submit(simple_request(10, 50), collector).ok());
    }
    const auto refused = engine->submit(simple_request(10, 50), collector);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::unavailable);
    EXPECT_EQ(refused.error().reason(), reasons::queue_full);
    EXPECT_EQ(engine->status().running + engine->status().waiting, 5u);
    gate.open.count_down();
    collector.wait_for(5);
    ASSERT_TRUE(engine->submit(simple_request(10, 50), collector).ok());
    collector.wait_for(6);
    EXPECT_EQ(collector.complaint(), "");
}

TEST(Life, SeedsAreGivenReportedAndRepeatable) {
    GenerationRequest request = simple_request(30, 40);
    request.sampling.seed.reset();
    request.choices = 2;
    ReplyCollector collector;
    const auto engine = make_fake_engine(fake_options(20, 4));
    const RequestId first = engine->submit(request, collector).value();
    const RequestId second = engine->submit(request, collector).value();
    collector.wait_for(4);
    const CollectedReply reply = collector.reply(first, 0);
    EXPECT_EQ(*reply.seed, *collector.reply(first, 1).seed);
    EXPECT_NE(*reply.seed, *collector.reply(second, 0).seed);
    EXPECT_LT(*reply.seed, std::uint64_t{1} << 53);
    EXPECT_LT(*collector.reply(second, 0).seed, std::uint64_t{1} << 53);
    EXPECT_NE(reply.tokens, collector.reply(first, 1).tokens);
    EXPECT_NE(reply.tokens, collector.reply(second, 0).tokens);
    request.sampling.seed = reply.seed;
    const RequestId again = engine->submit(request, collector).value();
    collector.wait_for(6);
    EXPECT_EQ(collector.reply(again, 0).tokens, reply.tokens);
    EXPECT_EQ(collector.reply(again, 1).tokens, collector.reply(first, 1).tokens);

    // --seed makes the given seeds repeatable.
    std::vector<std::uint64_t> seeds;
    for (int run = 0; run < 2; ++run) {
        LocalEngineOptions options = fake_options(20, 4);
        options.seed = 5;
        const auto seeded = make_fake_engine(options);
        ReplyCollector sink;
        GenerationRequest unseeded = simple_request(5, 3);
        unseeded.sampling.seed.reset();
        const RequestId id = seeded->submit(unseeded, sink).value();
        sink.wait_for(1);
        seeds.push_back(*sink.reply(id).seed);
    }
    EXPECT_EQ(seeds[0], seeds[1]);
}

TEST(Life, ABudgetClosesTheThinkingAndAnAnswerFollows) {
    const auto engine = make_fake_engine(fake_options(40, 8));
    std::ptrdiff_t opened = 0;
    for (const std::uint32_t budget : {0u, 1u, 7u, 50u}) {
        for (unsigned seed = 0; seed < 30; ++seed) {
            GenerationRequest request = simple_request(20 + seed, 120, seed);
            request.prompt.back() = fake_think_open;
            request.thinking_budget = budget;
            // Nothing but the budget closes the block.  Opening tags inside it, of which some
            // replies are full, count like its other tokens; none opens it again.
            const bool opens = seed % 2 == 1 && budget > 0;
            request.sampling.logit_bias = {{fake_think_close, -1000.0f},
                                           {fake_think_open, opens ? 4.0f : -1000.0f}};
            if (opens) request.max_tokens = budget + 1;
            ReplyCollector collector;
            const RequestId id = engine->submit(request, collector).value();
            collector.wait_for(1);
            const std::vector<TokenId> tokens = collector.reply(id).tokens;
            ASSERT_EQ(tokens.size(), opens ? budget + 1 : 120u);
            EXPECT_EQ(tokens.at(budget), fake_think_close);
            EXPECT_EQ(std::count(tokens.begin(), tokens.end(), fake_think_close), 1);
            opened += std::count(tokens.begin(), tokens.end(), fake_think_open);
        }
    }
    EXPECT_GT(opened, 20);
    // Whoever is not thinking is left alone.
    GenerationRequest request = simple_request(20, 60);
    request.thinking_budget = 0;
    request.sampling.logit_bias = {{fake_think_close, -1000.0f}, {fake_think_open, -1000.0f}};
    ReplyCollector collector;
    const RequestId id = engine->submit(request, collector).value();
    collector.wait_for(1);
    const std::vector<TokenId> tokens = collector.reply(id).tokens;
    EXPECT_EQ(std::count(tokens.begin(), tokens.end(), fake_think_close), 0);
}

TEST(Life, EveryStopIdIsMaskedUntilMinTokensAndForeverUnderIgnoreEos) {
    const auto engine = make_fake_engine(fake_options(40, 8));
    int ended_by_extra = 0;
    for (unsigned seed = 0; seed < 60; ++seed) {
        GenerationRequest request = simple_request(10 + seed, 150, seed);
        request.ignore_eos = seed % 3 == 0;
        request.min_tokens = seed % 20;
        request.extra_stop_tokens = {TokenId(7)};
        // Stop ids are what the logits want most.
        request.sampling.logit_bias = {
            {fake_stop, 4.0f}, {fake_second_stop, 4.0f}, {TokenId(7), 4.0f}};
        ReplyCollector collector;
        const RequestId id = engine->submit(request, collector).value();
        collector.wait_for(1);
        const CollectedReply reply = collector.reply(id);
        std::size_t stops = 0;
        for (const TokenId token : reply.tokens) {
            stops += token == fake_stop || token == fake_second_stop || token == TokenId(7) ? 1 : 0;
        }
        if (request.ignore_eos) {
            EXPECT_EQ(stops, 0u);
            EXPECT_EQ(reply.tokens.size(), 150u);
        } else {
            EXPECT_EQ(stops, 1u);  // the one that ended it
            EXPECT_GT(reply.tokens.size(), request.min_tokens);
            EXPECT_EQ(reply.finished->reason, FinishReason::stop_token);
            ended_by_extra += reply.tokens.back() == TokenId(7) ? 1 : 0;
        }
    }
    EXPECT_GT(ended_by_extra, 0);
}

TEST(Life, LogprobsComeWithEveryTokenThatAsksForThem) {
    const auto engine = make_fake_engine(fake_options(40, 8));
    ReplyCollector collector;
    std::vector<RequestId> ids;
    for (int top : {-1, 0, 5, 20}) {
        GenerationRequest request = simple_request(30, 25, 3);
        request.sampling.top_logprobs = top;
        ids.push_back(engine->submit(request, collector).value());
    }
    collector.wait_for(4);
    EXPECT_TRUE(collector.reply(ids[0]).logprobs.empty());
    for (std::size_t i = 1; i < 4; ++i) {
        const CollectedReply reply = collector.reply(ids[i]);
        EXPECT_EQ(reply.tokens, collector.reply(ids[0]).tokens);
        ASSERT_EQ(reply.logprobs.size(), reply.tokens.size());
        for (const EngineEvents::Logprobs& logprobs : reply.logprobs) {
            ASSERT_EQ(logprobs.top.size(), std::vector<std::size_t>({0, 0, 5, 20})[i]);
            ASSERT_LT(logprobs.chosen, 0.0f);
            for (const TokenLogprob& entry : logprobs.top) {
                ASSERT_NE(entry.id, fake_banned);
            }
        }
    }
}

// Broken logits end one choice by name; those beside it go on as if nothing were.
TEST(Life, ANumericalFaultEndsOneRequestByName) {
    const tests::QuietLog quiet;
    for (const float poison : {std::nanf(""), std::numeric_limits<float>::infinity(), 0.0f}) {
        auto network = std::make_unique<FakeNetwork>();
        std::atomic<int> spoilt = 0;
        network->spoil = [&, poison](TokenId token, std::span<float> logits) {
            if (token == TokenId(44)) {  // only the marked request's prompt ends with it
                ++spoilt;
                if (poison == 0.0f) {
                    std::fill(logits.begin(), logits.end(), 1.0f);
                } else {
                    logits[17] = poison;
                }
            }
        };
        const auto engine = make_fake_engine(fake_options(40, 8), std::move(network));
        ReplyCollector collector;
        std::vector<GenerationRequest> requests;
        std::vector<RequestId> ids;
        for (unsigned i = 0; i < 6; ++i) {
            requests.push_back(simple_request(70 + i, 60, i));
            requests.back().sampling.logit_bias = {{TokenId(44), -1000.0f}};
            if (i == 3) {
                requests.back().prompt.back() = TokenId(44);
            }
            ids.push_back(engine->submit(requests.back(), collector).value());
        }
        collector.wait_for(6);
        EXPECT_EQ(spoilt, 1);
        for (std::size_t i = 0; i < 6; ++i) {
            const CollectedReply reply = collector.reply(ids[i]);
            if (i == 3) {
                EXPECT_EQ(reply.finished->reason, FinishReason::failed);
                EXPECT_EQ(reply.finished->error->reason(), reasons::numerical_fault);
                EXPECT_EQ(reply.finished->error->code(), ErrorCode::internal);
                EXPECT_TRUE(reply.tokens.empty());
            } else {
                EXPECT_EQ(reply.tokens, expected_reply(requests[i], i, 0, 40 * 64).tokens);
            }
        }
        EXPECT_TRUE(engine->status().alive);
        expect_back_to_start(*engine);
    }
}

TEST(Life, ADeadStepLoopTellsEverybodyAndRefusesTheNext) {
    const tests::QuietLog quiet;
    for (const int steps_before : {0, 1, 5}) {
        auto network = std::make_unique<FakeNetwork>();
        int step = 0;
        network->before_forward = [&](const ops::RowBatch&) -> Status {
            if (step++ < steps_before) {
                return {};
            }
            return Error(ErrorCode::internal, "the device is gone");
        };
        const auto engine = make_fake_engine(fake_options(40, 2), std::move(network));
        ReplyCollector collector;
        std::vector<RequestId> ids;
        for (unsigned i = 0; i < 5; ++i) {
            if (const auto id = engine->submit(simple_request(70, 60, i), collector); id.ok()) {
                ids.push_back(*id);
            }
        }
        collector.wait_for(ids.size());
        for (const RequestId id : ids) {
            const CollectedReply reply = collector.reply(id);
            EXPECT_EQ(reply.finished->reason, FinishReason::failed);
            EXPECT_EQ(reply.finished->error->reason(), reasons::engine_dead);
        }
        EXPECT_EQ(collector.complaint(), "");
        EXPECT_FALSE(engine->status().alive);
        EXPECT_NE(engine->status().failure.find("device is gone"), std::string::npos);
        const auto refused = engine->submit(simple_request(5, 5), collector);
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().reason(), reasons::engine_dead);
    }
}

TEST(Life, DeadlinesEndWhatRunsAndWhatWaits) {
    LocalEngineOptions options = fake_options(100, 1);
    const auto deadline = Clock::now() + std::chrono::milliseconds(20);
    int step = 0;
    options.on_step = [&](const StepRecord&) {
        while (++step == 10 && Clock::now() < deadline) {
            --step;
        }
    };
    const auto engine = make_fake_engine(options);
    ReplyCollector collector;
    GenerationRequest running = simple_request(30, 6000);
    running.deadline = deadline;
    GenerationRequest late = simple_request(30, 10);
    late.deadline = Clock::now();
    const RequestId first = engine->submit(running, collector).value();
    const RequestId second = engine->submit(late, collector).value();
    const RequestId third = engine->submit(simple_request(30, 10), collector).value();
    collector.wait_for(3);
    EXPECT_EQ(collector.reply(first).finished->reason, FinishReason::deadline);
    EXPECT_LT(collector.reply(first).tokens.size(), 6000u);
    EXPECT_EQ(collector.reply(second).finished->reason, FinishReason::deadline);
    EXPECT_EQ(collector.reply(second).tokens.size(), 0u);
    EXPECT_EQ(collector.reply(third).finished->reason, FinishReason::max_tokens);
    EXPECT_EQ(collector.complaint(), "");
    expect_back_to_start(*engine);
}

// A23: at any moment, from another thread, also twice, also for requests that are gone.
TEST(Life, AThousandCancelsAtRandomMomentsLeaveNothingBehind) {
    std::mt19937 random(31);
    const auto engine = make_fake_engine(fake_options(30, 4));
    ReplyCollector collector;
    std::size_t choices = 0;
    std::vector<RequestId> ids;
    for (int i = 0; i < 1000; ++i) {
        GenerationRequest request =
            simple_request(1 + random() % 300, 1 + random() % 200, random() % 1000);
        request.choices = 1 + random() % 2;
        const auto id = engine->submit(request, collector);
        ASSERT_TRUE(id.ok());
        ids.push_back(*id);
        choices += request.choices;
        if (random() % 4 == 0) {
            collector.wait_for_tokens(random() % 3000, choices);
        }
        engine->cancel(ids[random() % ids.size()],
                       random() % 3 == 0 ? random() % 3 : Engine::all_choices);
        engine->cancel(*id, random() % 4 == 0 ? 0 : Engine::all_choices);
        engine->cancel(RequestId(random()), Engine::all_choices);
        if (choices - collector.finished() > 500) {
            collector.wait_for(choices);
        }
    }
    for (const RequestId id : ids) {
        engine->cancel(id, Engine::all_choices);
    }
    collector.wait_for(choices);
    EXPECT_EQ(collector.finished(), choices);
    EXPECT_EQ(collector.complaint(), "");
    expect_back_to_start(*engine);
    // The next request is served.
    const GenerationRequest next = simple_request(100, 50, 4);
    const RequestId id = engine->submit(next, collector).value();
    collector.wait_for(choices + 1);
    EXPECT_EQ(collector.reply(id).tokens, expected_reply(next, 4, 0, 30 * 64).tokens);
}

TEST(Life, DestroyingABusyEngineIsSafe) {
    std::mt19937 random(32);
    for (int repeat = 0; repeat < 200; ++repeat) {
        ReplyCollector collector;
        {
            const auto engine = make_fake_engine(fake_options(30, 4));
            const std::uint32_t count = 1 + random() % 8;
            for (std::uint32_t i = 0; i < count; ++i) {
                ASSERT_TRUE(engine->submit(simple_request(200, 500, i), collector).ok());
            }
            collector.wait_for_tokens(random() % 200, count);
        }
        EXPECT_EQ(collector.complaint(), "");
    }
}

TEST(Life, StepsArriveAsOneCallEach) {
    std::latch all_submitted(1);
    std::uint64_t steps = 0;
    LocalEngineOptions options = fake_options(60, 8);
    options.scheduler.decode_share = 0;
    options.on_step = [&](const StepRecord&) {
        all_submitted.wait();
        ++steps;
    };
    const auto engine = make_fake_engine(options);
    ReplyCollector collector;
    for (unsigned i = 0; i < 8; ++i) {
        ASSERT_TRUE(engine->submit(simple_request(60, 100, i), collector).ok());
    }
    all_submitted.count_down();
    collector.wait_for(8);
    EXPECT_LE(collector.calls(), steps);
    EXPECT_LT(steps, 8u * 100u / 4u);
}

TEST(Life, OptionsThatContradictEachOtherAreRefused) {
    const auto refused = [](auto change) {
        LocalEngineOptions options = fake_options(10, 2);
        change(options);
        NetworkParts parts;
        parts.backend = std::make_unique<cache::testing::FakeBackend>();
        parts.network = std::make_unique<FakeNetwork>();
        const auto engine = make_local_engine(std::move(parts), std::move(options));
        return !engine.ok() && engine.error().code() == ErrorCode::invalid_argument;
    };
    EXPECT_TRUE(refused([](LocalEngineOptions& o) { o.context_tokens = 641; }));
    EXPECT_TRUE(refused([](LocalEngineOptions& o) { o.context_tokens = 1; }));
    EXPECT_TRUE(refused([](LocalEngineOptions& o) { o.banned_tokens = {TokenId(48)}; }));
    EXPECT_TRUE(refused([](LocalEngineOptions& o) { o.stop_tokens = {TokenId(-1)}; }));
    EXPECT_TRUE(refused([](LocalEngineOptions& o) {
        o.think_tags = ThinkTags{TokenId(1), TokenId(48)};
    }));
    EXPECT_FALSE(refused([](LocalEngineOptions&) {}));
}

}  // namespace
}  // namespace percheron::engine::testing
