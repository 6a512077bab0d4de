#include "draft/depth_policy.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace percheron::draft {
namespace {

StepCosts line(double base, double row) {
    StepCosts costs;
    for (int i = 0; i < 400; ++i) {
        const double rows = 1 + i % 12;
        costs.observe(rows, base + row * rows);
    }
    return costs;
}

TEST(StepCosts, LearnsALineAndFollowsItsChange) {
    StepCosts costs = line(0.001, 0.0003);
    EXPECT_NEAR(costs.seconds_per_row(), 0.0003, 1e-5);
    EXPECT_NEAR(costs.seconds(5), 0.0025, 3e-5);
    for (int i = 0; i < 300; ++i)
        costs.observe(1 + i % 9, 0.004 + 0.001 * (1 + i % 9));
    EXPECT_NEAR(costs.seconds_per_row(), 0.001, 1e-4);
    EXPECT_NEAR(costs.seconds(4), 0.008, 3e-4);
}

TEST(StepCosts, GuessesAShareBeforeRowsHaveVaried) {
    StepCosts costs;
    EXPECT_FALSE(costs.known());
    for (int i = 0; i < 50; ++i)
        costs.observe(1, 0.01);
    EXPECT_TRUE(costs.known());
    EXPECT_NEAR(costs.seconds_per_row(), 0.003, 1e-9);
    EXPECT_NEAR(costs.seconds(1), 0.01, 1e-9);
    EXPECT_GT(costs.seconds(0), 0);
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

double rate_of(const std::vector<Choice>& choices, const std::vector<std::uint32_t>& offers,
               const std::vector<std::uint32_t>& depths, double base, double row) {
    auto tokens = static_cast<double>(choices.size());
    double seconds = base + row * tokens;
    for (std::size_t i = 0; i < choices.size(); ++i) {
        const Offer& offer = choices[i].offers[offers[i]];
        double chance = offer.first;
        for (std::uint32_t d = 0; d < depths[i]; ++d) {
            tokens += chance;
            seconds += row + offer.seconds;
            chance *= offer.later;
        }
    }
    return tokens / seconds;
}

// Against every combination of depths of small batches.
TEST(Depths, GiveTheBatchItsBestRate) {
    std::mt19937 random(4);
    const auto real = [&](double low, double high) {
        return std::uniform_real_distribution<double>(low, high)(random);
    };
    std::size_t drafted = 0, plain = 0;
    for (int trial = 0; trial < 300; ++trial) {
        const double base = real(0.001, 0.01), row = base * real(0.02, 1.0);
        const StepCosts costs = line(base, row);
        std::vector<Choice> choices(1 + random() % 3);
        for (Choice& choice : choices) {
            choice.drafting = true;
            choice.offers[0] = {real(0, 1), real(0, 1), std::uint32_t(random() % 4), 0};
            choice.offers[1] = {real(0, 1), real(0, 1), std::uint32_t(random() % 4),
                                real(0, 0.3) * base};
        }
        choose_depths(choices, costs);
        std::vector<std::uint32_t> offers, depths;
        for (const Choice& choice : choices) {
            offers.push_back(choice.offer);
            depths.push_back(choice.depth);
            ASSERT_LE(choice.depth, choice.offers[choice.offer].most);
            (choice.depth > 0 ? drafted : plain) += 1;
        }
        double best = 0;
        std::size_t combinations = 1;
        for (std::size_t i = 0; i < choices.size(); ++i)
            combinations *= 8;
        for (std::size_t code = 0; code < combinations; ++code) {
            std::vector<std::uint32_t> these_offers, these_depths;
            bool possible = true;
            for (std::size_t i = 0, rest = code; i < choices.size(); ++i, rest /= 8) {
                these_offers.push_back(rest % 2);
                these_depths.push_back(rest / 2 % 4);
                possible &= these_depths[i] <= choices[i].offers[these_offers[i]].most;
            }
            if (possible) {
                best = std::max(best, rate_of(choices, these_offers, these_depths, base, row));
            }
        }
        EXPECT_GE(rate_of(choices, offers, depths, base, row), 0.99 * best) << trial;
    }
    EXPECT_GT(drafted, 100u);
    EXPECT_GT(plain, 100u);
}

TEST(Depths, ReachNothingWhereTextDoesNotDraftWellOrRowsCostAsMuchAsSteps) {
    const StepCosts cheap_rows = line(0.01, 0.001), dear_rows = line(0.0001, 0.01);
    std::vector<Choice> choices(1);
    choices[0].drafting = true;
    choices[0].offers[0] = {0.8, 0.8, 7, 0.0005};
    choose_depths(choices, cheap_rows);
    EXPECT_GE(choices[0].depth, 4u);
    choices[0].offers[0].first = choices[0].offers[0].later = 0.05;
    choose_depths(choices, cheap_rows);
    EXPECT_EQ(choices[0].depth, 0u);
    choices[0].offers[0].first = choices[0].offers[0].later = 0.8;
    choose_depths(choices, dear_rows);
    EXPECT_EQ(choices[0].depth, 0u);
}

TEST(Depths, StartingAsksForMoreThanGoingOn) {
    const StepCosts costs = line(0.01, 0.005);
    // Worth it, but by less than the margin.
    std::vector<Choice> choices(1);
    choices[0].offers[0] = {0.36, 0.3, 3, 0};
    choices[0].drafting = true;
    choose_depths(choices, costs);
    EXPECT_EQ(choices[0].depth, 1u);
    choices[0].drafting = false;
    choose_depths(choices, costs);
    EXPECT_EQ(choices[0].depth, 0u);
}

}  // namespace
}  // namespace percheron::draft
