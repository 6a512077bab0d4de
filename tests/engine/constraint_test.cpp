// Replies under a grammar: where it begins, what stop ids, budgets and masks do beside it.
#include <random>

#include <gtest/gtest.h>

#include "engine/fake_network.h"
#include "engine/reply_collector.h"
#include "support/quiet_log.h"

namespace percheron::engine::testing {
namespace {

GenerationRequest request_of(std::mt19937& random, bool thinking) {
    GenerationRequest request;
    for (int i = 0; i < 20; ++i)
        request.prompt.push_back(TokenId(static_cast<int>(random() % 40)));
    if (thinking) request.prompt.push_back(fake_think_open);
    request.sampling.seed = random();
    request.sampling.temperature = random() % 2 == 0 ? 0.0f : 1.0f;
    if (random() % 2 == 0) {
        request.sampling.top_k = 5;
        request.sampling.repetition_penalty = 1.3f;
    }
    return request;
}

bool is_stop(TokenId token) {
    return token == fake_stop || token == fake_second_stop;
}

// Every token of an answer is one that the rule allows there, and the answer is whole.
TEST(Constraint, AnswersAreWhatTheGrammarAllows) {
    std::mt19937 random(3);
    const auto engine = make_fake_engine(fake_options(200, 8));
    std::size_t tokens = 0;
    std::size_t thoughts = 0;
    for (int round = 0; round < 60; ++round) {
        GenerationRequest request = request_of(random, round % 2 == 0);
        request.thinking_budget = random() % 30;
        request.choices = 3;
        request.max_tokens = 300;
        const FakeGrammarRule rule{
            random(), random() % 40, fake_vocabulary, {fake_stop, fake_second_stop}};
        request.grammar = std::make_shared<FakeGrammar>(rule);
        ReplyCollector collector;
        const RequestId id = engine->submit(request, collector).value();
        collector.wait_for(3);
        for (std::uint32_t choice = 0; choice < 3; ++choice) {
            const CollectedReply reply = collector.reply(id, choice);
            ASSERT_EQ(reply.finished->reason, FinishReason::stop_token);
            bool thinking = round % 2 == 0;
            std::vector<TokenId> answer;
            for (const TokenId token : reply.tokens) {
                if (thinking) {
                    ASSERT_FALSE(is_stop(token));
                    thinking = token != fake_think_close;
                    ++thoughts;
                } else {
                    ASSERT_TRUE(rule.allows(answer, token));
                    answer.push_back(token);
                    ++tokens;
                }
            }
            ASSERT_FALSE(thinking);
            ASSERT_TRUE(is_stop(answer.back()));
        }
    }
    EXPECT_GT(tokens, 1000u);
    EXPECT_GT(thoughts, 500u);
}

TEST(Constraint, ACompleteTextEndsInSpiteOfMinimumAndIgnoredStops) {
    std::mt19937 random(4);
    const auto engine = make_fake_engine(fake_options(50, 4));
    for (const bool ignore_eos : {false, true}) {
        GenerationRequest request = request_of(random, false);
        request.max_tokens = 100;
        request.min_tokens = ignore_eos ? 0 : 50;
        request.ignore_eos = ignore_eos;
        request.grammar = fake_grammar(9, 12);
        ReplyCollector collector;
        const RequestId id = engine->submit(request, collector).value();
        collector.wait_for(1);
        const CollectedReply reply = collector.reply(id);
        EXPECT_EQ(reply.finished->reason, FinishReason::stop_token);
        EXPECT_EQ(reply.tokens.size(), 13u);  // not before, though the rule lets it end earlier
        EXPECT_TRUE(is_stop(reply.tokens.back()));
    }
}

// Allows nothing, fails, or takes no token, from its third token on.
class Broken final : public TokenConstraint {
  public:
    enum class Way { nothing, failure, refusal };
    explicit Broken(Way way) : way_(way) {}
    Status fill(std::span<std::uint32_t> allowed) override {
        const bool now = accepted_ == 2;
        if (now && way_ == Way::failure) {
            return Error(ErrorCode::internal, "the grammar asks for too much",
                         reasons::constraint_too_costly);
        }
        for (std::uint32_t& word : allowed)
            word = now && way_ == Way::nothing ? 0 : 0xff;
        return {};
    }
    bool accept(TokenId) override { return ++accepted_ <= 2; }
    void roll_back(std::size_t count) override { accepted_ -= count; }

  private:
    Way way_;
    std::size_t accepted_ = 0;
};

class BrokenGrammar final : public OutputGrammar {
  public:
    explicit BrokenGrammar(Broken::Way way) : way_(way) {}
    std::unique_ptr<TokenConstraint> start() const override {
        return std::make_unique<Broken>(way_);
    }

  private:
    Broken::Way way_;
};

TEST(Constraint, FaultsEndThatChoiceAloneByName) {
    const tests::QuietLog quiet;
    std::mt19937 random(5);
    const auto engine = make_fake_engine(fake_options(50, 4));
    GenerationRequest healthy = request_of(random, false);
    healthy.max_tokens = 60;
    healthy.ignore_eos = true;
    ReplyCollector neighbour;
    const RequestId neighbour_id = engine->submit(healthy, neighbour).value();
    using Way = Broken::Way;
    for (const auto& [way, reason] : {std::pair(Way::nothing, reasons::no_token_left),
                                      std::pair(Way::failure, reasons::constraint_too_costly),
                                      std::pair(Way::refusal, std::string_view())}) {
        GenerationRequest request = request_of(random, false);
        request.grammar = std::make_shared<BrokenGrammar>(way);
        ReplyCollector collector;
        const RequestId id = engine->submit(request, collector).value();
        collector.wait_for(1);
        const CollectedReply reply = collector.reply(id);
        ASSERT_EQ(reply.finished->reason, FinishReason::failed);
        EXPECT_EQ(reply.finished->error->reason(), reason);
        // A refusal is found with the mask behind the token refused.
        EXPECT_EQ(reply.tokens.size(), way == Way::refusal ? 3u : 2u);
    }
    neighbour.wait_for(1);
    EXPECT_EQ(neighbour.reply(neighbour_id).tokens,
              expected_reply(healthy, *healthy.sampling.seed, 0, 50 * 64).tokens);
}

}  // namespace
}  // namespace percheron::engine::testing
