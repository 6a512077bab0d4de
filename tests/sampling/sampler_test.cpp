#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace percheron::sampling {
namespace {

struct Case {
    std::vector<float> logits;
    SamplingParameters parameters;
    std::vector<TokenId> before;  // tokens before p
    std::vector<TokenId> banned, masked;
    std::vector<std::uint32_t> allowed;
    NoiseStream noise;
    Position position = 0;
};

// The contract of sampler.h written down a second time, in the plainest way: every step a full pass
// over (l, id) pairs, everything sorted.  Returns the ids left with their l, in descending order.
std::vector<std::pair<double, int>> plain_candidates(const Case& c) {
    const auto holds = [](const std::vector<TokenId>& list, int v) {
        return std::find(list.begin(), list.end(), TokenId(v)) != list.end();
    };
    std::vector<std::pair<double, int>> left;
    for (int v = 0; v < static_cast<int>(c.logits.size()); ++v) {
        double l = c.logits[static_cast<std::size_t>(v)];
        const auto count = std::count(c.before.begin(), c.before.end(), TokenId(v));
        if (count > 0) {
            l = l > 0 ? l / c.parameters.repetition_penalty : l * c.parameters.repetition_penalty;
            l -= c.parameters.presence_penalty;
            l -= double{c.parameters.frequency_penalty} * static_cast<double>(count);
        }
        for (const auto& [token, bias] : c.parameters.logit_bias) {
            l += to_int(token) == v ? bias : 0.0f;
        }
        const auto word = static_cast<std::size_t>(v) / 32;
        const bool allowed = c.allowed.empty() || (c.allowed[word] >> (v % 32) & 1u) != 0;
        if (allowed && !holds(c.banned, v) && !holds(c.masked, v)) {
            left.emplace_back(l, v);
        }
    }
    std::sort(left.begin(), left.end(), [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    if (c.parameters.temperature == 0.0f || left.empty()) {
        return left;
    }
    for (auto& [l, v] : left) {
        l /= c.parameters.temperature;
    }
    if (c.parameters.top_k > 0 && left.size() > static_cast<std::size_t>(c.parameters.top_k)) {
        left.resize(static_cast<std::size_t>(c.parameters.top_k));
    }
    const double largest = left.front().first;
    if (c.parameters.top_p < 1.0f) {
        double total = 0;
        for (const auto& [l, v] : left) {
            total += std::exp(l - largest);
        }
        double reached = 0;
        std::size_t kept = 0;
        while (kept < left.size() && reached < c.parameters.top_p * total) {
            reached += std::exp(left[kept++].first - largest);
        }
        left.resize(kept);
    }
    if (c.parameters.min_p > 0) {
        while (left.back().first < largest + std::log(double{c.parameters.min_p})) {
            left.pop_back();
        }
    }
    return left;
}

int plain_choice(const Case& c) {
    int best = -1;
    double best_sum = -std::numeric_limits<double>::infinity();
    for (const auto& [l, v] : plain_candidates(c)) {
        const double sum = c.parameters.temperature == 0.0f
                               ? l
                               : l + coupled_noise(c.noise, c.position, TokenId(v));
        if (sum > best_sum || (sum == best_sum && v < best)) {
            best_sum = sum;
            best = v;
        }
    }
    return best;
}

SamplingRow row_of(const Case& c, const TokenCounts& counts) {
    SamplingRow row;
    row.logits = c.logits;
    row.parameters = &c.parameters;
    row.counts = &counts;
    row.banned = c.banned;
    row.masked = c.masked;
    row.allowed = c.allowed;
    row.noise = c.noise;
    row.position = c.position;
    return row;
}

TokenCounts counts_of(const Case& c) {
    TokenCounts counts(c.logits.size());
    counts.add(c.before);
    return counts;
}

Case random_case(std::mt19937& random) {
    const auto chance = [&](double p) { return std::bernoulli_distribution(p)(random); };
    const auto real = [&](double low, double high) {
        return static_cast<float>(std::uniform_real_distribution<double>(low, high)(random));
    };
    Case c;
    const std::size_t vocabulary = 2 + random() % 300;
    const auto token = [&] { return TokenId(static_cast<int>(random() % vocabulary)); };
    c.logits.resize(vocabulary);
    const float spread = real(0.1, 12);
    const bool coarse = chance(0.3);  // many exact ties
    for (float& logit : c.logits) {
        logit = std::normal_distribution<float>(0, spread)(random);
        logit = coarse ? std::round(logit) : logit;
    }
    c.logits[0] += 0.5f;  // never all equal
    SamplingParameters& p = c.parameters;
    p.temperature = chance(0.2) ? 0.0f : real(0.05, 2.5);
    p.top_p = chance(0.4) ? 1.0f : real(0.01, 0.999);
    p.top_k = chance(0.5) ? 0 : static_cast<int>(1 + random() % (vocabulary + 5));
    p.min_p = chance(0.6) ? 0.0f : real(0.001, 0.99);
    p.repetition_penalty = chance(0.5) ? 1.0f : real(0.5, 2);
    p.presence_penalty = chance(0.5) ? 0.0f : real(-2, 2);
    p.frequency_penalty = chance(0.5) ? 0.0f : real(-2, 2);
    for (std::size_t i = random() % 4; i > 0; --i) {
        p.logit_bias.emplace_back(token(), real(-100, 100));
    }
    for (std::size_t i = random() % 60; i > 0; --i) {
        c.before.push_back(token());
    }
    for (std::size_t i = random() % 3; i > 0; --i) {
        c.banned.push_back(token());
    }
    for (std::size_t i = random() % 3; i > 0; --i) {
        c.masked.push_back(token());
    }
    if (chance(0.3)) {
        c.allowed.resize((vocabulary + 31) / 32);
        for (std::uint32_t& word : c.allowed) {
            word = static_cast<std::uint32_t>(random());
        }
    }
    c.noise = {std::uint64_t{random()} << 32 | random(), static_cast<std::uint32_t>(random() % 9)};
    c.position = static_cast<Position>(random() % 100'000);
    return c;
}

TEST(Sampler, AgreesWithThePlainFormOfItsContract) {
    std::mt19937 random(20);
    int dead_ends = 0;
    for (int repeat = 0; repeat < 20'000; ++repeat) {
        const Case c = random_case(random);
        Sampler sampler(c.logits.size());
        const TokenCounts counts = counts_of(c);
        const auto expected = plain_candidates(c);
        const auto candidates = sampler.candidates(row_of(c, counts));
        if (expected.empty()) {
            ++dead_ends;
            ASSERT_FALSE(candidates.ok());
            ASSERT_EQ(candidates.error().reason(), reasons::no_token_left);
            continue;
        }
        ASSERT_TRUE(candidates.ok()) << candidates.error().message();
        std::map<int, double> got;
        for (const Sampler::Candidate& candidate : *candidates) {
            got[to_int(candidate.id)] = candidate.logit;
        }
        ASSERT_EQ(got.size(), expected.size()) << "case " << repeat;
        for (const auto& [l, v] : expected) {
            ASSERT_TRUE(got.contains(v)) << "case " << repeat;
            ASSERT_EQ(got[v], l);
        }
        const auto token = sampler.choose(row_of(c, counts));
        ASSERT_TRUE(token.ok());
        ASSERT_EQ(to_int(*token), plain_choice(c)) << "case " << repeat;
    }
    EXPECT_GT(dead_ends, 0);
}

TEST(Sampler, NeverGivesABannedOrMaskedIdWhateverTheBias) {
    std::mt19937 random(21);
    int pushed = 0;
    for (int repeat = 0; repeat < 3000; ++repeat) {
        Case c = random_case(random);
        c.allowed.clear();
        if (c.banned.empty() || c.masked.empty()) {
            continue;
        }
        c.parameters.logit_bias = {{c.banned[0], 1e6f}, {c.masked[0], 1e6f}};
        const auto holds = [](const std::vector<TokenId>& list, TokenId v) {
            return std::find(list.begin(), list.end(), v) != list.end();
        };
        Sampler sampler(c.logits.size());
        const auto token = sampler.choose(row_of(c, counts_of(c)));
        if (token.ok()) {
            ++pushed;
            ASSERT_FALSE(holds(c.banned, *token) || holds(c.masked, *token));
        }
    }
    EXPECT_GT(pushed, 1000);
}

TEST(Sampler, TakesTheFirstOfTheLargestLogitsThatIsNotExcluded) {
    std::mt19937 random(31);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    // Few values, so that ties are common; both zeros are one value.
    const float values[] = {-0.0f, 0.0f, -1.5f, 2.0f, -3e38f, 3e38f, 1e-40f, -1e-40f};
    for (int trial = 0; trial < 2000; ++trial) {
        Case c;
        c.parameters.temperature = 0.0f;
        const std::size_t kinds = 2 + below(7);
        c.logits.resize(2 + below(100));
        for (float& logit : c.logits) {
            logit = values[below(std::min<std::size_t>(kinds, 8))];
        }
        c.logits[0] = -5.0f;  // not all equal
        for (std::vector<TokenId>* list : {&c.banned, &c.masked}) {
            for (std::size_t i = below(4); i > 0; --i) {
                list->push_back(TokenId(static_cast<int>(below(c.logits.size()))));
            }
        }
        std::size_t best = c.logits.size();
        for (std::size_t v = 0; v < c.logits.size(); ++v) {
            const auto excluded = [&](const std::vector<TokenId>& list) {
                return std::find(list.begin(), list.end(), TokenId(static_cast<int>(v))) !=
                       list.end();
            };
            if (excluded(c.banned) || excluded(c.masked)) {
                continue;
            }
            if (best == c.logits.size() || c.logits[v] > c.logits[best]) {
                best = v;
            }
        }
        Sampler sampler(c.logits.size());
        SamplingRow row;
        row.logits = c.logits;
        row.parameters = &c.parameters;
        row.banned = c.banned;
        row.masked = c.masked;
        const Result<TokenId> chosen = sampler.choose(row);
        if (best == c.logits.size()) {
            EXPECT_FALSE(chosen.ok());
            continue;
        }
        ASSERT_TRUE(chosen.ok());
        EXPECT_EQ(to_int(*chosen), static_cast<int>(best)) << trial;
    }
}

TEST(Sampler, TopPKeepsTheTokenThatReachesTheShareAndNoMore) {
    // Probabilities 1/2, 1/4, 1/8, 1/8.
    Case c;
    c.logits = {std::log(2.0f), 0.0f, std::log(4.0f), 0.0f};
    const auto kept = [&c](float top_p) {
        c.parameters.top_p = top_p;
        Sampler sampler(4);
        const TokenCounts counts(4);
        std::set<int> ids;
        const auto candidates = sampler.candidates(row_of(c, counts)).value();
        for (const auto& candidate : candidates) {
            ids.insert(to_int(candidate.id));
        }
        return ids;
    };
    EXPECT_EQ(kept(0.001f), (std::set{2}));
    EXPECT_EQ(kept(0.49f), (std::set{2}));
    EXPECT_EQ(kept(0.51f), (std::set{0, 2}));
    EXPECT_EQ(kept(0.80f), (std::set{0, 1, 2}));  // of the two eighths the lower id
    EXPECT_EQ(kept(0.88f), (std::set{0, 1, 2, 3}));
    EXPECT_EQ(kept(1.0f), (std::set{0, 1, 2, 3}));
}

TEST(Sampler, ASampleIsUnchangedByCandidatesThatCannotWin) {
    // Coupling: cutting the tail changes a token only where the tail had won.
    std::mt19937 random(22);
    for (int repeat = 0; repeat < 2000; ++repeat) {
        Case c = random_case(random);
        c.parameters.temperature = 1.0f;
        c.parameters.top_k = 0;
        c.parameters.min_p = 0;
        c.parameters.top_p = 1.0f;
        c.banned.clear(), c.masked.clear(), c.allowed.clear();
        Sampler sampler(c.logits.size());
        const TokenCounts counts = counts_of(c);
        const TokenId whole = sampler.choose(row_of(c, counts)).value();
        c.parameters.top_p = 0.8f;
        const TokenId cut = sampler.choose(row_of(c, counts)).value();
        const auto nucleus = sampler.candidates(row_of(c, counts)).value();
        const bool whole_in_nucleus = std::any_of(nucleus.begin(), nucleus.end(),
                                                  [&](const auto& k) { return k.id == whole; });
        ASSERT_EQ(whole_in_nucleus, whole == cut);
    }
}

TEST(Sampler, NamesANumericalFaultAndGivesNoToken) {
    const float infinity = std::numeric_limits<float>::infinity();
    std::mt19937 random(23);
    for (const float poison : {std::nanf(""), infinity, -infinity}) {
        for (const std::size_t vocabulary : {2u, 33u, 1000u}) {
            Case c;
            c.logits.resize(vocabulary);
            std::iota(c.logits.begin(), c.logits.end(), 0.0f);
            c.logits[random() % vocabulary] = poison;
            Sampler sampler(vocabulary);
            const auto token = sampler.choose(row_of(c, counts_of(c)));
            ASSERT_FALSE(token.ok());
            EXPECT_EQ(token.error().code(), ErrorCode::internal);
            EXPECT_EQ(token.error().reason(), reasons::numerical_fault);
        }
    }
    Case flat;
    flat.logits.assign(100, 3.25f);
    Sampler sampler(100);
    const auto token = sampler.choose(row_of(flat, counts_of(flat)));
    ASSERT_FALSE(token.ok());
    EXPECT_EQ(token.error().reason(), reasons::numerical_fault);
}

TEST(Sampler, LogProbabilitiesComeFromTheModelsOwnDistribution) {
    std::mt19937 random(24);
    for (int repeat = 0; repeat < 500; ++repeat) {
        const Case c = random_case(random);
        std::vector<std::pair<double, int>> expected;
        double total = 0;
        for (const float logit : c.logits) {
            total += std::exp(double{logit});
        }
        for (int v = 0; v < static_cast<int>(c.logits.size()); ++v) {
            if (std::find(c.banned.begin(), c.banned.end(), TokenId(v)) == c.banned.end()) {
                expected.emplace_back(-(c.logits[static_cast<std::size_t>(v)] - std::log(total)),
                                      v);
            }
        }
        std::sort(expected.begin(), expected.end());
        Sampler sampler(c.logits.size());
        EngineEvents::Logprobs got;
        const TokenId chosen = TokenId(static_cast<int>(random() % c.logits.size()));
        const std::size_t top = random() % (c.logits.size() + 3);
        ASSERT_TRUE(sampler.log_probabilities(c.logits, chosen, top, c.banned, got).ok());
        ASSERT_NEAR(got.chosen,
                    c.logits[static_cast<std::size_t>(to_int(chosen))] - std::log(total), 1e-4);
        ASSERT_EQ(got.top.size(), std::min(top, expected.size()));
        for (std::size_t i = 0; i < got.top.size(); ++i) {
            ASSERT_EQ(to_int(got.top[i].id), expected[i].second);
            ASSERT_NEAR(got.top[i].logprob, -expected[i].first, 1e-4);
        }
    }
}

// The quantile of chi-square at `normal_quantile` (Wilson and Hilferty).
double chi_square_quantile(double degrees, double normal_quantile) {
    const double ninth = 2.0 / (9.0 * degrees);
    return degrees * std::pow(1.0 - ninth + normal_quantile * std::sqrt(ninth), 3);
}

TEST(Sampler, DrawsFromTheExactDistributionOfTwoSuccessiveTokens) {
    constexpr int vocabulary = 32;
    constexpr int draws = 20'000;
    // A toy language: the logits of the second token are a function of the first.
    const auto logits_after = [](int previous) {
        std::mt19937 random(static_cast<unsigned>(1000 + previous));
        std::vector<float> logits(vocabulary);
        for (float& logit : logits) {
            logit = std::normal_distribution<float>(0, 1)(random);
        }
        return logits;
    };
    SamplingParameters parameters;
    parameters.temperature = 0.7f;
    parameters.top_p = 0.9f;
    Sampler sampler(vocabulary);
    const auto draw = [&](int previous, NoiseStream noise, Position position) {
        const std::vector<float> logits = logits_after(previous);
        SamplingRow row;
        row.logits = logits;
        row.parameters = &parameters;
        row.noise = noise;
        row.position = position;
        return to_int(sampler.choose(row).value());
    };
    const auto distribution = [&](int previous) {
        Case c;
        c.logits = logits_after(previous);
        c.parameters = parameters;
        std::map<int, double> result;
        double total = 0;
        for (const auto& [l, v] : plain_candidates(c)) {
            total += result[v] = std::exp(l);
        }
        for (auto& [v, p] : result) {
            p /= total;
        }
        return result;
    };
    std::map<std::pair<int, int>, int> seen;
    for (int i = 0; i < draws; ++i) {
        const NoiseStream noise{static_cast<std::uint64_t>(i) * 7919 + 3, 0};
        const int first = draw(-1, noise, 40);
        const int second = draw(first, noise, 41);
        ++seen[{first, second}];
        // The same seed gives the same draws.
        ASSERT_EQ(first, draw(-1, noise, 40));
    }
    double statistic = 0;
    double rest_expected = 0;
    int rest_seen = draws;
    int cells = 0;
    for (const auto& [first, p] : distribution(-1)) {
        for (const auto& [second, q] : distribution(first)) {
            const double expected = p * q * draws;
            if (expected >= 20) {  // rarer pairs are counted together
                const int count = seen[{first, second}];
                statistic += (count - expected) * (count - expected) / expected;
                rest_seen -= count;
                ++cells;
            } else {
                rest_expected += expected;
            }
        }
    }
    ASSERT_GT(cells, 30);
    ASSERT_GT(rest_expected, 5);
    statistic += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    EXPECT_LT(statistic, chi_square_quantile(cells, 3.0902)) << cells << " cells";
}

TEST(Sampler, AnotherSeedOrChoiceDrawsAnotherSequence) {
    std::vector<float> logits(200);
    std::mt19937 random(25);
    for (float& logit : logits) {
        logit = std::normal_distribution<float>(0, 1)(random);
    }
    SamplingParameters parameters;
    Sampler sampler(logits.size());
    const auto sequence = [&](NoiseStream noise) {
        std::vector<int> ids;
        for (Position p = 0; p < 32; ++p) {
            SamplingRow row;
            row.logits = logits;
            row.parameters = &parameters;
            row.noise = noise;
            row.position = p;
            ids.push_back(to_int(sampler.choose(row).value()));
        }
        return ids;
    };
    EXPECT_EQ(sequence({5, 0}), sequence({5, 0}));
    EXPECT_NE(sequence({5, 0}), sequence({6, 0}));
    EXPECT_NE(sequence({5, 0}), sequence({5, 1}));
}

}  // namespace
}  // namespace percheron::sampling
