#include "vision/data_url.h"

#include <iterator>
#include <random>

#include <gtest/gtest.h>

#include "support/base64.h"

namespace percheron::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

// Every character of `text`, or those that must be, as %XX.
std::string percent(const std::string& text, std::mt19937& random) {
    const char* digits = random() % 2 == 0 ? "0123456789abcdef" : "0123456789ABCDEF";
    std::string result;
    for (const char c : text) {
        const auto byte = static_cast<std::uint8_t>(c);
        if (c != '%' && c != ',' && byte > 32 && byte < 127 && random() % 3 != 0) {
            result += c;
        } else {
            result += {'%', digits[byte >> 4], digits[byte & 15]};
        }
    }
    return result;
}

TEST(DataUrlTest, EverySpellingGivesTheBytesBack) {
    std::mt19937 random(5);
    const std::string heads[] = {"data:image/png;base64,", "DATA:image/PNG;BASE64,",
                                 "Data:;base64,", "data:image/png;name=a.png;charset=utf-8;base64,",
                                 "data:image/jpeg; base64 ,"};
    for (int round = 0; round < 500; ++round) {
        Bytes bytes(random() % 70);
        for (std::uint8_t& byte : bytes)
            byte = static_cast<std::uint8_t>(random());
        std::string text =
            base64(bytes, random() % 2 == 0 ? plus_alphabet : dash_alphabet, random() % 2 == 0);
        if (random() % 3 == 0) text = percent(text, random);
        if (random() % 3 == 0) text.insert(random() % (text.size() + 1), "\r\n");
        // A break inside %XX breaks that; put it where it belongs instead.
        if (text.find('%') != std::string::npos)
            std::erase_if(text, [](char c) { return c < ' '; });
        const auto read = vision::bytes_of_data_url(heads[random() % std::size(heads)] + text);
        ASSERT_TRUE(read.ok()) << text;
        ASSERT_EQ(*read, bytes) << text;
        const auto plain = vision::bytes_of_data_url("data:image/webp," +
                                                     percent({bytes.begin(), bytes.end()}, random));
        ASSERT_TRUE(plain.ok());
        ASSERT_EQ(*plain, bytes);
    }
}

TEST(DataUrlTest, WhatIsNoneIsSaidSo) {
    for (const char* url :
         {"", "data", "data:", "data:image/png;base64", "http://a/b,c", "data:;base64,A",
          "data:;base64,AAA==", "data:;base64,AA=", "data:;base64,AAAA=", "data:;base64,AA=A",
          "data:;base64,A*AA", "data:;base64,AAAAA",
          "data:;base64,A\xc3\xa4"
          "AA",
          "data:;base64,====", "data:;base64,%"}) {
        const auto read = vision::bytes_of_data_url(url);
        ASSERT_FALSE(read.ok()) << url;
        EXPECT_EQ(read.error().message().substr(0, 7), "is not ") << url;
    }
}

}  // namespace
}  // namespace percheron::test
