// S1 to S8 at once: whatever runs beside a request, however it is cut, delayed, preempted or
// drafted, its ids are those of a computation without any engine.
#include <algorithm>
#include <latch>
#include <mutex>
#include <random>

#include <gtest/gtest.h>

#include "engine/fake_network.h"
#include "engine/guessing_proposer.h"
#include "engine/reply_collector.h"

namespace percheron::engine::testing {
namespace {

class Random {
  public:
    explicit Random(unsigned seed) : engine_(seed) {}

    std::uint32_t below(std::uint32_t limit) {
        return static_cast<std::uint32_t>(engine_() % limit);
    }
    std::uint32_t between(std::uint32_t low, std::uint32_t high) {
        return low + below(high - low + 1);
    }
    bool chance(double probability) { return std::bernoulli_distribution(probability)(engine_); }
    float real(double low, double high) {
        return static_cast<float>(std::uniform_real_distribution<double>(low, high)(engine_));
    }
    std::uint64_t word() { return std::uint64_t{below(~0u)} << 32 | below(~0u); }

  private:
    std::mt19937 engine_;
};

using Stems = std::vector<std::vector<TokenId>>;  // beginnings that prompts have in common

GenerationRequest random_request(Random& random, std::uint32_t context, const Stems& stems = {}) {
    GenerationRequest request;
    // Short prompts mostly, long ones often enough; edges of the grid more than their share.
    std::uint32_t length = random.chance(0.3) ? random.between(1, 700) : random.between(1, 90);
    if (random.chance(0.2)) {
        length = 64 * random.between(1, 4) + random.between(0, 2) - 1;
    }
    length = std::min(length, random.chance(0.2) ? context - 1 : (context + 2) / 3);
    for (std::uint32_t i = 0; i < length; ++i) {
        request.prompt.push_back(TokenId(static_cast<int>(random.below(44))));
    }
    if (!stems.empty() && random.chance(0.6)) {
        const auto which = random.below(static_cast<std::uint32_t>(stems.size()));
        const std::size_t shared = random.chance(0.5) ? length - 1 : random.below(length);
        std::copy_n(stems[which].begin(), std::min(shared, stems[which].size()),
                    request.prompt.begin());
        request.cache_salt = random.chance(0.1) ? "salt" : "";
        request.use_cache = !random.chance(0.1);
    }
    SamplingParameters& sampling = request.sampling;
    sampling.temperature = random.chance(0.4) ? 0.0f : random.real(0.2, 1.5);
    sampling.top_p = random.chance(0.5) ? 1.0f : random.real(0.3, 1);
    sampling.top_k = random.chance(0.7) ? 0 : static_cast<int>(random.between(1, 20));
    sampling.min_p = random.chance(0.8) ? 0.0f : random.real(0, 0.3);
    if (random.chance(0.3)) {
        sampling.repetition_penalty = random.real(0.8, 1.6);
        sampling.presence_penalty = random.real(-1, 1);
        sampling.frequency_penalty = random.real(-0.5, 0.5);
    }
    if (random.chance(0.2)) {
        sampling.logit_bias = {{fake_stop, random.real(-5, 5)}, {fake_banned, 50.0f}};
    }
    sampling.seed = random.word();
    request.choices = random.chance(0.15) ? random.between(2, 3) : 1;
    if (random.chance(0.9)) {
        const std::uint32_t output =
            random.chance(0.4) ? random.between(100, 400) : random.between(1, 100);
        request.max_tokens = std::min(output, context - length);
    }
    if (random.chance(0.3)) {
        request.min_tokens =
            std::min(random.between(0, 60), request.max_tokens.value_or(context - length));
    }
    request.ignore_eos = random.chance(0.6);
    if (random.chance(0.2)) {
        request.extra_stop_tokens = {TokenId(static_cast<int>(random.below(40)))};
    }
    if (random.chance(0.3)) {
        request.thinking_budget = random.between(0, 20);
        request.prompt.back() = fake_think_open;
    }
    if (random.chance(0.15)) {
        request.grammar = fake_grammar(random.word(), random.between(0, 80));
    }
    while (random.chance(0.15)) {
        // Few different images, so that some come again.
        PromptImage image = fake_image_of(random.between(1, 3), random.between(1, 8),
                                          random.chance(0.5) ? 1 : random.word());
        const std::uint32_t room = context - static_cast<std::uint32_t>(request.prompt.size()) -
                                   request.max_tokens.value_or(1);
        if (image.count > room || request.images.size() == 3) break;
        const std::uint32_t first =
            request.images.empty() ? 0 : request.images.back().first + request.images.back().count;
        insert_image(request, std::move(image),
                     random.between(first, static_cast<std::uint32_t>(request.prompt.size()) - 1));
    }
    request.draft = random.chance(0.9);
    request.priority = random.chance(0.2) ? static_cast<int>(random.below(3)) : 0;
    return request;
}

struct Proofs {
    std::size_t replies = 0;
    std::size_t choices_cancelled = 0;
    std::uint64_t steps = 0;
    std::uint64_t batched_steps = 0;  // at least four sequences
    std::uint64_t preemptions = 0;
    std::uint64_t prompts_of_three_chunks = 0;
    std::uint64_t shared_prefill_steps = 0;
    std::uint64_t cached = 0;  // replies
    std::uint64_t cached_tokens = 0;
    std::uint64_t background_steps = 0;
    std::uint64_t images_encoded = 0;
    std::uint64_t images_reused = 0;
    std::size_t constrained_replies = 0;    // with a grammar
    std::size_t constrained_preempted = 0;  // in crowds with preemptions
    std::uint64_t draft_rounds = 0;
    std::uint64_t accepted = 0;
    std::uint64_t rejected = 0;
    std::uint64_t preemptions_while_drafting = 0;
    DigestCounts digests;
};

struct Scripted {
    GenerationRequest request;
    std::uint64_t submit_at = 0;                // step number
    std::optional<std::uint64_t> cancel_after;  // steps after the submission
    std::optional<RequestId> id;
};

// The books of a choice agree with each other and with what was asked for.
void count_drafts(const GenerationRequest& request, const ChoiceStatistics& statistics,
                  const LocalEngineOptions& options, Proofs& proofs) {
    EXPECT_LE(statistics.draft_rounds, statistics.drafted_tokens);
    EXPECT_LE(statistics.drafted_tokens, statistics.draft_rounds * options.draft.depth);
    EXPECT_LE(statistics.accepted_tokens, statistics.generated_tokens);
    std::uint32_t accepted = 0;
    for (std::size_t i = 0; i < statistics.accepted_per_position.size(); ++i) {
        accepted += statistics.accepted_per_position[i];
        EXPECT_LE(statistics.accepted_per_position[i],
                  i == 0 ? statistics.draft_rounds : statistics.accepted_per_position[i - 1]);
    }
    EXPECT_EQ(accepted, statistics.accepted_tokens);
    EXPECT_EQ(statistics.proposer.empty(), statistics.draft_rounds == 0);
    if (!request.draft) {
        EXPECT_EQ(statistics.drafted_tokens, 0u);
    }
    proofs.draft_rounds += statistics.draft_rounds;
    proofs.accepted += statistics.accepted_tokens;
    proofs.rejected += statistics.drafted_tokens - statistics.accepted_tokens;
}

// One engine of random sizes, one random crowd.
void run_crowd(unsigned seed, Proofs& proofs) {
    SCOPED_TRACE("crowd " + std::to_string(seed));
    Random random(seed);
    const std::uint32_t max_running = random.between(3, 12);
    // From "holds about one and a half requests" to plenty.
    const std::uint32_t pages =
        random.chance(0.6) ? random.between(4, 16) : random.between(60, 200);
    LocalEngineOptions options = fake_options(pages, max_running);
    // A step of hashes is over before a thread has woken up, so that most masks are late.
    options.mask_threads = seed % 2 == 0 ? 0 : 2;
    options.context_tokens = random.between(std::min(pages * 32, 200u), std::min(pages * 64, 900u));
    options.scheduler.prefill_rows = 64 * random.between(1, 6);
    options.scheduler.decode_rows = random.between(max_running, 64);
    options.scheduler.refeed_rows = random.between(1, 9);
    options.scheduler.decode_share = random.chance(0.5) ? 0.0 : random.real(0, 0.9);
    options.scheduler.prefill_slice = random.real(1e-6, 1e-3);
    options.scheduler.checkpoints = random.chance(0.3) ? 0 : random.between(1, 12);
    Stems stems(random.between(1, 3));
    for (std::vector<TokenId>& stem : stems) {
        for (int i = 0; i < 700; ++i) {
            stem.push_back(TokenId(static_cast<int>(random.below(40))));
        }
    }

    std::unique_ptr<draft::Proposer> proposer;
    if (random.chance(0.6)) {
        options.draft.depth = random.between(1, 7);
        options.draft.copy = random.chance(0.5);
        options.draft.adaptive = random.chance(0.3);
        options.scheduler.draft_rows = random.between(1, 40);
        if (!options.draft.copy || random.chance(0.7)) {
            proposer = std::make_unique<GuessingProposer>(random.real(0, 0.6), seed);
        }
    }

    std::vector<Scripted> script(random.between(4, 20));
    for (Scripted& item : script) {
        item.request = random_request(random, options.context_tokens, stems);
        item.submit_at = random.chance(0.7) ? 0 : random.below(60);
        if (random.chance(0.2)) {
            item.cancel_after = random.below(40);
        }
    }

    ReplyCollector collector;
    std::mutex script_mutex;
    Engine* engine_now = nullptr;
    std::uint64_t step = 0;
    const auto submit = [&](Scripted& item) {
        item.id = engine_now->submit(item.request, collector).value();
        item.submit_at = step;
    };
    options.on_step = [&](const StepRecord& record) {
        const std::lock_guard lock(script_mutex);
        ++step;
        proofs.background_steps += record.background ? 1 : 0;
        proofs.steps += record.background ? 0 : 1;
        proofs.batched_steps += record.sequences >= 4 ? 1 : 0;
        proofs.preemptions += record.preempted;
        proofs.preemptions_while_drafting += options.draft.depth > 0 ? record.preempted : 0;
        proofs.shared_prefill_steps +=
            record.numeric_class == ops::NumericClass::prefill && record.sequences > 1 ? 1 : 0;
        for (Scripted& item : script) {
            if (!item.id && item.submit_at <= step) {
                submit(item);
            } else if (item.id && item.cancel_after &&
                       step >= item.submit_at + *item.cancel_after) {
                engine_now->cancel(*item.id);
                item.cancel_after.reset();
                ++proofs.choices_cancelled;
            }
        }
    };
    auto network = std::make_unique<FakeNetwork>();
    if (seed % 3 == 0) network->digest_counts = &proofs.digests;
    const std::unique_ptr<Engine> engine =
        make_fake_engine(options, std::move(network), true, std::move(proposer));
    {
        const std::lock_guard lock(script_mutex);
        engine_now = engine.get();
        for (Scripted& item : script) {
            if (item.submit_at == 0) {
                submit(item);
            }
        }
    }
    std::size_t choices = 0;
    for (std::size_t next = 0; next < script.size(); ++next) {
        {
            // The engine may have run dry before the step an item waits for.
            const std::lock_guard lock(script_mutex);
            if (!script[next].id) {
                submit(script[next]);
            }
        }
        choices += script[next].request.choices;
        if (random.chance(0.05)) {
            collector.wait_for(choices);
        }
    }
    collector.wait_for(choices);

    EXPECT_EQ(collector.complaint(), "");
    const bool preempted = engine->status().preemptions > 0;
    for (const Scripted& item : script) {
        for (std::uint32_t choice = 0; choice < item.request.choices; ++choice) {
            const CollectedReply reply = collector.reply(*item.id, choice);
            ASSERT_TRUE(reply.finished.has_value());
            EXPECT_EQ(*reply.seed, *item.request.sampling.seed);
            count_drafts(item.request, reply.finished->statistics, options, proofs);
            const ExpectedReply expected =
                expected_reply(item.request, *reply.seed, choice, options.context_tokens);
            if (reply.finished->reason == FinishReason::cancelled) {
                ASSERT_LE(reply.tokens.size(), expected.tokens.size());
                ASSERT_TRUE(
                    std::equal(reply.tokens.begin(), reply.tokens.end(), expected.tokens.begin()));
                continue;
            }
            ASSERT_EQ(reply.tokens, expected.tokens);
            ASSERT_EQ(reply.finished->reason, expected.reason);
            ++proofs.replies;
            proofs.cached += reply.cached > 0 ? 1 : 0;
            proofs.cached_tokens += reply.cached;
            const bool constrained = item.request.grammar != nullptr;
            proofs.constrained_replies += constrained ? 1 : 0;
            proofs.constrained_preempted += constrained && preempted ? 1 : 0;
            proofs.prompts_of_three_chunks +=
                item.request.prompt.size() > 2 * options.scheduler.prefill_rows ? 1 : 0;
        }
    }
    // S7: back to start.
    const EngineStatus status = engine->status();
    proofs.images_encoded += status.images_encoded;
    proofs.images_reused += status.images_reused;
    EXPECT_TRUE(status.alive) << status.failure;
    EXPECT_EQ(status.running, 0u);
    EXPECT_EQ(status.waiting, 0u);
    EXPECT_EQ(status.kv_tokens_free, status.kv_tokens_total);
}

TEST(Equality, IdsAreThoseOfARequestAloneInAnyCrowd) {
    Proofs proofs;
    for (unsigned seed = 0; seed < 850 && !HasFatalFailure(); ++seed) {
        run_crowd(seed, proofs);
    }
    // The mechanisms were at work.
    EXPECT_GT(proofs.replies, 5000u);
    EXPECT_GT(proofs.choices_cancelled, 500u);
    EXPECT_GT(proofs.preemptions, 500u);
    EXPECT_GT(proofs.prompts_of_three_chunks, 300u);
    EXPECT_GT(proofs.shared_prefill_steps, 300u);
    EXPECT_GT(proofs.cached, 700u);
    EXPECT_GT(proofs.cached_tokens, 60'000u);
    EXPECT_GT(proofs.background_steps, 300u);
    EXPECT_GT(proofs.images_encoded, 500u);
    EXPECT_GT(proofs.images_reused, 100u);
    EXPECT_GT(proofs.constrained_replies, 800u);
    EXPECT_GT(proofs.constrained_preempted, 300u);
    EXPECT_GT(proofs.batched_steps, proofs.steps / 8);
    EXPECT_GT(proofs.draft_rounds, 30000u);
    EXPECT_GT(proofs.accepted, 30000u);
    EXPECT_GT(proofs.rejected, 30000u);
    EXPECT_GT(proofs.preemptions_while_drafting, 200u);
    // Most tokens came of digests; rows were looked at for penalties, bias and masks.
    EXPECT_GT(proofs.digests.digested, 30000u);
    EXPECT_GT(proofs.digests.fetched, proofs.digests.digested / 10);
    EXPECT_LT(proofs.digests.fetched, 6 * proofs.digests.digested / 10);
}

// Promise 2 with its proof: at least four rows in 80 % of the steps.
TEST(Equality, EightStreamsAreReallyBatched) {
    Random random(77);
    LocalEngineOptions options = fake_options(200, 8);
    options.scheduler.decode_share = 0;  // all prompts first, then eight streams
    std::uint64_t steps = 0;
    std::uint64_t wide_steps = 0;
    std::latch all_submitted(1);
    options.on_step = [&](const StepRecord& record) {
        all_submitted.wait();
        ++steps;
        wide_steps += record.rows >= 4 ? 1 : 0;
    };
    const std::unique_ptr<Engine> engine = make_fake_engine(options);
    ReplyCollector collector;
    std::vector<GenerationRequest> requests;
    std::vector<RequestId> ids;
    for (int i = 0; i < 8; ++i) {
        GenerationRequest request = random_request(random, 700);
        while (!request.images.empty())
            request = random_request(random, 700);
        request.choices = 1;
        request.ignore_eos = true;
        request.extra_stop_tokens.clear();
        request.min_tokens = 0;
        request.max_tokens = 200;
        request.grammar = nullptr;
        requests.push_back(request);
        const Result<RequestId> id = engine->submit(request, collector);
        ASSERT_TRUE(id.ok()) << id.error().message();
        ids.push_back(*id);
    }
    all_submitted.count_down();
    collector.wait_for(8);
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const CollectedReply reply = collector.reply(ids[i]);
        EXPECT_EQ(reply.tokens,
                  expected_reply(requests[i], *reply.seed, 0, options.context_tokens).tokens);
    }
    EXPECT_GE(wide_steps * 10, steps * 8);
}

// A pool for one and a half requests and two requests that each need most of it.
TEST(Equality, PreemptedRequestsGiveTheirUnpreemptedIds) {
    for (const std::uint32_t refeed_rows : {1u, 3u, 8u}) {
        LocalEngineOptions options = fake_options(12, 2);
        options.context_tokens = 8 * 64;
        options.scheduler.refeed_rows = refeed_rows;
        const std::unique_ptr<Engine> engine = make_fake_engine(options);
        ReplyCollector collector;
        Random random(5 + refeed_rows);
        // Two choices of one request start together, however the machine schedules this thread.
        GenerationRequest request;
        for (int token = 0; token < 150; ++token) {
            request.prompt.push_back(TokenId(static_cast<int>(random.below(40))));
        }
        request.choices = 2;
        request.sampling.seed = 90 + refeed_rows;
        request.ignore_eos = true;
        request.max_tokens = 330;
        const RequestId id = engine->submit(request, collector).value();
        collector.wait_for(2);
        EXPECT_GT(engine->status().preemptions, 0u);
        for (std::uint32_t choice = 0; choice < 2; ++choice) {
            const CollectedReply reply = collector.reply(id, choice);
            EXPECT_EQ(reply.tokens,
                      expected_reply(request, *reply.seed, choice, options.context_tokens).tokens);
        }
    }
}

}  // namespace
}  // namespace percheron::engine::testing
