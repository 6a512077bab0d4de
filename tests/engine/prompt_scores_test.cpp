// Log-probs of the prompt's own tokens: what the network alone gives, whatever else runs, however
// the prompt is cut.
#include <atomic>
#include <random>

#include <gtest/gtest.h>

#include "engine/fake_network.h"
#include "engine/reply_collector.h"

namespace percheron::engine::testing {
namespace {

std::vector<TokenId> random_prompt(std::mt19937& random, std::uint32_t tokens) {
    std::vector<TokenId> prompt;
    for (std::uint32_t i = 0; i < tokens; ++i)
        prompt.push_back(TokenId(static_cast<int>(random() % 40)));
    return prompt;
}

// Of every token but the first, after the history before it.
std::vector<EngineEvents::Logprobs> expected_scores(const std::vector<TokenId>& prompt, int top) {
    std::vector<EngineEvents::Logprobs> scores;
    const std::vector<TokenId> banned = {fake_banned};
    sampling::Sampler sampler(fake_vocabulary);
    History history;
    for (std::size_t position = 0; position + 1 < prompt.size(); ++position) {
        history.add(prompt[position], ops::NumericClass::prefill);
        std::array<float, fake_vocabulary> logits{};
        for (std::uint32_t token = 0; token < fake_vocabulary; ++token)
            logits[token] = fake_logit(history.hash(), token);
        EXPECT_TRUE(sampler
                        .log_probabilities(logits, prompt[position + 1],
                                           static_cast<std::size_t>(top), banned,
                                           scores.emplace_back())
                        .ok());
    }
    return scores;
}

void expect_same(const std::vector<EngineEvents::Logprobs>& got,
                 const std::vector<EngineEvents::Logprobs>& wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].chosen, wanted[i].chosen) << i;
        ASSERT_EQ(got[i].top.size(), wanted[i].top.size()) << i;
        for (std::size_t k = 0; k < got[i].top.size(); ++k) {
            ASSERT_EQ(got[i].top[k].id, wanted[i].top[k].id) << i;
            ASSERT_EQ(got[i].top[k].logprob, wanted[i].top[k].logprob) << i;
        }
    }
}

// A crowd of scored and unscored prompts in a pool too small for all: chunks, batches and
// preemptions happen, and nobody's scores or tokens show it.
TEST(PromptScores, AreThoseOfThePromptAloneInAnyCrowd) {
    std::mt19937 random(7);
    std::atomic<std::uint32_t> preempted = 0;
    std::atomic<std::uint32_t> crowded_steps = 0;
    for (const std::uint32_t rows : {64u, 128u, 320u}) {
        LocalEngineOptions options = fake_options(14, 6);
        options.scheduler.prefill_rows = rows;
        options.on_step = [&](const StepRecord& record) {
            preempted += record.preempted;
            crowded_steps += record.sequences > 1 ? 1 : 0;
        };
        const auto engine = make_fake_engine(std::move(options));
        ReplyCollector collector;
        std::vector<GenerationRequest> requests;
        std::vector<RequestId> ids;
        for (const std::uint32_t tokens : {1u, 2u, 63u, 64u, 65u, 127u, 130u, 200u, 333u, 450u}) {
            GenerationRequest request;
            request.prompt = random_prompt(random, tokens);
            request.prompt_logprobs = static_cast<int>(random() % 6) - 1;
            request.sampling.seed = tokens;
            request.max_tokens = 1 + random() % 400;
            request.ignore_eos = true;
            requests.push_back(request);
            ids.push_back(engine->submit(std::move(request), collector).value());
        }
        collector.wait_for(ids.size());
        EXPECT_EQ(collector.complaint(), "");
        for (std::size_t i = 0; i < ids.size(); ++i) {
            SCOPED_TRACE(std::to_string(requests[i].prompt.size()) + " tokens, steps of " +
                         std::to_string(rows));
            const CollectedReply reply = collector.reply(ids[i]);
            const int top = requests[i].prompt_logprobs;
            expect_same(reply.prompt_scores, top < 0 ? std::vector<EngineEvents::Logprobs>()
                                                     : expected_scores(requests[i].prompt, top));
            EXPECT_EQ(reply.tokens,
                      expected_reply(requests[i], requests[i].prompt.size(), 0, 14 * 64).tokens);
        }
    }
    EXPECT_GT(preempted, 0u);
    EXPECT_GT(crowded_steps, 10u);
}

TEST(PromptScores, ComeOnceForAllChoicesAndNeverFromTheCache) {
    std::mt19937 random(8);
    const auto engine = make_fake_engine(fake_options(40, 4));
    GenerationRequest request;
    request.prompt = random_prompt(random, 150);
    request.prompt_logprobs = 2;
    request.choices = 3;
    request.max_tokens = 3;
    for (int round = 0; round < 2; ++round) {
        ReplyCollector collector;
        const RequestId id = engine->submit(request, collector).value();
        collector.wait_for(3);
        EXPECT_EQ(collector.complaint(), "");
        expect_same(collector.reply(id).prompt_scores, expected_scores(request.prompt, 2));
        for (std::uint32_t choice = 0; choice < 3; ++choice)
            EXPECT_EQ(collector.reply(id, choice).finished->statistics.cached_tokens, 0u);
    }
}

TEST(PromptScores, RangesAreRefusedByName) {
    const auto engine = make_fake_engine(fake_options(10, 2));
    ReplyCollector collector;
    for (const int wrong : {-2, 21, 1000}) {
        GenerationRequest request;
        request.prompt = {TokenId(1), TokenId(2)};
        request.prompt_logprobs = wrong;
        const auto result = engine->submit(request, collector);
        ASSERT_FALSE(result.ok());
        EXPECT_EQ(result.error().reason(), reasons::invalid_value);
        EXPECT_EQ(result.error().message().find("prompt_logprobs"), 0u);
    }
}

}  // namespace
}  // namespace percheron::engine::testing
