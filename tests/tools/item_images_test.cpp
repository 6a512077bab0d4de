#include "tools/item_images.h"

#include <gtest/gtest.h>

#include "support/base64.h"
#include "support/plain_png.h"

namespace percheron::tools {
namespace {

using Json = nlohmann::ordered_json;

Json asked_about(Json part) {
    return {{{"role", "user"}, {"content", {std::move(part), {{"type", "text"}, {"text", "?"}}}}}};
}

Json drawn(int red) {
    return {{"type", "image"},
            {"draw", {{"size", {112, 168}}, {"ground", {red, 0, 0}}, {"shapes", Json::array()}}}};
}

TEST(ItemImages, AreReadInOrderFromDrawingsAndDataUrls) {
    const std::string url = "data:image/png;base64," + test::base64(test::plain_png(112, 168, 7));
    Json messages = asked_about(drawn(200));
    messages[0]["content"].push_back({{"type", "image_url"}, {"image_url", {{"url", url}}}});
    messages.push_back(asked_about(drawn(3))[0]);
    const auto images = item_images(messages);
    ASSERT_TRUE(images.ok()) << images.error().message();
    ASSERT_EQ(images->size(), 3u);
    const std::uint8_t reds[] = {200, 7, 3};
    for (std::size_t i = 0; i < 3; ++i) {
        const PromptImage& image = (*images)[i];
        EXPECT_EQ(image.canvas->pixels[0], reds[i]);
        EXPECT_EQ(image.grid_height, 8u);
        EXPECT_EQ(image.grid_width, 12u);
        EXPECT_EQ(image.count, 24u);
        for (std::size_t j = 0; j < i; ++j) {
            EXPECT_NE(image.content_hash, (*images)[j].content_hash);
        }
    }
    EXPECT_EQ(item_images(messages)->at(1).content_hash, (*images)[1].content_hash);
    EXPECT_TRUE(item_images({{{"role", "user"}, {"content", "text"}}})->empty());
}

TEST(ItemImages, WhatCannotBeReadIsNamedByItsPlace) {
    for (const Json& part :
         {Json{{"type", "image"}}, Json{{"type", "image"}, {"draw", 3}},
          Json{{"type", "image_url"}, {"image_url", "http://elsewhere/a.png"}},
          Json{{"type", "image_url"}, {"image_url", {{"url", "data:image/png;base64,AAAA"}}}}}) {
        const auto images = item_images(asked_about(part));
        ASSERT_FALSE(images.ok()) << part;
        EXPECT_NE(images.error().message().find("messages[0].content[0]"), std::string::npos)
            << images.error().message();
    }
}

}  // namespace
}  // namespace percheron::tools
