// Promise 3, cached = cold, and what the cache says of itself (C1 to C12 of docs/SCHEDULER.md): on
// the network of hashes, whose ids change with any position that is wrong.
#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "engine/fake_network.h"
#include "engine/fake_tower.h"
#include "engine/reply_collector.h"

namespace percheron::engine::testing {
namespace {

constexpr std::uint32_t grid = 64;
constexpr std::uint32_t chunk = 128;  // of fake_options()
constexpr TokenId user_token{43};

LocalEngineOptions cached_options(std::uint32_t pages, std::uint32_t max_running,
                                  std::uint32_t checkpoints) {
    LocalEngineOptions options = fake_options(pages, max_running);
    options.scheduler.checkpoints = checkpoints;
    options.user_token = user_token;
    return options;
}

std::vector<TokenId> random_tokens(std::mt19937& random, std::uint32_t count) {
    std::vector<TokenId> tokens;
    for (std::uint32_t i = 0; i < count; ++i) {
        tokens.push_back(TokenId(static_cast<int>(random() % 40)));
    }
    return tokens;
}

GenerationRequest request_of(std::vector<TokenId> prompt, std::uint32_t output,
                             std::uint64_t seed = 7) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = output;
    request.ignore_eos = true;
    request.sampling.seed = seed;
    return request;
}

// An engine that is given one thing at a time.
class Alone {
  public:
    explicit Alone(LocalEngineOptions options) : context_(options.context_tokens) {
        options.on_step = [this](const StepRecord& record) {
            (record.background                                    ? background_rows_
             : record.numeric_class == ops::NumericClass::prefill ? prefill_rows_
                                                                  : decode_rows_) += record.rows;
            preemptions_ += record.preempted;
        };
        engine_ = make_fake_engine(options, {}, true);
    }

    // Runs a request to its end and checks its ids.
    CollectedReply run(const GenerationRequest& request) {
        const RequestId id = engine_->submit(request, collector_).value();
        finished_ += request.choices;
        collector_.wait_for(finished_);
        EXPECT_EQ(collector_.complaint(), "");
        for (std::uint32_t choice = 0; choice < request.choices; ++choice) {
            const CollectedReply reply = collector_.reply(id, choice);
            EXPECT_EQ(reply.tokens, expected_reply(request, *reply.seed, choice, context_).tokens);
        }
        last_ = id;
        return collector_.reply(id);
    }
    CollectedReply choice(std::uint32_t number) const { return collector_.reply(last_, number); }

    void wait_until_idle() const {
        while (engine_->status().reprefill_pending > 0) {
            std::this_thread::yield();
        }
    }

    Engine& engine() { return *engine_; }
    std::uint64_t prefill_rows() const { return prefill_rows_; }
    std::uint64_t background_rows() const { return background_rows_; }
    std::uint64_t preemptions() const { return preemptions_; }

  private:
    std::uint32_t context_;
    std::atomic<std::uint64_t> prefill_rows_ = 0, decode_rows_ = 0, background_rows_ = 0;
    std::atomic<std::uint64_t> preemptions_ = 0;
    ReplyCollector collector_;
    std::size_t finished_ = 0;
    RequestId last_{};
    std::unique_ptr<Engine> engine_;
};

// What the contract promises to whoever has memory enough and comes alone, kept in the plainest
// way: every text that was computed, and where it has checkpoints.
class Oracle {
  public:
    // Runs a prompt through; returns the positions it need not compute.
    Position admit(const GenerationRequest& request) {
        const Text text = text_of(request);
        const auto length = static_cast<Position>(text.size());
        const Position last = (length - 1) / grid * grid;
        const Position hit = deepest(text, last);
        std::set<Position> edges = {last, std::min(matched(text), last)};
        if (length % grid == 0) edges.insert(length);
        const auto user = std::find(request.prompt.begin(), request.prompt.end(), user_token);
        if (user != request.prompt.end()) {
            const auto at = static_cast<Position>(user - request.prompt.begin());
            edges.insert(std::min(at / grid * grid, last));
        }
        Computed computed{text, {}};
        Position position = hit, latest = hit;
        while (position < length) {
            Position count = std::min(length - position, chunk);
            const auto edge = edges.upper_bound(position);
            if (edge != edges.end()) count = std::min(count, *edge - position);
            position += count;
            if (edges.count(position) > 0 || (position % grid == 0 && position - latest >= 512)) {
                computed.checkpoints.insert(position);
                latest = position;
            }
        }
        texts_.push_back(computed);
        return hit;
    }
    // Its reply has gone through prefill in idle time.
    void reply(GenerationRequest request, const std::vector<TokenId>& tokens, bool closed) {
        request.prompt.insert(request.prompt.end(), tokens.begin(), tokens.end());
        Text text = text_of(request);
        const auto prompt = static_cast<Position>(text.size() - tokens.size());
        const Position end = static_cast<Position>(text.size() - (closed ? 1 : 0)) / grid * grid;
        if (end <= prompt) return;
        text.resize(end);
        texts_.push_back({text, {end}});
    }

  private:
    using Text = std::vector<std::string>;  // by position, all that stands there
    struct Computed {
        Text text;
        std::set<Position> checkpoints;
    };

    static Text text_of(const GenerationRequest& request) {
        Text text;
        for (const TokenId token : request.prompt)
            text.push_back(std::to_string(to_int(token)));
        for (const PromptImage& image : request.images) {
            for (std::uint32_t i = 0; i < image.count; ++i) {
                text[image.first + i] =
                    std::string(image.content_hash.begin(), image.content_hash.end()) +
                    std::to_string(i);
            }
        }
        for (std::string& place : text)
            place += "|" + request.cache_salt;
        return text;
    }
    static Position common(const Text& a, const Text& b) {
        return static_cast<Position>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                                     a.begin());
    }
    Position deepest(const Text& text, Position last) const {
        Position best = 0;
        for (const Computed& computed : texts_) {
            const Position same = common(computed.text, text);
            for (const Position checkpoint : computed.checkpoints) {
                if (checkpoint <= same && checkpoint <= last) best = std::max(best, checkpoint);
            }
        }
        return best;
    }
    Position matched(const Text& text) const {
        Position best = 0;
        for (const Computed& computed : texts_) {
            best = std::max(best, common(computed.text, text) / grid * grid);
        }
        return best;
    }

    std::vector<Computed> texts_;
};

// Every length of what two prompts have in common, over the edges of chunks, blocks and pools.
TEST(PrefixCacheEngine, CachedIsColdAtEverySplit) {
    std::mt19937 random(1);
    Alone alone(cached_options(400, 2, 400));
    Oracle oracle;
    std::uint64_t hits = 0, restored = 0;
    for (std::uint32_t split = 1; split <= 330; ++split) {
        const std::vector<TokenId> shared = random_tokens(random, split);
        for (int turn = 0; turn < 2; ++turn) {
            GenerationRequest request = request_of(shared, 3);
            const std::vector<TokenId> own = random_tokens(random, 1 + random() % 150);
            request.prompt.insert(request.prompt.end(), own.begin(), own.end());
            const Position expected = oracle.admit(request);
            ASSERT_EQ(alone.run(request).cached, expected) << split;
            // Sent again: all but what lies behind the last edge.
            const Position again = oracle.admit(request);
            ASSERT_EQ(again, (request.prompt.size() - 1) / grid * grid);
            ASSERT_EQ(alone.run(request).cached, again) << split;
            hits += again > 0 ? 1 : 0;
            restored += again;
        }
        if (split % 20 == 0) {
            ASSERT_EQ(alone.engine().status().kv_tokens_free,
                      alone.engine().status().kv_tokens_total);
        }
    }
    EXPECT_GT(hits, 600u);
    EXPECT_GT(restored, 100'000u);
}

// Conversations that grow, are edited, part and come back, with pictures and salts.
TEST(PrefixCacheEngine, ConversationsHitToTheToken) {
    std::uint64_t hits = 0, misses = 0, with_images = 0, replies = 0;
    for (unsigned seed = 0; seed < 12 && !HasFatalFailure(); ++seed) {
        SCOPED_TRACE("crowd " + std::to_string(seed));
        std::mt19937 random(seed);
        LocalEngineOptions options = cached_options(1500, 2, 1000);
        options.context_tokens = 2000;
        Alone alone(options);
        Oracle oracle;
        const std::vector<TokenId> system = random_tokens(random, 20 + random() % 300);
        std::vector<GenerationRequest> conversations;
        for (int turn = 0; turn < 40 && !HasFatalFailure(); ++turn) {
            if (conversations.empty() || random() % 4 == 0) {
                GenerationRequest fresh = request_of(system, 1, random());
                fresh.prompt.push_back(user_token);
                if (random() % 4 == 0) fresh.cache_salt = "other";
                conversations.push_back(std::move(fresh));
            }
            GenerationRequest& conversation = conversations[random() % conversations.size()];
            if (conversation.prompt.size() > 1200) continue;
            const std::vector<TokenId> more = random_tokens(random, 1 + random() % 120);
            conversation.prompt.insert(conversation.prompt.end(), more.begin(), more.end());
            if (random() % 4 == 0) {
                const auto at = static_cast<std::uint32_t>(conversation.prompt.size()) - 1;
                insert_image(conversation, fake_image_of(4, 1 + random() % 9, random() % 3 + 1),
                             at);
                if (conversation.images.size() > 3) {
                    // Only the last three fit the memory for images.
                    const PromptImage& first = conversation.images.front();
                    std::fill_n(conversation.prompt.begin() + first.first, first.count, TokenId(2));
                    conversation.images.erase(conversation.images.begin());
                }
            }
            if (random() % 6 == 0) {
                // An edit somewhere; of text, or the picture that stands there.
                const std::size_t at = random() % conversation.prompt.size();
                if (conversation.prompt[at] != fake_image) {
                    conversation.prompt[at] = TokenId(static_cast<int>(random() % 40));
                }
            }
            conversation.max_tokens = 1 + random() % 150;
            conversation.ignore_eos = random() % 2 == 0;
            const Position expected = oracle.admit(conversation);
            const CollectedReply reply = alone.run(conversation);
            ASSERT_EQ(reply.cached, expected);
            (expected > 0 ? hits : misses) += 1;
            with_images += expected > 0 && !conversation.images.empty() ? 1 : 0;
            alone.wait_until_idle();
            const bool closed = reply.finished->reason == FinishReason::stop_token;
            oracle.reply(conversation, reply.tokens, closed);
            // The next turn repeats the reply.
            conversation.prompt.insert(conversation.prompt.end(), reply.tokens.begin(),
                                       reply.tokens.end());
            if (closed && random() % 2 == 0) conversation.prompt.back() = user_token;
            ++replies;
        }
        const EngineStatus status = alone.engine().status();
        EXPECT_EQ(status.kv_tokens_free, status.kv_tokens_total);
    }
    EXPECT_GT(replies, 400u);
    EXPECT_GT(hits, 300u);
    EXPECT_GT(misses, 10u);
    EXPECT_GT(with_images, 60u);
}

// A17: turns that only append, sent at once and after the reply has gone through prefill.
TEST(PrefixCacheEngine, AppendedTurnsCostOnlyTheirNewTokens) {
    for (std::uint32_t length = 60; length < 330; length += 7) {
        for (const bool patient : {false, true}) {
            std::mt19937 random(length);
            Alone alone(cached_options(100, 2, 50));
            GenerationRequest request = request_of(random_tokens(random, length), 100);
            for (int turn = 0; turn < 3; ++turn) {
                const auto prompt = static_cast<std::uint32_t>(request.prompt.size());
                const CollectedReply reply = alone.run(request);
                request.prompt.insert(request.prompt.end(), reply.tokens.begin(),
                                      reply.tokens.end());
                const std::vector<TokenId> more = random_tokens(random, 1 + random() % 50);
                request.prompt.insert(request.prompt.end(), more.begin(), more.end());
                if (patient) {
                    alone.wait_until_idle();
                }
                const CollectedReply next = alone.run(request);
                if (patient) {
                    EXPECT_GE(next.cached + 64, prompt + reply.tokens.size());
                } else {
                    EXPECT_GE(next.cached, prompt / grid * grid);
                }
                request.prompt.insert(request.prompt.end(), next.tokens.begin(), next.tokens.end());
            }
            // An edit in the first turn: nothing behind it is taken from the cache.
            request.prompt.resize(length + 150);
            request.prompt[length / 2] = TokenId(41);
            EXPECT_LE(alone.run(request).cached, length / 2);
        }
    }
}

// C9.
TEST(PrefixCacheEngine, ChoicesComputeTheirPromptOnce) {
    std::mt19937 random(2);
    for (const std::uint32_t length : {30u, 64u, 65u, 200u, 256u, 257u, 500u}) {
        for (const std::uint32_t choices : {2u, 5u}) {
            Alone alone(cached_options(200, 8, 20));
            GenerationRequest request = request_of(random_tokens(random, length), 9);
            request.choices = choices;
            const std::uint32_t shared = (length - 1) / grid * grid;
            EXPECT_EQ(alone.run(request).cached, 0u);
            for (std::uint32_t choice = 1; choice < choices; ++choice) {
                EXPECT_EQ(alone.choice(choice).cached, shared);
            }
            EXPECT_EQ(alone.prefill_rows(), length + (choices - 1) * (length - shared));
        }
    }
    // Without the cache each computes it.
    Alone alone(cached_options(200, 8, 20));
    GenerationRequest request = request_of(random_tokens(random, 200), 9);
    request.choices = 3;
    request.use_cache = false;
    alone.run(request);
    EXPECT_EQ(alone.prefill_rows(), 600u);
}

// C12.
TEST(PrefixCacheEngine, IsLeftAloneByWhoeverSaysSo) {
    std::mt19937 random(3);
    GenerationRequest request = request_of(random_tokens(random, 300), 100);
    GenerationRequest unseen = request;
    unseen.use_cache = false;
    {
        Alone alone(cached_options(100, 2, 20));
        alone.run(unseen);
        EXPECT_EQ(alone.engine().status().checkpoints, 0u);
        EXPECT_EQ(alone.run(request).cached, 0u);
        EXPECT_EQ(alone.run(unseen).cached, 0u);
        EXPECT_EQ(alone.run(request).cached, 256u);
        GenerationRequest salted = request;
        salted.cache_salt = "mine";
        EXPECT_EQ(alone.run(salted).cached, 0u);
        EXPECT_EQ(alone.run(salted).cached, 256u);
    }
    Alone off(cached_options(100, 2, 0));
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(off.run(request).cached, 0u);
        EXPECT_EQ(off.engine().status().reprefill_pending, 0u);
    }
    EXPECT_EQ(off.background_rows(), 0u);
    EXPECT_EQ(off.prefill_rows(), 900u);
}

// C2: the ids say nothing of what a picture shows.
TEST(PrefixCacheEngine, OtherPixelsInTheSamePlacesAreAnotherPrompt) {
    std::mt19937 random(8);
    for (const std::uint32_t place : {0u, 63u, 64u, 130u, 180u}) {
        Alone alone(cached_options(100, 2, 20));
        GenerationRequest request = request_of(random_tokens(random, 300), 20);
        GenerationRequest other = request;
        insert_image(request, fake_image_of(2, 3, 1), place);
        insert_image(other, fake_image_of(2, 3, 2), place);
        EXPECT_EQ(alone.run(request).cached, 0u);
        EXPECT_EQ(alone.run(other).cached, 0u);
        EXPECT_EQ(alone.run(request).cached, 256u);
        EXPECT_EQ(alone.run(other).cached, 256u);
    }
}

// C4: whatever is cached, whoever comes runs as if nothing were.
TEST(PrefixCacheEngine, CachedPagesCostNobodyAnything) {
    std::mt19937 random(4);
    LocalEngineOptions options = cached_options(20, 4, 30);
    Alone alone(options);
    std::vector<GenerationRequest> requests;
    for (int round = 0; round < 60; ++round) {
        if (round % 3 == 2) {
            // What may still be there or not: its ids are the same.
            alone.run(requests[random() % requests.size()]);
            continue;
        }
        const auto length = static_cast<std::uint32_t>(1 + random() % 1270);
        requests.push_back(request_of(random_tokens(random, length), 1280 - length));
        if (requests.back().max_tokens > 60) requests.back().max_tokens = 60;
        alone.run(requests.back());
        const EngineStatus status = alone.engine().status();
        EXPECT_EQ(status.kv_tokens_free, status.kv_tokens_total);
    }
    EXPECT_EQ(alone.preemptions(), 0u);
    EXPECT_EQ(alone.engine().status().preemptions, 0u);
}

// C11: a pass is made in pieces between requests, and no row of it twice.
TEST(PrefixCacheEngine, RequestsInterruptRepliesOnTheirWayIntoTheCache) {
    std::mt19937 random(5);
    LocalEngineOptions options = cached_options(100, 2, 20);
    options.scheduler.prefill_slice = 1e-9;  // one block a step
    const GenerationRequest first = request_of(random_tokens(random, 100), 640);
    GenerationRequest second = request_of(random_tokens(random, 40), 10);
    ReplyCollector collector;
    Engine* engine_now = nullptr;
    std::atomic<bool> ready = false;
    std::uint64_t background_rows = 0, interruptions = 0, late = 0, pending_at_first = 0;
    bool waiting = false;
    options.on_step = [&](const StepRecord& record) {
        while (!ready)
            std::this_thread::yield();
        if (record.background) {
            if (background_rows == 0) {
                pending_at_first = engine_now->status().reprefill_pending + record.rows;
            }
            background_rows += record.rows;
            late += waiting ? 1 : 0;
            if (interruptions < 5) {
                ++interruptions;
                second.prompt[0] = TokenId(static_cast<int>(interruptions));
                engine_now->submit(second, collector).value();
                waiting = true;
            }
        } else {
            waiting = false;
        }
    };
    const auto engine = make_fake_engine(options);
    engine_now = engine.get();
    const RequestId id = engine->submit(first, collector).value();
    ready = true;
    collector.wait_for(6);
    while (engine->status().reprefill_pending > 0)
        std::this_thread::yield();
    EXPECT_EQ(interruptions, 5u);
    EXPECT_EQ(late, 0u);
    // 740 tokens: eleven blocks, of which the prompt had left one.
    EXPECT_EQ(pending_at_first, 640u);
    EXPECT_EQ(background_rows, 640u);
    const EngineStatus status = engine->status();
    EXPECT_EQ(status.kv_tokens_free, status.kv_tokens_total);
    GenerationRequest next = first;
    const CollectedReply reply = collector.reply(id);
    next.prompt.insert(next.prompt.end(), reply.tokens.begin(), reply.tokens.end());
    next.max_tokens = 5;
    const RequestId again = engine->submit(next, collector).value();
    collector.wait_for(7);
    EXPECT_EQ(collector.reply(again).cached, 704u);
    EXPECT_EQ(collector.reply(again).tokens, expected_reply(next, 7, 0, 6400).tokens);
}

}  // namespace
}  // namespace percheron::engine::testing
