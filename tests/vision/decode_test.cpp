// Files against PIL's pixels, limits, and hostile bytes.
#include <algorithm>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "vision/cases.h"

namespace percheron::vision {
namespace {

using Bytes8 = std::vector<std::uint8_t>;

TEST(Decode, EveryFileGivesThePixelsOfPil) {
    std::size_t compared = 0;
    for (const auto& wanted : cases().at("decode")) {
        SCOPED_TRACE(wanted.at("name").get<std::string>());
        const Bytes8 file = from_hex(wanted.at("file"));
        const auto image = decode_image(file);
        ASSERT_TRUE(image.ok()) << image.error().message();
        EXPECT_EQ(image->width, wanted.at("width"));
        EXPECT_EQ(image->height, wanted.at("height"));
        EXPECT_EQ(image->pixels, from_hex(wanted.at("rgb")));

        const auto header = read_image_header(file);
        ASSERT_TRUE(header.ok()) << header.error().message();
        EXPECT_EQ(header->upright_width(), image->width);
        EXPECT_EQ(header->upright_height(), image->height);
        ++compared;
    }
    EXPECT_GT(compared, 45u);
}

TEST(Decode, LimitsHoldToTheLastByteAndPixel) {
    for (const auto& wanted : cases().at("decode")) {
        SCOPED_TRACE(wanted.at("name").get<std::string>());
        const Bytes8 file = from_hex(wanted.at("file"));
        const std::size_t width = wanted.at("width"), height = wanted.at("height");
        ImageLimits limits{file.size(), width * height, std::max(width, height)};
        EXPECT_TRUE(decode_image(file, limits).ok());
        for (int which = 0; which < 3; ++which) {
            ImageLimits lower = limits;
            if (which == 0) --lower.bytes;
            if (which == 1) --lower.pixels;
            if (which == 2) --lower.side;
            const auto refused = decode_image(file, lower);
            ASSERT_FALSE(refused.ok());
            EXPECT_EQ(refused.error().reason(), image_too_large);
            EXPECT_FALSE(read_image_header(file, lower).ok());
        }
    }
}

// A few bytes that announce gigabytes are refused for what they announce.
TEST(Decode, AnnouncedSizesAreHeldToTheLimitsBeforeAnythingIsAllocated) {
    Bytes8 png = from_hex(cases().at("decode").at(0).at("file"));
    for (const std::uint8_t top : {0x00, 0x7f, 0xff}) {
        png[16] = png[20] = top;
        png[17] = png[21] = 0x01;
        const auto refused = decode_image(png);
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().reason(), image_too_large) << refused.error().message();
    }
    png[16] = png[17] = png[18] = png[19] = 0;
    EXPECT_EQ(read_image_header(png).error().code(), ErrorCode::corrupt);
}

TEST(Decode, OtherFormatsAreNamedUnsupported) {
    for (const std::string text :
         {"", "GIF89a....", "BM", "<svg>", "RIFF....WAVE", "\xff\xd8", "\x89PNG\r\n\x1a"}) {
        const auto refused = decode_image(Bytes8(text.begin(), text.end()));
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().code(), ErrorCode::unsupported);
    }
}

// Cut anywhere, a file is refused in one sentence or, when only what stands behind the pixels is
// missing, gives the same picture.
TEST(Decode, CutFilesAreRefusedOrWhole) {
    for (const auto& wanted : cases().at("decode")) {
        SCOPED_TRACE(wanted.at("name").get<std::string>());
        const Bytes8 file = from_hex(wanted.at("file"));
        const auto whole = decode_image(file);
        ASSERT_TRUE(whole.ok());
        std::size_t refused = 0;
        for (std::size_t size = 0; size < file.size(); ++size) {
            const auto cut = decode_image(std::span(file).first(size));
            if (!cut.ok()) {
                ++refused;
                EXPECT_THAT(cut.error().message(), testing::Not(testing::HasSubstr("\n")));
            } else if (size + 64 < file.size() && cut->pixels.size() == whole->pixels.size()) {
                ADD_FAILURE() << "taken after " << size << " of " << file.size() << " bytes";
            }
        }
        EXPECT_GT(refused, file.size() / 2);
    }
}

// Bytes turned at random end as a picture of the announced size or as an error.
TEST(Decode, HostileFilesNeverDoHarm) {
    std::mt19937 random(7);
    ImageLimits limits;
    limits.pixels = 1 << 20;
    std::size_t refused = 0;
    std::size_t taken = 0;
    for (const auto& wanted : cases().at("decode")) {
        const Bytes8 file = from_hex(wanted.at("file"));
        for (int round = 0; round < 150; ++round) {
            Bytes8 bytes = file;
            const std::size_t changes = 1 + random() % 6;
            for (std::size_t i = 0; i < changes; ++i) {
                bytes[random() % bytes.size()] = static_cast<std::uint8_t>(random());
            }
            if (random() % 4 == 0) bytes.resize(random() % bytes.size());
            const auto image = decode_image(bytes, limits);
            if (image.ok()) {
                ++taken;
                EXPECT_EQ(image->pixels.size(), image->width * image->height * 3);
                EXPECT_LE(image->width * image->height, limits.pixels);
            } else {
                ++refused;
                EXPECT_FALSE(image.error().message().empty());
            }
        }
    }
    EXPECT_GT(refused, 1000u);
    EXPECT_GT(taken, 100u);
}

}  // namespace
}  // namespace percheron::vision
