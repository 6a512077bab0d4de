// models/nano as it is committed.
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"

namespace percheron::checkpoint {
namespace {

TEST(EmbeddedModel, IsWholeAndMixedAsItsPageSays) {
    const std::filesystem::path folder =
        std::filesystem::path(PERCHERON_SOURCE_DIR) / "models/nano";
    auto checkpoint = Checkpoint::open(folder);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    const Inventory& inventory = (*checkpoint)->inventory();
    EXPECT_TRUE(inventory.mtp);
    EXPECT_TRUE(inventory.vision);
    EXPECT_TRUE(inventory.warnings.empty());
    EXPECT_TRUE(inventory.unclassified.empty());
    EXPECT_EQ(inventory.formats.at("w4a16").tensors, 9u * 16u * 3u);
    EXPECT_EQ(inventory.formats.at("fp8_block").tensors, 137u);
    EXPECT_EQ(inventory.formats.at("bf16").tensors, 147u);
    EXPECT_EQ(inventory.formats.at("f32").tensors, 59u);
    EXPECT_EQ(inventory.parts.at(NetworkPart::embedding).begin()->first, "fp8_block");
    EXPECT_EQ(inventory.parts.at(NetworkPart::head).begin()->first, "fp8_block");
    const model::ModelConfig& config = (*checkpoint)->config();
    EXPECT_EQ(config.vocabulary, 8192u);
    EXPECT_EQ(config.index_pool, 4u);
    EXPECT_EQ(config.stop_tokens,
              (std::vector<TokenId>{TokenId{8155}, TokenId{8162}, TokenId{8164}}));
    // Small enough to live in the repository, tokenizer included.
    Bytes bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        bytes += entry.file_size();
    EXPECT_LE(bytes, 38u << 20);
}

}  // namespace
}  // namespace percheron::checkpoint
