#include "draft/verification.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace percheron::draft {
namespace {

TokenId id(int number) {
    return TokenId(number);
}

// Takes what a list says and remembers which rows it was asked for.
struct ListedTokens {
    std::vector<TokenId> truth;
    std::size_t ends_after = 1000;
    std::vector<std::uint32_t> asked;

    Verdict verify(const std::vector<TokenId>& drafts) {
        return draft::verify(drafts, [&](std::uint32_t row) {
            asked.push_back(row);
            return TakenToken{truth.at(row), row + 1 == ends_after};
        });
    }
};

TEST(Verification, ADraftHoldsExactlyWhenItIsTheTokenAndAllBeforeHold) {
    std::mt19937 random(1);
    for (int trial = 0; trial < 3000; ++trial) {
        const std::size_t depth = random() % 9;
        ListedTokens listed;
        std::vector<TokenId> drafts;
        for (std::size_t i = 0; i <= depth; ++i) {
            listed.truth.push_back(id(static_cast<int>(random() % 2)));
            if (i < depth) drafts.push_back(id(static_cast<int>(random() % 2)));
        }
        const std::size_t agreeing = static_cast<std::size_t>(
            std::mismatch(drafts.begin(), drafts.end(), listed.truth.begin()).first -
            drafts.begin());
        listed.ends_after = random() % 3 == 0 ? 1 + random() % (depth + 1) : 1000;
        const Verdict verdict = listed.verify(drafts);
        const std::size_t rows = std::min(agreeing + 1, listed.ends_after);
        EXPECT_EQ(verdict.taken, rows);
        EXPECT_EQ(verdict.accepted, std::min(agreeing, rows));
        EXPECT_EQ(verdict.ended, listed.ends_after <= agreeing + 1);
        // In order, each once, none behind the first that does not hold.
        ASSERT_EQ(listed.asked.size(), rows);
        for (std::uint32_t row = 0; row < rows; ++row)
            EXPECT_EQ(listed.asked[row], row);
    }
}

TEST(Verification, WithoutDraftsOneTokenIsTaken) {
    ListedTokens listed;
    listed.truth = {id(4)};
    const Verdict verdict = listed.verify({});
    EXPECT_EQ(verdict.taken, 1u);
    EXPECT_EQ(verdict.accepted, 0u);
    EXPECT_FALSE(verdict.ended);
}

}  // namespace
}  // namespace percheron::draft
