// What a terminal may be sent of a text from outside.
#include "core/visible_text.h"

#include <random>

#include <gtest/gtest.h>

namespace percheron {
namespace {

TEST(VisibleText, LeavesNamesAloneAndWritesTheRestOut) {
    for (const char* name : {"", "model.layers.3.self_attn.q_proj", "/home/이름/größe.safetensors",
                             "a \"b\" \\ 'c' | d", "\xf0\x9f\x90\xb4"}) {
        EXPECT_EQ(visible_text(name), name);
    }
    using std::string_view_literals::operator""sv;
    for (const auto& [text, shown] : std::vector<std::pair<std::string_view, std::string_view>>{
             {"\x1b[2J\x1b]0;title\x07"sv, "\\x1b[2J\\x1b]0;title\\x07"},
             {"a\nwarning: b\r\tc"sv, "a\\nwarning: b\\r\\tc"},
             {"\0\x7f"sv, "\\x00\\x7f"},
             {"\xc2\x9b"
              "31m"sv,
              "\\u{9b}31m"},  // the escape sequence's opening in one character
             {"\xe2\x80\xaegpj.\xe2\x80\xac"sv, "\\u{202e}gpj.\\u{202c}"},
             {"q\xe2\x80\x8bproj"sv, "q\\u{200b}proj"},
             {"\xe2\x80\xa8"sv, "\\u{2028}"},
             {"\xff\xc0\xaf\xe2\x82"sv, "\\xff\\xc0\\xaf\\xe2\\x82"},
             {"\xed\xa0\x80"sv, "\\xed\\xa0\\x80"},
         }) {
        EXPECT_EQ(visible_text(text), shown);
    }
}

TEST(VisibleText, NothingThatMovesACursorIsLeftOfAnyBytes) {
    std::mt19937_64 random(1);
    for (int trial = 0; trial < 20000; ++trial) {
        std::string text;
        for (std::size_t length = random() % 12; length > 0; --length) {
            // Mostly what may begin or continue a character.
            const unsigned char kinds[] = {0x1b, 0xc2, 0xe2, 0x80, 0x9b, 0xf4, 0xef, 'a'};
            text += random() % 2 == 0 ? static_cast<char>(random())
                                      : static_cast<char>(kinds[random() % std::size(kinds)]);
        }
        const std::string shown = visible_text(text);
        for (std::size_t i = 0; i < shown.size(); ++i) {
            const auto byte = static_cast<unsigned char>(shown[i]);
            ASSERT_GE(byte, 0x20) << shown;
            ASSERT_NE(byte, 0x7f) << shown;
            const bool c1 = byte == 0xc2 && i + 1 < shown.size() &&
                            static_cast<unsigned char>(shown[i + 1]) < 0xa0;
            ASSERT_FALSE(c1) << shown;
        }
        ASSERT_EQ(visible_text(shown), shown);
    }
}

}  // namespace
}  // namespace percheron
