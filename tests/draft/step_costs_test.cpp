#include "draft/step_costs.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace percheron::draft {
namespace {

double curve(double rows) {
    return 0.001 + 0.0002 * rows + 0.0015 * (1 - std::pow(0.75, rows));
}

TEST(StepCosts, LearnsACurveUnderNoise) {
    std::mt19937 random(1);
    StepCosts costs({16, 4});
    EXPECT_FALSE(costs.known());
    for (int i = 0; i < 3000; ++i) {
        const double rows = 1 + random() % 12;
        // One step in twenty the machine does something else.
        const double noise = std::exp(std::normal_distribution<double>(0, 0.05)(random));
        costs.observe(rows, curve(rows) * noise * (random() % 20 == 0 ? 4 : 1));
    }
    EXPECT_TRUE(costs.known());
    for (double rows = 2; rows <= 12; ++rows) {
        const double learned = costs.seconds(rows) / costs.seconds(1);
        EXPECT_NEAR(learned, curve(rows) / curve(1), 0.12 * curve(rows) / curve(1)) << rows;
    }
}

// The ratio decides about drafts.  A slow minute met with one number of rows is taken for its own
// at first; as soon as others are seen in it, the ratio is what it was.
TEST(StepCosts, ASlowMinuteChangesTheLevelAndNotTheRatio) {
    StepCosts costs;
    for (int i = 0; i < 2000; ++i)
        costs.observe(1 + i % 6, curve(1 + i % 6));
    const double ratio = costs.seconds(5) / costs.seconds(1);
    for (int i = 0; i < 60; ++i)
        costs.observe(5, 2 * curve(5));
    EXPECT_NEAR(costs.seconds(5), 2 * curve(5), 0.1 * curve(5));
    EXPECT_GE(costs.seconds(5) / costs.seconds(1), ratio);
    for (int i = 0; i < 40; ++i)
        costs.observe(1, 2 * curve(1));
    EXPECT_NEAR(costs.seconds(1), 2 * curve(1), 0.1 * curve(1));
    for (int i = 0; i < 600; ++i)
        costs.observe(1 + i % 6, 2 * curve(1 + i % 6));
    EXPECT_NEAR(costs.seconds(5) / costs.seconds(1), ratio, 0.05 * ratio);
    EXPECT_NEAR(costs.seconds(1), 2 * curve(1), 0.1 * curve(1));
}

TEST(StepCosts, TakesOneMeasuredNumberOfRowsForItsWholeCurve) {
    StepCosts experts({16, 4}), dense;
    for (int i = 0; i < 20; ++i) {
        experts.observe(1, 0.01);
        dense.observe(1, 0.01);
    }
    EXPECT_NEAR(experts.seconds(1), 0.01, 1e-6);
    // Two rows touch nearly twice the experts, sixteen hardly more than all.
    EXPECT_GT(experts.seconds(2), dense.seconds(2));
    EXPECT_LT(experts.seconds(64) - experts.seconds(48), dense.seconds(64) - dense.seconds(48));
    for (double rows = 1; rows < 600; rows += 0.5)
        EXPECT_GT(experts.seconds(rows + 0.5), experts.seconds(rows));
}

TEST(StepCosts, NumbersOfRowsBetweenMeasuredOnesAreCarriedOver) {
    StepCosts costs;
    for (int i = 0; i < 50; ++i)
        for (const double rows : {1.0, 4.0, 16.0})
            costs.observe(rows, 0.01 * std::sqrt(rows));
    EXPECT_NEAR(costs.seconds(8), 0.01 * std::sqrt(8.0), 0.002);
    EXPECT_NEAR(costs.seconds(2), 0.01 * std::sqrt(2.0), 0.002);
    // What took less with more rows was luck.
    for (int i = 0; i < 500; ++i)
        costs.observe(8, 0.005);
    EXPECT_GT(costs.seconds(8), costs.seconds(5));
}

// A few measured steps outweigh whatever was believed of the network, also of more rows.
TEST(StepCosts, BeyondWhatWasMeasuredAStepGrowsAsItDidBefore) {
    StepCosts costs;
    const auto line = [](double rows) { return 0.04 + 0.006 * rows; };
    for (int i = 0; i < 3; ++i)
        for (const double rows : {1.0, 2.0, 4.0, 8.0, 16.0})
            costs.observe(rows, line(rows));
    for (const double rows : {1.0, 8.0, 16.0, 32.0, 64.0, 128.0})
        EXPECT_NEAR(costs.seconds(rows), line(rows), 0.1 * line(rows)) << rows;
}

// A machine that was busy while steps were probed shows itself in the first step of any number of
// rows, one that got slower since in six; the others are taken to have been as wrong.
TEST(StepCosts, ProbesOfABusyMachineAreForgottenAtOnce) {
    for (const double busy : {0.4, 2.0, 5.0}) {
        for (const double met : {1.0, 2.0, 8.0}) {
            StepCosts costs;
            for (int round = 0; round < 3; ++round)
                for (const double rows : {1.0, 2.0, 4.0, 8.0, 9.0, 16.0, 17.0, 32.0})
                    costs.probe(rows, busy * curve(rows));
            // Meanwhile single steps have moved what is believed of the rows met by themselves.
            const double near = busy > 1 ? 0.15 : 0.25;
            const double ratio = costs.seconds(8) / costs.seconds(1);
            for (int i = 1; i < (busy > 1 ? 1 : 6); ++i)
                costs.observe(met, curve(met));
            EXPECT_GT(std::fabs(std::log(costs.seconds(1) / curve(1))), 0.4) << busy << ", " << met;
            costs.observe(met, curve(met));
            EXPECT_NEAR(costs.seconds(1), curve(1), near * curve(1)) << busy << ", " << met;
            EXPECT_NEAR(costs.seconds(8), curve(8), near * curve(8)) << busy << ", " << met;
            EXPECT_NEAR(costs.seconds(8) / costs.seconds(1), ratio, near * ratio);
        }
    }
}

// Fewer rows that were slow while the machine was busy lift no step that is met now, and the next
// row does not look free beside them.
TEST(StepCosts, SlowStepsOfFewerRowsAreOutweighedByWhatIsMet) {
    for (const double before : {9.0, 12.0, 14.0, 15.0}) {
        for (const double busy : {1.3, 2.0, 3.0}) {
            StepCosts costs;
            for (int round = 0; round < 3; ++round)
                for (const double rows : {1.0, 2.0, 4.0, 8.0, 9.0, 16.0, 17.0, 32.0})
                    costs.probe(rows, curve(rows));
            for (int i = 0; i < 25; ++i)
                costs.observe(before, busy * curve(before));
            for (int i = 0; i < 40; ++i)
                costs.observe(16, curve(16));
            EXPECT_NEAR(costs.seconds(16), curve(16), 0.12 * curve(16)) << before << ", " << busy;
            for (int i = 0; i < 40; ++i)
                costs.observe(i % 8 == 0 ? 17 : 16, curve(i % 8 == 0 ? 17 : 16));
            EXPECT_NEAR(costs.seconds(16), curve(16), 0.05 * curve(16)) << before << ", " << busy;
            EXPECT_GT(costs.seconds(20) - costs.seconds(16), 0.5 * (curve(20) - curve(16)))
                << before << ", " << busy;
        }
    }
}

TEST(StepCosts, StepsThatWereMetLatelyDoNotFollowOthers) {
    StepCosts costs;
    for (int i = 0; i < 300; ++i)
        costs.observe(1 + i % 2, curve(1 + i % 2));
    const double one = costs.seconds(1);
    for (int i = 0; i < 10; ++i)
        costs.observe(2, 2 * curve(2));
    EXPECT_NEAR(costs.seconds(2), 2 * curve(2), 0.2 * curve(2));
    EXPECT_NEAR(costs.seconds(1), one, 0.1 * one);
    // Two slow ones are no news.
    for (int i = 0; i < 2; ++i)
        costs.observe(1, 4 * curve(1));
    costs.observe(1, curve(1));
    EXPECT_NEAR(costs.seconds(1), one, 0.15 * one);
}

// Sixteen sequences of one row bring eight times the states of two sequences of eight; what was
// probed with few sequences is right for many.
TEST(StepCosts, SequencesAddWhatTheyBring) {
    const auto of_both = [](double rows, double sequences) {
        return curve(rows) + 0.00012 * (sequences - 1);
    };
    StepCosts costs({16, 4}), blind({16, 4});
    for (int round = 0; round < 3; ++round) {
        for (const double rows : {1.0, 2.0, 4.0, 8.0, 9.0, 16.0, 17.0, 32.0}) {
            const double sequences = std::ceil(rows / 8);
            costs.probe(rows, of_both(rows, sequences), sequences);
            blind.probe(rows, of_both(rows, sequences));
            if (rows == 8) {
                costs.set_sequence_share((of_both(8, 8) - of_both(8, 1)) / 7 / of_both(1, 1));
            }
        }
    }
    for (const double sequences : {1.0, 4.0, 16.0})
        for (const double rows : {16.0, 24.0, 32.0})
            EXPECT_NEAR(costs.seconds(rows, sequences), of_both(rows, sequences),
                        0.06 * of_both(rows, sequences));
    // Plain steps of sixteen have been met, drafted ones have not: how much slower are they?
    for (int i = 0; i < 50; ++i) {
        costs.observe(16, of_both(16, 16), 16);
        blind.observe(16, of_both(16, 16));
    }
    const double more = of_both(32, 16) / of_both(16, 16);
    EXPECT_NEAR(costs.seconds(32, 16) / costs.seconds(16, 16), more, 0.05 * more);
    EXPECT_LT(blind.seconds(32) / blind.seconds(16), 0.93 * more);
}

}  // namespace
}  // namespace percheron::draft
