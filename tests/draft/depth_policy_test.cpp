#include "draft/depth_policy.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace percheron::draft {
namespace {

StepCosts line(double base, double row) {
    StepCosts costs;
    for (int i = 0; i < 4000; ++i) {
        const double rows = 1 + i % 16;
        costs.observe(rows, base + row * rows);
    }
    return costs;
}

TEST(Belief, FollowsTheLatestTries) {
    Belief belief(0.7, 4);
    EXPECT_DOUBLE_EQ(belief.chance(), 0.7);
    for (int i = 0; i < 100; ++i)
        belief.see(false);
    EXPECT_LT(belief.chance(), 0.02);
    for (int i = 0; i < 60; ++i)
        belief.see(true);
    EXPECT_GT(belief.chance(), 0.8);
}

double rate_of(const std::vector<Choice>& choices, const std::vector<bool>& timed,
               const std::vector<std::uint32_t>& depths, const RoundCosts& costs) {
    const auto sequences = static_cast<double>(choices.size());
    double tokens = sequences;
    std::uint32_t drafts = 0, passes = 0, passing = 0, drawn = 0;
    for (std::size_t i = 0; i < choices.size(); ++i) {
        const Offer& offer = timed[i] ? choices[i].timed : choices[i].copy;
        double chance = 1;
        for (std::uint32_t d = 0; d < depths[i]; ++d) {
            chance *= offer.chance(d);
            tokens += chance;
        }
        drafts += depths[i];
        if (timed[i] && depths[i] > 0) {
            ++passing;
            drawn += depths[i];
            passes = std::max(passes, depths[i]);
        }
    }
    double seconds = costs.step->seconds(sequences + drafts) + costs.draw * (tokens + drawn);
    if (passes > 0) {
        seconds += costs.passes->seconds(passing) * (costs.one_pass ? 1 : passes);
    }
    return tokens / seconds;
}

// Against every combination of depths of small batches.
TEST(Depths, GiveTheBatchItsBestRate) {
    std::mt19937 random(4);
    const auto real = [&](double low, double high) {
        return std::uniform_real_distribution<double>(low, high)(random);
    };
    const auto offer = [&] {
        return Offer{{real(0, 1), real(0, 1), real(0, 1)}, std::uint32_t(random() % 4)};
    };
    std::size_t copied = 0, timed = 0, plain = 0;
    DepthPolicy policy;
    for (int trial = 0; trial < 300; ++trial) {
        const double base = real(0.001, 0.01), row = base * real(0.02, 1.0);
        const StepCosts steps = line(base, row);
        const StepCosts passes = line(base * real(0, 0.3), row * 0.05);
        const double draw = trial % 2 == 0 ? 0 : base * real(0, 0.3);
        const RoundCosts costs{&steps, &passes, trial % 3 == 0, draw};
        std::vector<Choice> choices(1 + random() % 3);
        for (Choice& choice : choices) {
            choice.copy = offer();
            choice.timed = offer();
        }
        const double promised = policy.choose(choices, costs, true, true);
        std::vector<std::uint32_t> depths;
        std::vector<bool> kinds;
        for (const Choice& choice : choices) {
            ASSERT_LE(choice.depth, (choice.use_timed ? choice.timed : choice.copy).most);
            depths.push_back(choice.depth);
            kinds.push_back(choice.use_timed);
            (choice.depth == 0 ? plain : choice.use_timed ? timed : copied) += 1;
        }
        // Sequences that leave the passes early make them no dearer than was thought.
        EXPECT_GE(rate_of(choices, kinds, depths, costs), 0.999 * promised);
        double best = 0;
        std::size_t combinations = 1;
        for (std::size_t i = 0; i < choices.size(); ++i)
            combinations *= 8;
        for (std::size_t code = 0; code < combinations; ++code) {
            std::vector<std::uint32_t> these_depths;
            std::vector<bool> these_kinds;
            bool possible = true;
            for (std::size_t i = 0, rest = code; i < choices.size(); ++i, rest /= 8) {
                these_kinds.push_back(rest % 2 != 0);
                these_depths.push_back(rest / 2 % 4);
                possible &=
                    these_depths[i] <= (these_kinds[i] ? choices[i].timed : choices[i].copy).most;
            }
            if (possible) {
                best = std::max(best, rate_of(choices, these_kinds, these_depths, costs));
            }
        }
        // Who takes which proposer is settled sequence by sequence.
        EXPECT_GE(rate_of(choices, kinds, depths, costs), 0.96 * best) << trial;
    }
    EXPECT_GT(copied, 60u);
    EXPECT_GT(timed, 60u);
    EXPECT_GT(plain, 60u);
}

TEST(Depths, ReachNothingWhereTextDoesNotDraftWellOrRowsCostAsMuchAsSteps) {
    const StepCosts cheap_rows = line(0.01, 0.001), dear_rows = line(0.0001, 0.01),
                    passes = line(0.0005, 0.00001);
    DepthPolicy policy;
    std::vector<Choice> choices(1);
    const auto depth = [&](double chance, const StepCosts& steps) {
        choices[0].timed = {{chance, chance, chance}, 7};
        policy.choose(choices, {&steps, &passes, false}, true, true);
        return choices[0].depth;
    };
    EXPECT_GE(depth(0.8, cheap_rows), 4u);
    EXPECT_TRUE(choices[0].use_timed);
    EXPECT_EQ(depth(0.05, cheap_rows), 0u);
    EXPECT_EQ(depth(0.8, dear_rows), 0u);
}

TEST(Depths, StartingAsksForMoreThanGoingOn) {
    const StepCosts costs = line(0.01, 0.005), passes = line(0.0001, 0.0001);
    // Worth it, but by less than the margin.
    DepthPolicy policy;
    std::vector<Choice> choices(1);
    choices[0].copy = {{0.345, 0.1, 0.1}, 3};
    policy.choose(choices, {&costs, &passes, false}, true, false);
    EXPECT_EQ(choices[0].depth, 1u);
    policy.choose(choices, {&costs, &passes, false}, false, false);
    EXPECT_EQ(choices[0].depth, 0u);
    choices[0].copy = {};
    choices[0].timed = {{0.38, 0.1, 0.1}, 3};
    policy.choose(choices, {&costs, &passes, false}, true, true);
    EXPECT_EQ(choices[0].depth, 1u);
    policy.choose(choices, {&costs, &passes, false}, true, false);
    EXPECT_EQ(choices[0].depth, 0u);
}

// Who has many sequences has no room for drafts that few could afford.
TEST(Depths, FallWithTheNumberOfSequences) {
    StepCosts costs({16, 4});
    costs.observe(1, 0.01);
    DepthPolicy policy;
    std::uint32_t before = 8;
    for (const std::size_t sequences : {1u, 4u, 16u, 64u}) {
        std::vector<Choice> choices(sequences);
        for (Choice& choice : choices) {
            choice.copy = {{0.6, 0.9, 0.9}, 7};
        }
        policy.choose(choices, {&costs, nullptr, false}, true, false);
        std::uint32_t drafts = 0;
        for (const Choice& choice : choices) {
            drafts += choice.depth;
        }
        EXPECT_LE(double(drafts) / double(sequences), before + 1e-9);
        before = drafts / static_cast<std::uint32_t>(sequences);
        if (sequences == 1) {
            EXPECT_GT(drafts, 1u);
        }
    }
}

}  // namespace
}  // namespace percheron::draft
