// Drafts do not change how tokens are distributed.  Many short replies of the network of hashes,
// whose exact distribution can be written down: without drafts, behind a proposer that always names
// the same token, and behind one that draws as the engine does.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/fake_network.h"
#include "engine/guessing_proposer.h"
#include "engine/reply_collector.h"

namespace percheron::engine::testing {
namespace {

using Pair = std::pair<int, int>;
using Counts = std::map<Pair, std::uint64_t>;

constexpr int requests = 50;
constexpr std::uint32_t choices = 100;
constexpr double draws = requests * double{choices};

// The prompt, then three tokens: the second and the third are what a round decides at once.
GenerationRequest request_of(std::uint64_t seed) {
    GenerationRequest request;
    for (const int token : {7, 3, 31, 12, 5, 5, 20}) {
        request.prompt.push_back(TokenId(token));
    }
    request.sampling.temperature = 0.7f;
    request.sampling.top_p = 0.9f;
    request.sampling.seed = seed;
    request.choices = choices;
    request.max_tokens = 4;
    request.ignore_eos = true;
    return request;
}

std::map<int, double> distribution(const History& history, double temperature) {
    const GenerationRequest request = request_of(0);
    std::vector<float> logits(fake_vocabulary);
    for (std::uint32_t token = 0; token < fake_vocabulary; ++token) {
        logits[token] = fake_logit(history.hash(), token);
    }
    SamplingParameters parameters = request.sampling;
    parameters.temperature = static_cast<float>(temperature);
    const std::vector<TokenId> banned = {fake_banned}, stops = {fake_stop, fake_second_stop};
    sampling::SamplingRow row;
    row.logits = logits;
    row.parameters = &parameters;
    row.banned = banned;
    row.masked = stops;
    static sampling::Sampler sampler(fake_vocabulary);
    std::map<int, double> result;
    double total = 0;
    const Result<std::span<const sampling::Sampler::Candidate>> candidates =
        sampler.candidates(row);
    for (const auto& [logit, id] : *candidates) {
        total += result[to_int(id)] = std::exp(logit);
    }
    for (auto& [id, probability] : result) {
        probability /= total;
    }
    return result;
}

// Of the second and the third token, exactly.
std::map<Pair, double> exact_distribution(double temperature) {
    History prompt;
    for (const TokenId token : request_of(0).prompt) {
        prompt.add(token, ops::NumericClass::prefill);
    }
    std::map<Pair, double> result;
    for (const auto& [first, p] : distribution(prompt, temperature)) {
        History one = prompt;
        one.add(TokenId(first), ops::NumericClass::decode);
        for (const auto& [second, q] : distribution(one, temperature)) {
            History two = one;
            two.add(TokenId(second), ops::NumericClass::decode);
            for (const auto& [third, r] : distribution(two, temperature)) {
                result[{second, third}] += p * q * r;
            }
        }
    }
    return result;
}

struct Statistic {
    double value = 0;
    double limit = 0;  // reached by one correct sampler in a thousand
};

// The quantile of Wilson and Hilferty; pairs expected fewer than 20 times are one cell.
Statistic chi_square(const Counts& seen, const std::map<Pair, double>& exact) {
    Statistic statistic;
    double rest_expected = 0, rest_seen = draws;
    double degrees = 0;
    for (const auto& [pair, probability] : exact) {
        const double expected = probability * draws;
        if (expected < 20) {
            rest_expected += expected;
            continue;
        }
        const auto found = seen.find(pair);
        const double count = found == seen.end() ? 0 : static_cast<double>(found->second);
        statistic.value += (count - expected) * (count - expected) / expected;
        rest_seen -= count;
        ++degrees;
    }
    EXPECT_GT(degrees, 30);
    EXPECT_GT(rest_expected, 5);
    statistic.value += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    const double ninth = 2.0 / (9.0 * degrees);
    statistic.limit = degrees * std::pow(1.0 - ninth + 3.0902 * std::sqrt(ninth), 3);
    return statistic;
}

// Names token 5, whatever stands before it.
class FiveProposer final : public draft::Proposer {
  public:
    std::string_view name() const override { return "five"; }
    void begin(RequestSlot) override {}
    Status propose(ops::NumericClass, std::span<draft::DraftSequence> sequences) override {
        for (draft::DraftSequence& sequence : sequences) {
            sequence.drafts->assign(sequence.most, TokenId(5));
        }
        return {};
    }
};

struct Sample {
    Counts counts;
    std::vector<std::vector<TokenId>> replies;
    std::uint64_t accepted = 0;
    std::uint64_t rejected = 0;
};

Sample sample(std::unique_ptr<draft::Proposer> proposer, std::uint64_t seeds = 0) {
    LocalEngineOptions options = fake_options(64, 16);
    options.max_queued = 2 * choices;
    options.draft.depth = proposer ? 2 : 0;
    options.scheduler.draft_rows = 32;
    const auto engine = make_fake_engine(options, {}, false, std::move(proposer));
    Sample result;
    for (int i = 0; i < requests; ++i) {
        ReplyCollector collector;
        const RequestId id =
            engine->submit(request_of(seeds + static_cast<std::uint64_t>(i) * 7919), collector)
                .value();
        collector.wait_for(choices);
        EXPECT_EQ(collector.complaint(), "");
        for (std::uint32_t choice = 0; choice < choices; ++choice) {
            const CollectedReply reply = collector.reply(id, choice);
            ++result.counts[{to_int(reply.tokens.at(1)), to_int(reply.tokens.at(2))}];
            result.replies.push_back(reply.tokens);
            result.accepted += reply.accepted;
            result.rejected += reply.drafted - reply.accepted;
        }
    }
    return result;
}

TEST(DraftDistribution, IsTheExactOneWithAndWithoutDrafts) {
    const auto exact = exact_distribution(0.7);
    const Sample plain = sample(nullptr);
    const Statistic undrafted = chi_square(plain.counts, exact);
    EXPECT_LT(undrafted.value, undrafted.limit);
    EXPECT_EQ(plain.accepted + plain.rejected, 0u);
    for (const bool always_five : {true, false}) {
        std::unique_ptr<draft::Proposer> proposer;
        if (always_five) {
            proposer = std::make_unique<FiveProposer>();
        } else {
            proposer = std::make_unique<GuessingProposer>(0.3, 1);
        }
        const Sample drafted = sample(std::move(proposer));
        const Statistic statistic = chi_square(drafted.counts, exact);
        EXPECT_LT(statistic.value, statistic.limit) << always_five;
        EXPECT_EQ(drafted.replies, plain.replies) << always_five;
        EXPECT_GT(drafted.accepted, 50u) << always_five;
        EXPECT_GT(drafted.rejected, 1000u) << always_five;
    }
    // The test can tell: a slightly different distribution is far out.
    const Statistic warmer = chi_square(plain.counts, exact_distribution(0.8));
    EXPECT_GT(warmer.value, 2 * warmer.limit);
}

TEST(DraftDistribution, ASeedGivesItsDrawsAndAnotherGivesOthers) {
    const Sample one = sample(std::make_unique<FiveProposer>(), 5);
    EXPECT_EQ(one.replies, sample(std::make_unique<FiveProposer>(), 5).replies);
    const Sample other = sample(std::make_unique<FiveProposer>(), 6);
    EXPECT_NE(other.replies, one.replies);
    const Statistic statistic = chi_square(other.counts, exact_distribution(0.7));
    EXPECT_LT(statistic.value, statistic.limit);
}

}  // namespace
}  // namespace percheron::engine::testing
