#include "text/stop_strings.h"

#include <random>

#include <gtest/gtest.h>

namespace percheron {
namespace {

struct Outcome {
    std::string text;
    std::string found;
    bool operator==(const Outcome&) const = default;
};

// The definition: look at every beginning of the text, shortest first.
Outcome naive(const std::string& text, const std::vector<std::string>& strings) {
    for (std::size_t end = 1; end <= text.size(); ++end) {
        std::string found;
        for (const std::string& string : strings) {
            if (!string.empty() && std::string_view(text).substr(0, end).ends_with(string) &&
                string.size() > found.size()) {
                found = string;
            }
        }
        if (!found.empty()) return {text.substr(0, end - found.size()), found};
    }
    return {text, ""};
}

TEST(StopStrings, MatchTheDefinitionForEveryCutAndHoldNoMoreThanNeeded) {
    std::mt19937 random(15);
    const auto random_word = [&](std::size_t longest) {
        std::string word;
        for (std::size_t length = random() % (longest + 1); word.size() < length;)
            word += static_cast<char>('a' + random() % 2);
        return word;
    };
    int found_some = 0;
    for (int trial = 0; trial < 5000; ++trial) {
        std::vector<std::string> strings;
        for (std::size_t count = 1 + random() % 3; strings.size() < count;)
            strings.push_back(random_word(6));
        const std::string text = random_word(24);
        const Outcome expected = naive(text, strings);
        const StopStrings stops(strings);
        StopMatcher matcher(stops);
        Outcome outcome;
        std::string_view rest = text;
        while (!rest.empty() && outcome.found.empty()) {
            const std::size_t count = 1 + random() % rest.size();
            const std::string* found = matcher.append(rest.substr(0, count), outcome.text);
            rest.remove_prefix(count);
            if (found != nullptr) outcome.found = *found;
            if (found != nullptr) continue;
            // What is held begins some string, and nothing longer could.
            const std::string so_far(text.substr(0, text.size() - rest.size()));
            std::size_t longest = 0;
            for (const std::string& string : strings) {
                for (std::size_t n = 1; n < string.size(); ++n) {
                    if (so_far.ends_with(string.substr(0, n))) longest = std::max(longest, n);
                }
            }
            EXPECT_EQ(matcher.held().size(), longest);
        }
        if (outcome.found.empty()) matcher.flush(outcome.text);
        EXPECT_EQ(outcome, expected) << text;
        found_some += outcome.found.empty() ? 0 : 1;
    }
    EXPECT_GT(found_some, 1000);
}

}  // namespace
}  // namespace percheron
