// Speculation in the engine, over the network of hashes: who proposes well is believed, who
// proposes badly changes nothing and is named, and nobody drafts where it is not wanted.
#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/logging.h"
#include "engine/fake_network.h"
#include "engine/guessing_proposer.h"
#include "engine/reply_collector.h"

namespace percheron::engine::testing {
namespace {

LocalEngineOptions drafting_options(std::uint32_t depth) {
    LocalEngineOptions options = fake_options(60, 8);
    options.draft.depth = depth;
    options.scheduler.draft_rows = 8 * depth;
    return options;
}

GenerationRequest request_of(unsigned seed, std::uint32_t prompt, std::uint32_t output) {
    std::mt19937 random(seed);
    GenerationRequest request;
    for (std::uint32_t i = 0; i < prompt; ++i) {
        request.prompt.push_back(TokenId(static_cast<int>(random() % 40)));
    }
    request.sampling.seed = seed;
    request.ignore_eos = true;
    request.max_tokens = output;
    return request;
}

// A proposer that draws as the engine does, from the logits the trunk will have, is always right:
// penalties, bias, masks, nucleus and noise are those of the draft's position.
TEST(Drafting, WhoDrawsAlikeFromTheSameLogitsIsAlwaysRight) {
    for (const std::uint32_t depth : {1u, 3u, 7u}) {
        const auto engine = make_fake_engine(drafting_options(depth), {}, true,
                                             std::make_unique<GuessingProposer>(0.0, depth));
        ReplyCollector collector;
        std::vector<GenerationRequest> requests;
        std::vector<RequestId> ids;
        for (unsigned kind = 0; kind < 8; ++kind) {
            GenerationRequest request = request_of(40 + kind, 50 + 13 * kind, 150);
            SamplingParameters& sampling = request.sampling;
            sampling.temperature = kind == 0 ? 0.0f : 0.9f;
            if (kind == 1 || kind == 7) sampling.repetition_penalty = 1.3f;
            if (kind == 2 || kind == 7) sampling.frequency_penalty = 0.4f;
            if (kind == 3 || kind == 7) sampling.logit_bias = {{TokenId(3), 4.0f}};
            if (kind == 4 || kind == 7) sampling.top_p = 0.7f;
            if (kind == 5) {
                request.ignore_eos = false;
                request.min_tokens = 120;
            }
            if (kind == 6) insert_image(request, fake_image_of(2, 6, 5), 9);
            requests.push_back(request);
            ids.push_back(engine->submit(request, collector).value());
        }
        collector.wait_for(requests.size());
        for (std::size_t i = 0; i < requests.size(); ++i) {
            const CollectedReply reply = collector.reply(ids[i]);
            EXPECT_EQ(reply.tokens, expected_reply(requests[i], *reply.seed, 0, 60 * 64).tokens);
            const ChoiceStatistics& statistics = reply.finished->statistics;
            EXPECT_GT(statistics.drafted_tokens, 50u) << i;
            // What ends a reply may leave drafts unlooked at, and a token that is forced is not
            // drawn.
            EXPECT_LE(statistics.drafted_tokens - statistics.accepted_tokens, i == 5 ? depth : 0u)
                << "kind " << i;
            EXPECT_EQ(statistics.proposer, "guess");
        }
        EXPECT_EQ(collector.complaint(), "");
    }
}

TEST(Drafting, ARequestThatDoesWithoutIsNotDraftedBesideOthersThatAre) {
    const auto engine = make_fake_engine(drafting_options(4), {}, false,
                                         std::make_unique<GuessingProposer>(0.2, 1));
    ReplyCollector collector;
    GenerationRequest without = request_of(1, 70, 100), with = request_of(2, 70, 100);
    without.draft = false;
    const RequestId first = engine->submit(without, collector).value();
    const RequestId second = engine->submit(with, collector).value();
    collector.wait_for(2);
    EXPECT_EQ(collector.reply(first).finished->statistics.draft_rounds, 0u);
    EXPECT_EQ(collector.reply(first).finished->statistics.proposer, "");
    EXPECT_GT(collector.reply(second).finished->statistics.accepted_tokens, 20u);
    EXPECT_EQ(collector.reply(first).tokens,
              expected_reply(without, *without.sampling.seed, 0, 60 * 64).tokens);
}

// Log-probabilities are the trunk's, one entry a token, also for tokens that were drafted.
TEST(Drafting, LogprobsAreThoseOfTheUndraftedReply) {
    GenerationRequest request = request_of(8, 40, 120);
    request.sampling.top_logprobs = 3;
    std::vector<EngineEvents::Logprobs> plain;
    for (const std::uint32_t depth : {0u, 5u}) {
        const auto engine = make_fake_engine(drafting_options(depth), {}, false,
                                             std::make_unique<GuessingProposer>(0.3, 1));
        ReplyCollector collector;
        const RequestId id = engine->submit(request, collector).value();
        collector.wait_for(1);
        const CollectedReply reply = collector.reply(id);
        ASSERT_EQ(reply.logprobs.size(), reply.tokens.size());
        if (depth == 0) {
            plain = reply.logprobs;
            EXPECT_EQ(reply.finished->statistics.draft_rounds, 0u);
            continue;
        }
        EXPECT_LT(collector.calls(), 100u) << "several tokens a step";
        for (std::size_t i = 0; i < plain.size(); ++i) {
            EXPECT_EQ(reply.logprobs[i].chosen, plain[i].chosen);
            ASSERT_EQ(reply.logprobs[i].top.size(), plain[i].top.size());
            for (std::size_t k = 0; k < plain[i].top.size(); ++k) {
                EXPECT_EQ(reply.logprobs[i].top[k].id, plain[i].top[k].id);
                EXPECT_EQ(reply.logprobs[i].top[k].logprob, plain[i].top[k].logprob);
            }
        }
    }
}

// Everything a round decides at once is decided token by token: stops and limits in the middle of
// accepted drafts, and broken logits behind them.
TEST(Drafting, EndsFallWhereTheyWouldWithoutDrafts) {
    std::size_t stopped_inside = 0;
    for (unsigned seed = 0; seed < 60; ++seed) {
        const auto engine = make_fake_engine(drafting_options(7), {}, false,
                                             std::make_unique<GuessingProposer>(0.05, seed));
        ReplyCollector collector;
        GenerationRequest request = request_of(seed, 30 + seed, 20 + seed);
        request.ignore_eos = seed % 2 == 0;
        request.extra_stop_tokens = {TokenId(static_cast<int>(seed % 40))};
        const RequestId id = engine->submit(request, collector).value();
        collector.wait_for(1);
        const CollectedReply reply = collector.reply(id);
        const ExpectedReply expected = expected_reply(request, seed, 0, 60 * 64);
        EXPECT_EQ(reply.tokens, expected.tokens);
        EXPECT_EQ(reply.finished->reason, expected.reason);
        stopped_inside += expected.reason == FinishReason::stop_token ? 1 : 0;
    }
    EXPECT_GT(stopped_inside, 10u);
}

TEST(Drafting, BrokenLogitsBehindADraftEndTheChoiceAfterTheTokensBeforeThem) {
    GenerationRequest request = request_of(3, 40, 200);
    const ExpectedReply expected = expected_reply(request, 3, 0, 60 * 64);
    // The first token that has not come before it: behind it all logits are NaN.
    std::size_t place = 20;
    const auto before = [&](std::size_t i) {
        return std::find(expected.tokens.begin(), expected.tokens.begin() + static_cast<long>(i),
                         expected.tokens[i]) != expected.tokens.begin() + static_cast<long>(i);
    };
    while (place < expected.tokens.size() && before(place))
        ++place;
    ASSERT_LT(place, expected.tokens.size());
    auto network = std::make_unique<FakeNetwork>();
    const TokenId fatal = expected.tokens[place];
    network->spoil = [fatal](TokenId token, std::span<float> logits) {
        if (token == fatal) logits[0] = std::numeric_limits<float>::quiet_NaN();
    };
    request.prompt.erase(std::remove(request.prompt.begin(), request.prompt.end(), fatal),
                         request.prompt.end());
    const auto engine = make_fake_engine(drafting_options(6), std::move(network), false,
                                         std::make_unique<GuessingProposer>(0.0, 1));
    ReplyCollector collector;
    const RequestId id = engine->submit(request, collector).value();
    collector.wait_for(1);
    const CollectedReply reply = collector.reply(id);
    EXPECT_EQ(reply.finished->reason, FinishReason::failed);
    EXPECT_EQ(reply.tokens.back(), fatal);
    EXPECT_EQ(std::count(reply.tokens.begin(), reply.tokens.end(), fatal), 1);
}

class WarningKeeper final : public LogSink {
  public:
    WarningKeeper() { set_log_sink(this); }
    ~WarningKeeper() override { set_log_sink(nullptr); }
    void write(LogLevel level, std::string_view message) override {
        const std::lock_guard lock(mutex_);
        if (level == LogLevel::warning) warnings_.emplace_back(message);
    }
    std::vector<std::string> warnings() const {
        const std::lock_guard lock(mutex_);
        return warnings_;
    }

  private:
    mutable std::mutex mutex_;
    std::vector<std::string> warnings_;
};

// Names what can never be chosen.
class HopelessProposer final : public draft::Proposer {
  public:
    std::string_view name() const override { return "hopeless"; }
    void begin(RequestSlot) override {}
    Status propose(ops::NumericClass, std::span<draft::DraftSequence> sequences) override {
        for (draft::DraftSequence& sequence : sequences) {
            sequence.drafts->assign(sequence.most, fake_banned);
        }
        return {};
    }
};

TEST(Drafting, AProposerThatNeverHitsIsNamed) {
    for (const bool hopeless : {true, false}) {
        WarningKeeper keeper;
        std::unique_ptr<draft::Proposer> proposer;
        if (hopeless) {
            proposer = std::make_unique<HopelessProposer>();
        } else {
            proposer = std::make_unique<GuessingProposer>(0.8, 1);
        }
        const auto engine = make_fake_engine(drafting_options(4), {}, false, std::move(proposer));
        ReplyCollector collector;
        const GenerationRequest request = request_of(4, 40, 250);
        const RequestId id = engine->submit(request, collector).value();
        collector.wait_for(1);
        const CollectedReply reply = collector.reply(id);
        EXPECT_EQ(reply.tokens, expected_reply(request, 4, 0, 60 * 64).tokens);
        EXPECT_GT(reply.finished->statistics.drafted_tokens, 512u);
        ASSERT_EQ(keeper.warnings().size(), hopeless ? 1u : 0u);
        if (hopeless) {
            EXPECT_NE(keeper.warnings()[0].find("hopeless"), std::string::npos);
            EXPECT_EQ(reply.finished->statistics.accepted_tokens, 0u);
        }
    }
}

// The pages of drafts are taken only where a page for everybody stays free: no draft ever preempts.
TEST(Drafting, DraftsNeverCostAnybodyAPlace) {
    std::array<std::uint64_t, 2> preemptions{};
    for (const bool drafted : {false, true}) {
        LocalEngineOptions options = fake_options(9, 3);
        options.context_tokens = 6 * 64;
        if (drafted) {
            options.draft.depth = 7;
            options.scheduler.draft_rows = 21;
        }
        const auto engine =
            make_fake_engine(options, {}, false, std::make_unique<HopelessProposer>());
        ReplyCollector collector;
        GenerationRequest request = request_of(6, 64, 150);
        request.choices = 2;
        const RequestId id = engine->submit(request, collector).value();
        collector.wait_for(2);
        for (std::uint32_t choice = 0; choice < 2; ++choice) {
            EXPECT_EQ(collector.reply(id, choice).tokens,
                      expected_reply(request, 6, choice, 6 * 64).tokens);
        }
        preemptions[drafted] = engine->status().preemptions;
    }
    EXPECT_EQ(preemptions[1], preemptions[0]);
}

}  // namespace
}  // namespace percheron::engine::testing
