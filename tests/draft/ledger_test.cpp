#include "draft/ledger.h"

#include <gtest/gtest.h>

namespace percheron::draft {
namespace {

TEST(Allowance, TriesThatNeverHoldTakeAHalfPerCentOfTheTime) {
    Allowance allowance;
    double time = 0, spent = 0;
    for (int step = 0; step < 20000; ++step) {
        allowance.grow(0.01);
        time += 0.01;
        if (allowance.spend(0.004)) {
            spent += 0.004;
            time += 0.004;
        }
    }
    EXPECT_GT(spent, 0.003 * time);
    EXPECT_LE(spent, 0.0052 * time);
}

TEST(Allowance, TriesThatHoldPayForTheNext) {
    Allowance allowance;
    for (int step = 0; step < 100; ++step)
        allowance.grow(0.01);
    int tries = 0;
    for (int step = 0; step < 100; ++step) {
        allowance.grow(0.01);
        if (allowance.spend(0.005)) {
            ++tries;
            allowance.earn(0.01);
        }
    }
    EXPECT_EQ(tries, 100);
    // However well it went, no more than a burst is saved up.
    for (tries = 0; allowance.spend(0.005); ++tries)
        ASSERT_LT(tries, 10);
}

TEST(Account, WhoLosesTimeRestsLongerAndLonger) {
    Account account;
    int rests = 0, steps = 0, last_rest = 0;
    while (rests < 4 && ++steps < 100000) {
        if (!account.resting()) {
            account.round(1.0, 0.9);
            if (account.resting()) ++rests;
            continue;
        }
        int rest = 0;
        for (; account.resting(); ++rest)
            account.pass_by();
        EXPECT_GE(rest, 2 * last_rest);
        last_rest = rest;
    }
    EXPECT_EQ(rests, 4);
    EXPECT_GT(last_rest, 1000);
}

TEST(Account, WhoSavesTimeNeverRestsAndOneBadRoundIsForgiven) {
    Account account;
    for (int i = 0; i < 10000; ++i) {
        account.round(1.0, i % 10 == 0 ? 0.5 : 1.2);
        ASSERT_FALSE(account.resting());
    }
}

}  // namespace
}  // namespace percheron::draft
