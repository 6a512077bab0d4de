// Progress of prompts, for requests that ask (S12 of docs/SCHEDULER.md).
#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "engine/fake_network.h"
#include "engine/reply_collector.h"

namespace percheron::engine::testing {
namespace {

GenerationRequest request_of(std::mt19937& random, std::uint32_t prompt) {
    GenerationRequest request;
    for (std::uint32_t i = 0; i < prompt; ++i)
        request.prompt.push_back(TokenId(static_cast<int>(random() % 40)));
    request.max_tokens = 1 + random() % 20;
    request.sampling.seed = random();
    request.report_progress = true;
    return request;
}

// Alone with chunks of two blocks, every chunk is told of: the first from the hit on.
TEST(Progress, IsToldAtTheAdmissionAndAfterEveryChunk) {
    std::mt19937 random(1);
    LocalEngineOptions options = fake_options(100, 1);
    options.scheduler.checkpoints = 100;
    const auto engine = make_fake_engine(options);
    ReplyCollector collector;
    std::size_t finished = 0, cached_prompts = 0;
    for (int round = 0; round < 40; ++round) {
        GenerationRequest request = request_of(random, 1 + random() % 1500);
        request.choices = 1 + random() % 3;
        for (const bool again : {false, true}) {
            const RequestId id = engine->submit(request, collector).value();
            finished += request.choices;
            collector.wait_for(finished);
            const CollectedReply reply = collector.reply(id);
            const auto total = static_cast<std::uint32_t>(request.prompt.size());
            ASSERT_GE(reply.progress.size(), 2u);
            EXPECT_EQ(reply.progress.front().done, reply.cached);
            EXPECT_EQ(reply.progress.back().done, total);
            for (std::size_t i = 1; i < reply.progress.size(); ++i) {
                EXPECT_EQ(reply.progress[i].total, total);
                EXPECT_LE(reply.progress[i].done - reply.progress[i - 1].done,
                          options.scheduler.prefill_rows);
            }
            const std::size_t chunks = (total - reply.cached + 127) / 128;
            EXPECT_GE(reply.progress.size(), 1 + chunks);
            cached_prompts += again && reply.cached > 0 ? 1 : 0;
        }
    }
    EXPECT_GT(cached_prompts, 30u);
    EXPECT_EQ(collector.complaint(), "");
}

// Preempted prompts are computed again; what was told stays told.  Whoever does not ask hears
// nothing.
TEST(Progress, RisesThroughPreemptionsAndIsLeftOutUnasked) {
    std::mt19937 random(2);
    std::uint64_t preempted = 0;
    LocalEngineOptions options = fake_options(9, 6);
    options.on_step = [&](const StepRecord& record) { preempted += record.preempted; };
    std::vector<std::pair<RequestId, GenerationRequest>> sent;
    ReplyCollector collector;
    {
        const auto engine = make_fake_engine(options);
        for (int i = 0; i < 60; ++i) {
            GenerationRequest request = request_of(random, 1 + random() % 200);
            request.max_tokens = 1 + random() % 200;
            request.ignore_eos = true;
            request.report_progress = i % 3 != 0;
            sent.emplace_back(engine->submit(request, collector).value(), request);
        }
        collector.wait_for(sent.size());
    }
    EXPECT_GT(preempted, 5u);
    EXPECT_EQ(collector.complaint(), "");
    for (const auto& [id, request] : sent) {
        const CollectedReply reply = collector.reply(id);
        EXPECT_EQ(reply.progress.empty(), !request.report_progress);
        if (!request.report_progress) continue;
        EXPECT_EQ(reply.progress.front().done, 0u);
        EXPECT_EQ(reply.progress.back().done, request.prompt.size());
    }
}

}  // namespace
}  // namespace percheron::engine::testing
