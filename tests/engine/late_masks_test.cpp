// Masks are worked out beside the trunk (M1 to M4 of docs/SCHEDULER.md): one that is late holds up
// its own reply alone, and no id depends on when it comes.  No clock: a mask is late because it
// waits for the test.
#include <atomic>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/fake_network.h"
#include "engine/guessing_proposer.h"
#include "engine/reply_collector.h"

namespace percheron::engine::testing {
namespace {

// A FakeGrammar whose masks are worked out when `may_fill` returns.
class SlowGrammar final : public OutputGrammar {
  public:
    using MayFill = std::function<void(std::size_t masks_before)>;
    SlowGrammar(std::shared_ptr<const OutputGrammar> inner, MayFill may_fill)
        : inner_(std::move(inner)), may_fill_(std::move(may_fill)) {}

    std::unique_ptr<TokenConstraint> start() const override {
        return std::make_unique<Slow>(inner_->start(), may_fill_);
    }

  private:
    class Slow final : public TokenConstraint {
      public:
        Slow(std::unique_ptr<TokenConstraint> inner, const MayFill& may_fill)
            : inner_(std::move(inner)), may_fill_(may_fill) {}
        Status fill(std::span<std::uint32_t> allowed) override {
            may_fill_(masks_++);
            return inner_->fill(allowed);
        }
        bool accept(TokenId token) override { return inner_->accept(token); }
        void roll_back(std::size_t count) override { inner_->roll_back(count); }

      private:
        std::unique_ptr<TokenConstraint> inner_;
        MayFill may_fill_;
        std::size_t masks_ = 0;
    };

    std::shared_ptr<const OutputGrammar> inner_;
    MayFill may_fill_;
};

GenerationRequest request_of(std::mt19937& random, std::uint32_t prompt, std::uint32_t output) {
    GenerationRequest request;
    for (std::uint32_t i = 0; i < prompt; ++i)
        request.prompt.push_back(TokenId(static_cast<int>(random() % 40)));
    request.max_tokens = output;
    request.sampling.seed = random();
    return request;
}

// A gate that is closed until the test opens it.
struct Gate {
    std::atomic<bool> open = false, reached = false;
    void pass() {
        reached = true;
        reached.notify_all();
        open.wait(false);
    }
    void let_go() {
        open = true;
        open.notify_all();
    }
};

TEST(LateMasks, OneThatNeverComesStopsNobodyElse) {
    for (const std::size_t blocked_at : {0u, 1u, 7u}) {
        std::mt19937 random(static_cast<unsigned>(blocked_at));
        const auto engine = make_fake_engine(fake_options(60, 8));
        Gate gate;
        GenerationRequest slow = request_of(random, 90, 60);
        slow.min_tokens = 20;
        const auto plain = fake_grammar(5, 50);
        slow.grammar = std::make_shared<SlowGrammar>(plain, [&](std::size_t mask) {
            if (mask == blocked_at) gate.pass();
        });
        ReplyCollector waiting, others;
        const RequestId slow_id = engine->submit(slow, waiting).value();
        gate.reached.wait(false);
        // Of every kind: without a grammar, with one, long prompts, and later ones.
        std::vector<std::pair<RequestId, GenerationRequest>> sent;
        for (int i = 0; i < 20; ++i) {
            GenerationRequest request = request_of(random, 20 + random() % 400, 80);
            request.ignore_eos = i % 2 == 0;
            if (i % 3 == 0) request.grammar = fake_grammar(random(), 60);
            sent.emplace_back(engine->submit(request, others).value(), request);
        }
        others.wait_for(sent.size());
        for (const auto& [id, request] : sent) {
            EXPECT_EQ(others.reply(id).tokens,
                      expected_reply(request, *request.sampling.seed, 0, 60 * 64).tokens);
        }
        EXPECT_EQ(waiting.finished(), 0u);
        EXPECT_EQ(waiting.reply(slow_id).tokens.size(), blocked_at);
        EXPECT_EQ(engine->status().running, 1u);
        EXPECT_GE(engine->status().late_masks, 1u);
        gate.let_go();
        waiting.wait_for(1);
        slow.grammar = plain;
        EXPECT_EQ(waiting.reply(slow_id).tokens,
                  expected_reply(slow, *slow.sampling.seed, 0, 60 * 64).tokens);
    }
}

TEST(LateMasks, WhoWaitsForOneCanBeCancelledAndTheEngineEnds) {
    std::mt19937 random(2);
    Gate gate;
    {
        LocalEngineOptions options = fake_options(60, 4);
        ReplyCollector collector;  // outlives the engine, which ends what runs
        const auto engine = make_fake_engine(options);
        GenerationRequest slow = request_of(random, 90, 60);
        slow.grammar =
            std::make_shared<SlowGrammar>(fake_grammar(5, 50), [&](std::size_t) { gate.pass(); });
        const RequestId cancelled = engine->submit(slow, collector).value();
        gate.reached.wait(false);
        engine->cancel(cancelled);
        collector.wait_for(1);
        EXPECT_EQ(collector.reply(cancelled).finished->reason, FinishReason::cancelled);
        slow.deadline = Clock::now() + std::chrono::milliseconds(1);
        const RequestId late = engine->submit(slow, collector).value();
        collector.wait_for(2);
        EXPECT_EQ(collector.reply(late).finished->reason, FinishReason::deadline);
        const EngineStatus status = engine->status();
        EXPECT_EQ(status.running, 0u);
        EXPECT_EQ(status.kv_tokens_free, status.kv_tokens_total);
        slow.deadline.reset();
        engine->submit(slow, collector).value();
        gate.let_go();  // or the threads would wait for ever
    }
}

// Masks that come at any moment, with drafts, thinking, preemptions and cancels: the ids are those
// of masks that are there at once.
TEST(LateMasks, NoIdDependsOnWhenAMaskComes) {
    std::uint64_t late = 0, decode_steps = 0, accepted = 0, preempted = 0, thought = 0;
    for (unsigned seed = 0; seed < 12; ++seed) {
        SCOPED_TRACE("crowd " + std::to_string(seed));
        std::mt19937 random(seed);
        const bool tight = seed % 3 == 0;
        LocalEngineOptions options = fake_options(tight ? 10 : 60, 6);
        options.draft.depth = seed % 4;
        options.scheduler.draft_rows = 6 * options.draft.depth;
        options.mask_threads = 1 + seed % 3;
        options.on_step = [&](const StepRecord& record) {
            late += record.late_masks;
            decode_steps += record.numeric_class == ops::NumericClass::decode ? 1 : 0;
            accepted += record.accepted;
            preempted += record.preempted;
        };
        std::unique_ptr<draft::Proposer> proposer;
        if (options.draft.depth > 0) proposer = std::make_unique<GuessingProposer>(0.2, seed);
        std::vector<std::pair<RequestId, GenerationRequest>> sent;
        std::vector<std::shared_ptr<const OutputGrammar>> plain;
        ReplyCollector collector;
        {
            const auto engine = make_fake_engine(options, {}, false, std::move(proposer));
            for (int i = 0; i < 24; ++i) {
                GenerationRequest request = request_of(random, 10 + random() % 200, 120);
                if (tight) request = request_of(random, 10 + random() % 50, 400);
                if (i % 3 == 0) request.prompt.push_back(fake_think_open);
                if (i % 6 == 0) request.thinking_budget = random() % 20;
                plain.push_back(i % 4 == 3 || (tight && i % 2 == 0)
                                    ? nullptr
                                    : fake_grammar(random(), random() % 80));
                // Long replies to short prompts: nobody would be preempted otherwise.
                request.ignore_eos = tight && !plain.back();
                if (plain.back()) {
                    const auto laziness = static_cast<unsigned>(random() % 4);
                    request.grammar =
                        std::make_shared<SlowGrammar>(plain.back(), [laziness](std::size_t mask) {
                            std::atomic<std::size_t> turns = laziness * (mask * 7919 % 13) * 300;
                            while (turns > 0)
                                --turns;
                        });
                }
                sent.emplace_back(engine->submit(request, collector).value(), request);
            }
            for (int i = 0; i < 4; ++i)
                engine->cancel(sent[random() % sent.size()].first);
            collector.wait_for(sent.size());
        }
        EXPECT_EQ(collector.complaint(), "");
        for (std::size_t i = 0; i < sent.size(); ++i) {
            auto& [id, request] = sent[i];
            request.grammar = plain[i];
            const CollectedReply reply = collector.reply(id);
            std::vector<TokenId> expected =
                expected_reply(request, *request.sampling.seed, 0, options.context_tokens).tokens;
            if (reply.finished->reason == FinishReason::cancelled) {
                expected.resize(reply.tokens.size());
            }
            ASSERT_EQ(reply.tokens, expected) << i;
            thought += plain[i] && i % 3 == 0 ? 1 : 0;
        }
    }
    EXPECT_GT(late, 100u);
    EXPECT_GT(decode_steps, 1000u);
    EXPECT_GT(accepted, 500u);
    EXPECT_GT(preempted, 5u);
    EXPECT_GT(thought, 50u);
}

}  // namespace
}  // namespace percheron::engine::testing
