// A digest gives the token of its row, or asks for the row: never another token.
#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "ops/reference/logit_digest.h"
#include "sampling/sampler.h"

namespace percheron::sampling {
namespace {

// One row that is nowhere until it is fetched.
class HeldRow final : public ops::DigestedRows {
  public:
    HeldRow(std::vector<float> logits, ops::LogitDigest digest)
        : logits_(std::move(logits)), values_(logits_.size(), std::nanf("")), digest_(digest) {}

    std::span<const ops::LogitDigest> digests() const override { return {&digest_, 1}; }
    Status fetch(std::size_t) override {
        fetched = true;
        values_ = logits_;
        return {};
    }
    LogitRow row() { return LogitRows(values_, values_.size(), this)[0]; }

    bool fetched = false;

  private:
    std::vector<float> logits_, values_;
    ops::LogitDigest digest_;
};

struct Case {
    std::vector<float> logits;
    SamplingParameters parameters;
    std::vector<TokenId> banned, masked;
    std::vector<std::uint32_t> allowed;
    TokenCounts counts{0};
    NoiseStream noise;
    Position position = 0;
};

Case random_case(std::mt19937& random) {
    const auto chance = [&](double p) { return std::bernoulli_distribution(p)(random); };
    const auto real = [&](double low, double high) {
        return static_cast<float>(std::uniform_real_distribution<double>(low, high)(random));
    };
    Case c;
    const std::size_t vocabulary = 2 + random() % (chance(0.2) ? 3000 : 300);
    const auto token = [&] { return TokenId(static_cast<int>(random() % vocabulary)); };
    c.logits.resize(vocabulary);
    const float spread = real(0.1, 12);
    const bool coarse = chance(0.3);  // many exact ties, both zeros among them
    for (float& logit : c.logits) {
        logit = std::normal_distribution<float>(0, spread)(random);
        logit = coarse ? std::round(logit) : logit;
    }
    c.logits[0] += 0.5f;  // never all equal
    SamplingParameters& p = c.parameters;
    p.temperature = chance(0.25) ? 0.0f : real(0.05, 2.5);
    p.top_p = chance(0.5) ? 1.0f : real(0.01, 0.999);
    p.min_p = chance(0.7) ? 0.0f : real(0, 0.5);
    p.top_k = chance(0.7) ? 0 : static_cast<int>(1 + random() % 350);
    p.top_logprobs = chance(0.5) ? -1 : static_cast<int>(random() % 21);
    c.counts = TokenCounts(vocabulary);
    if (chance(0.1)) {
        p.repetition_penalty = real(0.8, 1.5);
        for (int i = 0; i < 20; ++i)
            c.counts.add(token());
    }
    if (chance(0.1)) p.logit_bias = {{token(), real(-8, 8)}};
    // The likeliest ones more often than chance would.
    const auto likeliest = [&] {
        return TokenId(static_cast<int>(std::max_element(c.logits.begin(), c.logits.end()) -
                                        c.logits.begin()));
    };
    while (chance(0.4))
        c.banned.push_back(chance(0.3) ? likeliest() : token());
    while (chance(0.3))
        c.masked.push_back(chance(0.3) ? likeliest() : token());
    if (chance(0.1)) {
        c.allowed.resize((vocabulary + 31) / 32);
        for (std::uint32_t& word : c.allowed)
            word = static_cast<std::uint32_t>(random());
    }
    c.noise = {random(), static_cast<std::uint32_t>(random() % 3)};
    c.position = static_cast<Position>(random() % 100000);
    return c;
}

SamplingRow row_of(const Case& c, const LogitRow& logits) {
    SamplingRow row;
    row.logits = logits;
    row.parameters = &c.parameters;
    row.counts = &c.counts;
    row.banned = c.banned;
    row.masked = c.masked;
    row.allowed = c.allowed;
    row.noise = c.noise;
    row.position = c.position;
    return row;
}

ops::LogitDigest digest_of(const Case& c) {
    std::vector<bool> excluded(c.logits.size());
    for (const TokenId token : c.banned)
        excluded[static_cast<std::size_t>(to_int(token))] = true;
    return ops::reference::digest_of(
        c.logits,
        digest_request(c.parameters, c.noise, c.position, !c.masked.empty() || !c.allowed.empty()),
        excluded);
}

// What a device may make of a sum: anything within the bound that it states.
void blur(ops::LogitDigest& digest, std::mt19937& random) {
    const double error = 1e-6 * digest.total;
    digest.total += std::uniform_real_distribution<double>(-error, error)(random);
    digest.total_error += error;
}

TEST(Digest, GivesTheTokenOfTheRowOrAsksForIt) {
    std::mt19937 random(31);
    std::size_t greedy = 0, cut = 0, noisy = 0, fetched = 0, plain = 0, plain_fetched = 0;
    for (int repeat = 0; repeat < 20000; ++repeat) {
        const Case c = random_case(random);
        Sampler sampler(c.logits.size());
        const Result<TokenId> expected = sampler.choose(row_of(c, c.logits));
        ops::LogitDigest digest = digest_of(c);
        blur(digest, random);
        HeldRow held(c.logits, digest);
        const Result<TokenId> token = sampler.choose(row_of(c, held.row()));
        ASSERT_EQ(token.ok(), expected.ok()) << repeat;
        if (!token.ok()) {
            ASSERT_EQ(token.error().reason(), expected.error().reason());
            continue;
        }
        ASSERT_EQ(*token, *expected) << repeat;
        const SamplingParameters& p = c.parameters;
        const bool is_greedy = p.temperature == 0;
        const bool cuts = p.top_k > 0 || p.top_p < 1 || p.min_p > 0;
        fetched += held.fetched ? 1 : 0;
        greedy += !held.fetched && is_greedy ? 1 : 0;
        cut += !held.fetched && !is_greedy && cuts ? 1 : 0;
        noisy += !held.fetched && !is_greedy && !cuts ? 1 : 0;
        // A list that happens to be the whole vocabulary does not know it.
        const std::size_t vocabulary = c.logits.size();
        const bool suits =
            is_greedy || !cuts ||
            (p.top_k > 0 ? static_cast<std::size_t>(p.top_k) + c.banned.size() <= vocabulary &&
                               p.top_k <= static_cast<int>(ops::LogitDigest::top_room)
                         : p.top_p < 1 && vocabulary <= ops::LogitDigest::top_room);
        if (suits && c.allowed.empty() && c.masked.empty() && p.logit_bias.empty() &&
            p.repetition_penalty == 1.0f) {
            ++plain;
            plain_fetched += held.fetched ? 1 : 0;
        }
    }
    EXPECT_GT(greedy, 2000u);
    EXPECT_GT(cut, 4000u);
    EXPECT_GT(noisy, 1000u);
    EXPECT_GT(fetched, 2000u);
    // Where nothing stands against it the digest is enough.
    EXPECT_GT(plain, 4000u);
    EXPECT_LT(plain_fetched, plain / 50);
}

TEST(Digest, GivesTheLogProbabilitiesOfTheRow) {
    std::mt19937 random(32);
    std::size_t from_digests = 0;
    for (int repeat = 0; repeat < 3000; ++repeat) {
        Case c = random_case(random);
        if (c.parameters.top_logprobs < 0) continue;
        const auto top = static_cast<std::size_t>(c.parameters.top_logprobs);
        Sampler sampler(c.logits.size());
        HeldRow held(c.logits, digest_of(c));
        const Result<TokenId> token = sampler.choose(row_of(c, held.row()));
        if (!token.ok()) continue;
        EngineEvents::Logprobs expected, got;
        ASSERT_TRUE(sampler.log_probabilities(c.logits, *token, top, c.banned, expected).ok());
        ASSERT_TRUE(sampler.log_probabilities(held.row(), *token, top, c.banned, got).ok());
        ASSERT_NEAR(got.chosen, expected.chosen, 1e-5f);
        ASSERT_EQ(got.top.size(), expected.top.size());
        for (std::size_t i = 0; i < got.top.size(); ++i) {
            ASSERT_EQ(got.top[i].id, expected.top[i].id);
            ASSERT_NEAR(got.top[i].logprob, expected.top[i].logprob, 1e-5f);
        }
        from_digests += held.fetched ? 0 : 1;
    }
    EXPECT_GT(from_digests, 500u);
}

TEST(Digest, NamesANumericalFaultWithoutTheRow) {
    for (const float poison : {std::nanf(""), INFINITY, -INFINITY, 1.0f}) {
        Case c;
        c.logits.assign(100, 1.0f);
        c.logits[37] = poison;
        Sampler sampler(c.logits.size());
        HeldRow held(c.logits, digest_of(c));
        const Result<TokenId> token = sampler.choose(row_of(c, held.row()));
        ASSERT_FALSE(token.ok());
        EXPECT_EQ(token.error().reason(), reasons::numerical_fault);
        EXPECT_FALSE(held.fetched);
    }
}

}  // namespace
}  // namespace percheron::sampling
