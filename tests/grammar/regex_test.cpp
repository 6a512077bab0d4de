// Regular expressions become the language that another engine matches.
#include <random>
#include <regex>
#include <string>

#include <gtest/gtest.h>

#include "grammar/allowed_text.h"
#include "grammar/rule_writer.h"

namespace percheron::grammar::testing {
namespace {

std::shared_ptr<const OutputGrammar> compiled(const std::string& pattern, RegexMatch match,
                                              TextForm form = TextForm::raw) {
    RuleWriter writer;
    const Regex regex = parse_regex(pattern, match).value();
    return nano_compiler().compile(writer.text(writer.regex(regex, form))).value();
}

// An expression of the kinds that both engines know.
std::string random_pattern(std::mt19937& random, int depth) {
    static const std::vector<std::string> atoms = {"a",   "b",      "[a-c]", "[^b]", "\\d",
                                                   "\\w", "[\\d_]", ".",     "x1",   "\\."};
    std::string pattern;
    const std::size_t parts = 1 + random() % 3;
    for (std::size_t i = 0; i < parts; ++i) {
        std::string part = atoms[random() % atoms.size()];
        if (depth > 0 && random() % 3 == 0) {
            part = "(" + random_pattern(random, depth - 1) + "|" +
                   random_pattern(random, depth - 1) + ")";
        }
        switch (random() % 7) {
            case 0:
                part = "(?:" + part + ")*";
                break;
            case 1:
                part = "(?:" + part + ")+?";
                break;
            case 2:
                part = "(?:" + part + "){1,3}";
                break;
            case 3:
                part = "(" + part + "){2}";
                break;
            case 4:
                part = "(?:" + part + ")?";
                break;
            default:
                break;
        }
        pattern += part;
    }
    return pattern;
}

TEST(Regex, SampledTextsMatchAndMutatedOnesAreJudgedAlike) {
    std::mt19937 random(11);
    int sampled = 0;
    int refused = 0;
    int judged = 0;
    for (int round = 0; round < 30; ++round) {
        const std::string pattern = random_pattern(random, 1);
        SCOPED_TRACE(pattern);
        const auto grammar = compiled(pattern, RegexMatch::whole);
        const std::regex other(pattern, std::regex::ECMAScript);
        for (int i = 0; i < 6; ++i) {
            RandomText text = random_text(*grammar, random);
            ASSERT_EQ(text.fault, "");
            const bool ascii = std::all_of(text.text.begin(), text.text.end(),
                                           [](char c) { return static_cast<signed char>(c) >= 0; });
            if (!text.ended || !ascii || text.text.size() > 200) continue;
            ASSERT_TRUE(std::regex_match(text.text, other)) << text.text;
            ++sampled;
            for (int change = 0; change < 4; ++change) {
                std::string changed = text.text;
                const std::size_t at = random() % (changed.size() + 1);
                if (random() % 2 == 0 && at < changed.size()) {
                    changed.erase(at, 1);
                } else {
                    changed.insert(at, 1, "ab1_.x"[random() % 6]);
                }
                const bool expected = std::regex_match(changed, other);
                ASSERT_EQ(allows(*grammar, changed), expected) << changed;
                ASSERT_EQ(allows(*grammar, changed, true), expected) << changed;
                ++judged;
                refused += expected ? 0 : 1;
            }
        }
    }
    EXPECT_GT(sampled, 60);
    EXPECT_GT(judged, 240);
    EXPECT_GT(refused, 60);
}

TEST(Regex, SearchesWhereAnchorsDoNotHold) {
    struct Case {
        const char* pattern;
        std::vector<const char*> in;
        std::vector<const char*> out;
    };
    for (const Case& one : std::vector<Case>{{"b", {"b", "abc", "\nb\n"}, {"", "a"}},
                                             {"^b", {"b", "bcd"}, {"ab"}},
                                             {"b$", {"b", "aab"}, {"ba"}},
                                             {"^a|b$", {"axx", "xxb", "a"}, {"xax", "bx"}},
                                             {"^é[一-龥]?$", {"é", "é中"}, {"e", "é中中"}},
                                             {"^\\u{1F600}$", {"😀"}, {"x"}},
                                             {"^\\uD83D\\uDE00$", {"😀"}, {""}},
                                             {"^[\\]\\-a]+$", {"]-a"}, {"b"}},
                                             {"^(?<year>\\d{4})$", {"2026"}, {"20"}}}) {
        SCOPED_TRACE(one.pattern);
        const auto grammar = compiled(one.pattern, RegexMatch::search);
        for (const char* text : one.in)
            EXPECT_TRUE(allows(*grammar, text)) << text;
        for (const char* text : one.out)
            EXPECT_FALSE(allows(*grammar, text)) << text;
    }
}

TEST(Regex, InJsonStringsWhatMustBeEscapedIs) {
    const auto grammar =
        compiled("^[\"\\\\\\n\\x01a]+$", RegexMatch::search, TextForm::json_string);
    EXPECT_TRUE(allows(*grammar, "\\\"\\\\\\n\\u0001a"));
    for (const char* text : {"\"", "\\", "\n", "\x01", "\\a", "\\u000a"})
        EXPECT_FALSE(allows(*grammar, text)) << text;
}

TEST(Regex, WhatIsNoLanguageOrTooLargeIsRefusedByName) {
    const auto refused = [](const std::string& pattern, ErrorCode code, const char* word) {
        const auto result = parse_regex(pattern, RegexMatch::whole);
        ASSERT_FALSE(result.ok()) << pattern;
        EXPECT_EQ(result.error().code(), code) << pattern;
        EXPECT_NE(result.error().message().find(word), std::string::npos)
            << result.error().message();
    };
    refused("(?=a)b", ErrorCode::unsupported, "look-around");
    refused("(?<!a)b", ErrorCode::unsupported, "look-around");
    refused("(a)\\1", ErrorCode::unsupported, "back-reference");
    refused("\\bword", ErrorCode::unsupported, "edge");
    refused("\\p{L}", ErrorCode::unsupported, "property");
    refused("a^b", ErrorCode::unsupported, "^");
    refused("a$b", ErrorCode::unsupported, "$");
    refused("(a", ErrorCode::invalid_argument, "(");
    refused("a)", ErrorCode::invalid_argument, ")");
    refused("[a", ErrorCode::invalid_argument, "[");
    refused("[b-a]", ErrorCode::invalid_argument, "rise");
    refused("[^\\s\\S]", ErrorCode::invalid_argument, "no character");
    refused("*a", ErrorCode::invalid_argument, "repeats nothing");
    refused("a**", ErrorCode::invalid_argument, "repetition");
    refused("a{3,2}", ErrorCode::invalid_argument, "below");
    refused("a{99999}", ErrorCode::invalid_argument, "count");
    refused("(((a{100}){100}){100}){100}", ErrorCode::invalid_argument, "multiplied");
    refused(std::string(100, '(') + std::string(100, ')'), ErrorCode::invalid_argument, "groups");
    refused(std::string(longest_regex + 1, 'a'), ErrorCode::invalid_argument, "bytes");
    refused("\xff", ErrorCode::invalid_argument, "UTF-8");
}

}  // namespace
}  // namespace percheron::grammar::testing
