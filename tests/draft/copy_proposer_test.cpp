#include "draft/copy_proposer.h"

#include <algorithm>
#include <random>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace percheron::draft {
namespace {

using Tokens = std::vector<TokenId>;

Tokens text(std::string_view letters) {
    Tokens tokens;
    for (const char letter : letters)
        tokens.push_back(TokenId(letter));
    return tokens;
}

Tokens proposed(CopyProposer& proposer, const Tokens& tokens, std::uint32_t most,
                std::uint32_t slot = 0) {
    Tokens drafts;
    DraftSequence sequence;
    sequence.slot = RequestSlot(slot);
    sequence.tokens = tokens;
    sequence.most = most;
    sequence.drafts = &drafts;
    EXPECT_TRUE(proposer.propose(ops::NumericClass::decode, {&sequence, 1}).ok());
    return drafts;
}

// What the header says, by looking at every place.
Tokens expected(const Tokens& tokens, std::uint32_t most, const CopyOptions& options) {
    std::size_t best = 0, best_agreed = 0;
    const std::size_t end = tokens.size();
    for (std::size_t place = end; place-- > options.shortest;) {
        std::size_t agreed = 0;
        while (agreed < std::min<std::size_t>(place, options.longest) &&
               tokens[place - 1 - agreed] == tokens[end - 1 - agreed]) {
            ++agreed;
        }
        if (agreed >= options.shortest && agreed > best_agreed) {
            best = place;
            best_agreed = agreed;
        }
    }
    Tokens drafts;
    if (best_agreed == 0) return drafts;
    for (std::uint32_t i = 0; i < most; ++i) {
        drafts.push_back(best + i < end ? tokens[best + i] : drafts[best + i - end]);
    }
    return drafts;
}

TEST(CopyProposer, GoesOnWhereTheEndStoodBefore) {
    CopyProposer proposer(1, {});
    EXPECT_EQ(proposed(proposer, text("the cat sat on the mat; the cat "), 5), text("sat o"));
    EXPECT_EQ(proposer.agreed(RequestSlot(0)), 8u);
}

TEST(CopyProposer, PrefersTheLongerAgreementThenTheNewer) {
    CopyProposer longer(1, {});
    EXPECT_EQ(proposed(longer, text("xabcd1 yabcd2 xabcd"), 1), text("1"));
    CopyProposer newer(1, {});
    EXPECT_EQ(proposed(newer, text("abc1 abc2 abc"), 1), text("2"));
}

TEST(CopyProposer, ARepetitionGoesOnIntoTheDraft) {
    CopyProposer proposer(1, {});
    EXPECT_EQ(proposed(proposer, text("ababab"), 7), text("abababa"));
    proposer.begin(RequestSlot(0));
    EXPECT_EQ(proposed(proposer, text("zzzz"), 3), text("zzz"));
}

TEST(CopyProposer, NewTextHasNothingToCopy) {
    CopyProposer proposer(1, {});
    EXPECT_TRUE(proposed(proposer, text("abcdefgh"), 4).empty());
    EXPECT_TRUE(proposed(proposer, text("abcdefghab"), 4).empty());
    EXPECT_EQ(proposer.agreed(RequestSlot(0)), 0u);
    for (const char* tiny : {"", "a", "ab", "abc"}) {
        proposer.begin(RequestSlot(0));
        EXPECT_TRUE(proposed(proposer, text(tiny), 4).empty());
    }
}

TEST(CopyProposer, AnotherSequenceInTheSlotSeesNothingOfTheFirst) {
    CopyProposer proposer(2, {});
    EXPECT_EQ(proposed(proposer, text("abcd abc"), 1), text("d"));
    EXPECT_TRUE(proposed(proposer, text("e abc"), 1, 1).empty());
    proposer.begin(RequestSlot(0));
    EXPECT_TRUE(proposed(proposer, text("e abc"), 1).empty());
}

// Texts that grow by odd steps, asked now and then, against a search of the whole text.
TEST(CopyProposer, EqualsASearchOfTheWholeText) {
    std::mt19937 random(3);
    std::size_t found = 0;
    for (int trial = 0; trial < 300; ++trial) {
        CopyOptions options;
        options.shortest = 1 + random() % 4;
        options.longest = options.shortest + random() % 10;
        options.looked_at = 1000;
        CopyProposer proposer(1, options);
        const unsigned letters = 2 + random() % 5;
        Tokens tokens;
        while (tokens.size() < 900) {
            for (std::size_t more = 1 + random() % (trial % 4 == 0 ? 300 : 9); more > 0; --more) {
                tokens.push_back(TokenId(static_cast<int>(random() % letters)));
            }
            const std::uint32_t most = random() % 12;
            const Tokens drafts = proposed(proposer, tokens, most);
            ASSERT_LE(drafts.size(), most);
            ASSERT_EQ(drafts, expected(tokens, most, options)) << "at " << tokens.size();
            found += drafts.empty() ? 0 : 1;
        }
    }
    EXPECT_GT(found, 1000u);
}

}  // namespace
}  // namespace percheron::draft
