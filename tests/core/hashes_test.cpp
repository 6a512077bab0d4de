// Against published vectors and an independent use of the same bytes in pieces.
#include <cstdio>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "core/checksum.h"
#include "core/sha256.h"

namespace percheron {
namespace {

std::string hex(const Sha256Digest& digest) {
    std::string text;
    for (const std::uint8_t byte : digest) {
        char two[3];
        std::snprintf(two, sizeof two, "%02x", byte);
        text += two;
    }
    return text;
}

std::string sha256_of(std::string_view text) {
    Sha256 hash;
    hash.add(text);
    return hex(hash.finish());
}

TEST(Sha256, GivesThePublishedDigests) {
    EXPECT_EQ(sha256_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(sha256_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(sha256_of(std::string(1'000'000, 'a')),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowTheBytesCome) {
    std::mt19937 random(1);
    std::string text;
    for (std::size_t length = 0; length < 300; ++length) {
        Sha256 pieces;
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t size = std::min<std::size_t>(1 + random() % 90, text.size() - at);
            pieces.add(std::string_view(text).substr(at, size));
            at += size;
        }
        ASSERT_EQ(hex(pieces.finish()), sha256_of(text)) << length;
        text += static_cast<char>(random());
    }
}

std::uint64_t checksum_of(std::string_view text, std::uint64_t seed = 0) {
    return checksum(std::as_bytes(std::span(text)), seed);
}

TEST(Checksum, GivesThePublishedValues) {
    EXPECT_EQ(checksum_of(""), 0xef46db3751d8e999u);
    EXPECT_EQ(checksum_of("a"), 0xd24ec4f1a98c6e5bu);
    EXPECT_EQ(checksum_of("abc"), 0x44bc2cf5ad770999u);
    EXPECT_EQ(checksum_of("Nobody inspects the spammish repetition"), 0xfbcea83c8a378bf1u);
}

TEST(Checksum, SeesEveryBitThatTurns) {
    std::mt19937 random(2);
    for (const std::size_t length : {1u, 4u, 7u, 8u, 31u, 32u, 33u, 100u, 1000u}) {
        std::string text;
        for (std::size_t i = 0; i < length; ++i)
            text += static_cast<char>(random());
        const std::uint64_t before = checksum_of(text);
        EXPECT_NE(checksum_of(text, 1), before);
        EXPECT_NE(checksum_of(text.substr(1)), before);
        for (std::size_t bit = 0; bit < 8 * length; ++bit) {
            text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
            ASSERT_NE(checksum_of(text), before) << length << " " << bit;
            text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
        }
    }
}

}  // namespace
}  // namespace percheron
