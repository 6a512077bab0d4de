#include "text/detokenizer.h"

#include <random>
#include <string>

#include <gtest/gtest.h>

#include "text/unicode.h"

namespace percheron {
namespace {

std::string random_bytes(std::mt19937& random, std::size_t length) {
    // Whole characters, cut characters and stray bytes.
    static const std::string pieces[] = {
        "a",        "\n",       "\xC3\xA9", "\xE6\x97\xA5", "\xF0\x9F\x90\x8E",
        "\xF0\x9F", "\xE6\x97", "\xC3",     "\x80",         "\xED\xA0\x80",
        "\xF5",     "\xC0\xAF", "\xE0\x80", "\xF4\x90\x80", "\xEF\xBF\xBD",
        "\xFF"};
    std::string bytes;
    while (bytes.size() < length)
        bytes += pieces[random() % std::size(pieces)];
    return bytes;
}

std::string in_pieces(std::string_view bytes, std::mt19937& random, bool cut_short) {
    Detokenizer detokenizer;
    std::string text;
    while (!bytes.empty()) {
        const std::size_t count = std::min<std::size_t>(bytes.size(), random() % 4);
        std::string delta;
        detokenizer.append(bytes.substr(0, count), delta);
        EXPECT_TRUE(is_valid_utf8(delta));
        text += delta;
        bytes.remove_prefix(count);
    }
    if (cut_short) {
        detokenizer.drop();
    } else {
        detokenizer.close(text);
    }
    return text;
}

TEST(Detokenizer, GivesTheSameTextForEveryCut) {
    std::mt19937 random(3);
    for (int trial = 0; trial < 3000; ++trial) {
        const std::string bytes = random_bytes(random, 1 + random() % 24);
        EXPECT_EQ(in_pieces(bytes, random, false), with_replacements(bytes));
    }
}

// A tag in the middle of a character: the character is lost once, and what follows it is not.
TEST(Detokenizer, ACharacterCutByATagIsOneReplacement) {
    std::mt19937 random(5);
    for (const std::string character : {"\xC3\xA9", "\xE6\x97\xA5", "\xF0\x9F\x90\x8E"}) {
        for (std::size_t cut = 1; cut < character.size(); ++cut) {
            for (const std::string after : {"", "!", "\xC3\xA9", "\x80", "\xFF"}) {
                const std::string rest = character.substr(cut) + after;
                for (std::size_t split = 0; split <= rest.size(); ++split) {
                    Detokenizer detokenizer;
                    std::string before;
                    detokenizer.append("ok" + character.substr(0, cut), before);
                    detokenizer.close(before);
                    EXPECT_EQ(before, "ok" + std::string(replacement_character));
                    std::string text;
                    detokenizer.append(rest.substr(0, split), text);
                    detokenizer.append(rest.substr(split), text);
                    EXPECT_EQ(text, with_replacements(after));
                }
            }
            // What is no part of the character is not skipped.
            Detokenizer detokenizer;
            std::string text;
            detokenizer.append(character.substr(0, cut), text);
            detokenizer.close(text);
            detokenizer.append("a\x80", text);
            EXPECT_EQ(text, with_replacements(character.substr(0, cut) + "a\x80"));
        }
    }
}

TEST(Detokenizer, DropsACutTailWithoutAReplacement) {
    const std::string horse = "\xF0\x9F\x90\x8E";
    std::mt19937 random(4);
    for (std::size_t cut = 1; cut < horse.size(); ++cut) {
        EXPECT_EQ(in_pieces("ok" + horse.substr(0, cut), random, true), "ok");
        EXPECT_EQ(in_pieces("ok" + horse.substr(0, cut) + "!", random, true),
                  "ok" + std::string(replacement_character) + "!");
    }
}

TEST(Detokenizer, ReplacesAsSoonAsBytesAreKnownToBeWrong) {
    Detokenizer detokenizer;
    std::string text;
    detokenizer.append("\xE6", text);
    EXPECT_EQ(text, "");
    detokenizer.append("\xE6", text);
    EXPECT_EQ(text, replacement_character);
    detokenizer.append("\x97\xA5", text);
    EXPECT_EQ(text, std::string(replacement_character) + "\xE6\x97\xA5");
    EXPECT_FALSE(detokenizer.holds_bytes());
}

}  // namespace
}  // namespace percheron
