// The loop guard: loops of every length are found in time, honest long texts never are, and what it
// does to a reply.
#include "engine/loop_guard.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "engine/fake_network.h"
#include "engine/reply_collector.h"

namespace percheron::engine::testing {
namespace {

using Text = std::vector<TokenId>;

class Random {
  public:
    explicit Random(unsigned seed) : engine_(seed) {}
    std::uint32_t below(std::uint32_t bound) {
        return static_cast<std::uint32_t>(engine_() % bound);
    }
    std::uint32_t between(std::uint32_t low, std::uint32_t high) {
        return low + below(high - low + 1);
    }
    char letter() { return static_cast<char>('a' + below(26)); }
    std::string word(std::uint32_t most = 9) {
        std::string result;
        for (std::uint32_t i = between(1, most); i > 0; --i)
            result += letter();
        return result;
    }

  private:
    std::mt19937 engine_;
};

// Ids as a byte-pair vocabulary would give them: words, numbers of up to three digits, runs of up
// to sixteen of one sign.
Text tokens_of(const std::string& text) {
    static std::map<std::string, int> ids;
    Text result;
    for (std::size_t i = 0; i < text.size();) {
        std::size_t end = i + 1;
        const auto kind = [](char c) {
            const auto u = static_cast<unsigned char>(c);
            return std::isalpha(u) != 0 ? 1 : std::isdigit(u) != 0 ? 2 : 0;
        };
        const std::size_t most = kind(text[i]) == 1 ? 6 : kind(text[i]) == 2 ? 3 : 16;
        while (end < text.size() && end - i < most && kind(text[end]) == kind(text[i]) &&
               (kind(text[i]) != 0 || text[end] == text[i])) {
            ++end;
        }
        const auto [place, added] =
            ids.try_emplace(text.substr(i, end - i), static_cast<int>(ids.size()));
        result.push_back(TokenId(place->second));
        i = end;
    }
    return result;
}

// Long outputs that repeat much and are wanted.
std::string honest_text(Random& random, int kind) {
    std::string text;
    const std::uint32_t columns = random.between(2, 8);
    for (std::uint32_t row = 0; text.size() < 40'000; ++row) {
        switch (kind) {
            case 0:  // a table with few different cells
                for (std::uint32_t c = 0; c < columns; ++c) {
                    text += "| " + std::string(random.below(5) == 0 ? "n/a" : "yes") + "    ";
                }
                text += "| " + std::to_string(row) + " |\n";
                break;
            case 1:  // CSV: a counter, constants, a measured value
                text += std::to_string(row) + ",2026-11-29,sensor-7,0.0,0.0," +
                        std::to_string(random.below(1000)) + "\n";
                break;
            case 2: {  // ASCII art: mostly blanks, a shape that moves
                const std::uint32_t at = 10 + (row * 7 + random.below(9)) % 50;
                text +=
                    std::string(at, ' ') + "/\\" + std::string(random.between(1, 12), '_') + "\n";
                break;
            }
            case 3:  // base64
                for (int i = 0; i < 76; ++i) {
                    text += "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
                        [random.below(64)];
                }
                text += "\n";
                break;
            case 4:  // code: the same lines with other names and numbers
                text += "    case " + std::to_string(row) + ": return handle_" + random.word() +
                        "(state, " + std::to_string(random.below(256)) + ");\n";
                break;
            case 5:  // zeros of a memory dump, with addresses
                text += std::to_string(100'000 + row * 16) +
                        ": 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n";
                break;
            case 6:  // a list that counts
                text += "- item " + std::to_string(row) + "\n";
                break;
            default:  // prose of few words
                for (std::uint32_t i = random.between(4, 14); i > 0; --i) {
                    text += std::string(random.below(3) == 0 ? "the" : random.word(3)) + " ";
                }
                text += ".\n";
                break;
        }
    }
    return text;
}
constexpr int honest_kinds = 8;

// The tokens it takes until the guard speaks, in steps of `step` tokens as they come.
std::optional<std::size_t> decided_after(const Text& text, std::size_t step) {
    LoopGuard guard;
    for (std::size_t i = 0; i < text.size(); i += step) {
        for (std::size_t j = i; j < std::min(i + step, text.size()); ++j) {
            if (guard.observe(text[j])) return j + 1;
        }
    }
    return std::nullopt;
}

TEST(LoopGuard, LeavesHonestTextsAlone) {
    for (unsigned seed = 0; seed < 200; ++seed) {
        Random random(1000 + seed);
        const Text text = tokens_of(honest_text(random, static_cast<int>(seed) % honest_kinds));
        ASSERT_GT(text.size(), 4000u);
        EXPECT_EQ(decided_after(text, seed % 3 == 0 ? 8 : 1), std::nullopt)
            << "kind " << seed % honest_kinds;
    }
}

TEST(LoopGuard, FindsLoopsInTime) {
    for (unsigned seed = 0; seed < 200; ++seed) {
        SCOPED_TRACE(seed);
        Random random(5000 + seed);
        Text text = tokens_of(honest_text(random, static_cast<int>(random.below(honest_kinds))));
        text.resize(random.below(3000));
        const std::size_t start = text.size();
        std::size_t cycle = 1;
        if (seed % 10 == 9) {
            // One token with a stray other, 96 % of it.
            for (std::size_t i = 0; i < 5000; ++i) {
                text.push_back(
                    TokenId(random.below(100) < 3 ? static_cast<int>(random.below(9)) : 77'777));
            }
        } else {
            cycle = seed % 5 == 0   ? random.between(1, 4)
                    : seed % 5 == 1 ? random.between(900, 1024)
                                    : random.between(1, 1024);
            Text once;
            for (std::size_t i = 0; i < cycle; ++i) {
                once.push_back(TokenId(static_cast<int>(random.below(5000))));
            }
            for (std::size_t i = 0; i < 17 * cycle + 5000; ++i)
                text.push_back(once[i % cycle]);
        }
        const auto decided = decided_after(text, 1);
        ASSERT_TRUE(decided.has_value());
        EXPECT_LE(*decided - start, std::max<std::size_t>(4096, 16 * cycle));
        EXPECT_EQ(decided_after(text, 8), decided);
        if (seed % 10 != 9) {
            // Not before there is evidence, give or take what the text before had in common.
            // (Of one token 95 % are enough.)
            const std::size_t evidence =
                cycle == 1 ? 1946 : std::max<std::size_t>(2048, 12 * cycle);
            EXPECT_GE(*decided + 8, start + evidence);
        }
    }
}

// The two rules again, in the plainest way.
bool plainly_in_a_loop(const Text& text) {
    const auto tail_repeats = [&](std::size_t cycle) {
        const std::size_t filled = std::max<std::size_t>(2048, 12 * cycle);
        if (text.size() < filled) return false;
        for (std::size_t i = text.size() - filled + cycle; i < text.size(); ++i) {
            if (text[i] != text[i - cycle]) return false;
        }
        return true;
    };
    for (std::size_t cycle = 1; cycle <= 1024; ++cycle) {
        if (tail_repeats(cycle)) return true;
    }
    if (text.size() < 2048) return false;
    const auto begin = text.end() - 2048;
    for (const TokenId token : {TokenId(0), TokenId(1), TokenId(2), TokenId(3)}) {
        if (std::count(begin, text.end(), token) * 100 >= 95 * 2048) return true;
    }
    return false;
}

TEST(LoopGuard, AgreesWithItsRulesAtEveryToken) {
    std::size_t loops = 0, tokens = 0;
    for (unsigned seed = 0; seed < 24; ++seed) {
        Random random(seed);
        LoopGuard guard;
        Text text;
        while (text.size() < 13'000) {
            // Spells of a cycle, of nearly one token, and of noise.
            const std::uint32_t cycle = random.between(1, 700);
            const std::uint32_t kind = random.below(3);
            const std::size_t spell = text.size() + random.between(500, 7000);
            const std::uint32_t rare = random.between(2, 40);
            for (; text.size() < spell;) {
                TokenId next{static_cast<int>(random.below(4))};
                if (kind == 0 && text.size() >= cycle) next = text[text.size() - cycle];
                if (kind == 1 && random.below(rare) != 0) next = TokenId(1);
                text.push_back(next);
                const bool says = guard.observe(next);
                loops += says ? 1 : 0;
                ++tokens;
                if (says || text.size() % 37 == 0) {
                    ASSERT_EQ(says, plainly_in_a_loop(text)) << text.size();
                }
            }
        }
    }
    EXPECT_GT(loops, 10'000u);
    EXPECT_GT(tokens - loops, 10'000u);
}

// A network that goes round in a cycle, whatever the history.
std::unique_ptr<FakeNetwork> looping_network(int cycle) {
    auto network = std::make_unique<FakeNetwork>();
    network->spoil = [cycle](TokenId token, std::span<float> logits) {
        logits[static_cast<std::size_t>((to_int(token) + 1) % cycle)] = 100.0f;
    };
    return network;
}

struct Told {
    FinishReason reason = FinishReason::failed;
    Text tokens;
};

Told reply_of(GenerationRequest request, bool engine_guards = true) {
    LocalEngineOptions options = fake_options(150, 1);
    options.loop_guard = engine_guards;
    const auto engine = make_fake_engine(options, looping_network(7));
    ReplyCollector collector;
    request.sampling.temperature = 0;
    const RequestId id = engine->submit(std::move(request), collector).value();
    collector.wait_for(1);
    return {collector.reply(id).finished->reason, collector.reply(id).tokens};
}

TEST(LoopGuard, EndsAReplyByName) {
    GenerationRequest request;
    request.prompt = {TokenId(1), TokenId(2)};
    request.max_tokens = 5000;
    const Told told = reply_of(request);
    EXPECT_EQ(told.reason, FinishReason::loop);
    EXPECT_EQ(told.tokens.size(), 2048u);

    // Never below min_tokens; never under ignore_eos; not when nobody wants it.
    request.min_tokens = 3000;
    EXPECT_EQ(reply_of(request).tokens.size(), 3000u);
    EXPECT_EQ(reply_of(request).reason, FinishReason::loop);
    request.min_tokens = 0;
    request.ignore_eos = true;
    EXPECT_EQ(reply_of(request).reason, FinishReason::max_tokens);
    request.ignore_eos = false;
    request.loop_guard = false;
    EXPECT_EQ(reply_of(request).reason, FinishReason::max_tokens);
    request.loop_guard.reset();
    EXPECT_EQ(reply_of(request, false).reason, FinishReason::max_tokens);
    request.loop_guard = true;
    EXPECT_EQ(reply_of(request, false).reason, FinishReason::loop);
}

// Goes on round the cycle, so that every draft is right.
class LoopingProposer final : public draft::Proposer {
  public:
    explicit LoopingProposer(int cycle) : cycle_(cycle) {}
    std::string_view name() const override { return "loop"; }
    void begin(RequestSlot) override {}
    Status propose(ops::NumericClass, std::span<draft::DraftSequence> sequences) override {
        for (draft::DraftSequence& sequence : sequences) {
            int token = to_int(sequence.tokens.back());
            for (std::uint32_t i = 0; i < sequence.most; ++i) {
                token = (token + 1) % cycle_;
                sequence.drafts->push_back(TokenId(token));
            }
        }
        return {};
    }

  private:
    int cycle_;
};

// One token a step or eight of them: the reply ends, or its thinking closes, with the same token.
TEST(LoopGuard, DecidesTheSameForOneTokenAStepAndForEight) {
    for (const int cycle : {1, 2, 5, 7, 33}) {
        for (const bool thinks : {false, true}) {
            SCOPED_TRACE(std::to_string(cycle) + (thinks ? " thinking" : ""));
            GenerationRequest request;
            request.prompt = {TokenId(1), thinks ? fake_think_open : TokenId(0)};
            request.max_tokens = 6000;
            request.sampling.temperature = 0;
            std::vector<CollectedReply> replies;
            for (const std::uint32_t depth : {0u, 7u}) {
                LocalEngineOptions options = fake_options(150, 1);
                options.draft.depth = depth;
                options.scheduler.draft_rows = depth;
                const auto engine = make_fake_engine(
                    options, looping_network(cycle), false,
                    depth == 0 ? nullptr : std::make_unique<LoopingProposer>(cycle));
                ReplyCollector collector;
                const RequestId id = engine->submit(request, collector).value();
                collector.wait_for(1);
                replies.push_back(collector.reply(id));
            }
            EXPECT_EQ(replies[0].finished->reason, FinishReason::loop);
            EXPECT_EQ(replies[1].finished->reason, FinishReason::loop);
            EXPECT_EQ(replies[0].tokens, replies[1].tokens);
            EXPECT_EQ(replies[0].accepted, 0u);
            // Nearly all steps brought eight.
            EXPECT_GT(replies[1].accepted, replies[1].tokens.size() * 8 / 10);
        }
    }
}

TEST(LoopGuard, ClosesTheThinkingOnceAndThenEndsTheReply) {
    GenerationRequest request;
    request.prompt = {TokenId(1), fake_think_open};
    request.max_tokens = 9000;
    const Told told = reply_of(request);
    EXPECT_EQ(told.reason, FinishReason::loop);
    ASSERT_EQ(told.tokens.size(), 2048u + 1 + 2048u);
    EXPECT_EQ(told.tokens[2048], fake_think_close);
    EXPECT_EQ(std::count(told.tokens.begin(), told.tokens.end(), fake_think_close), 1);
}

}  // namespace
}  // namespace percheron::engine::testing
