#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/names.h"
#include "checkpoint/small_model.h"
#include "core/files.h"

namespace percheron::checkpoint::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The message with which a folder is refused, or "" if it is not.
std::string refusal(const fs::path& folder) {
    auto checkpoint = Checkpoint::open(folder);
    return checkpoint.ok() ? "" : checkpoint.error().message();
}

std::string refusal(const SmallModel& small) {
    const TemporaryFolder folder;
    small.write(folder.path());
    return refusal(folder.path());
}

TEST(Checkpoint, OpensWhatTheNetworkNeedsAndNothingElse) {
    SmallModel small = small_model(1);
    const TemporaryFolder folder;
    small.write(folder.path());
    auto checkpoint = Checkpoint::open(folder.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    const Inventory& inventory = (*checkpoint)->inventory();
    EXPECT_TRUE(inventory.mtp);
    EXPECT_TRUE(inventory.vision);
    EXPECT_TRUE(inventory.unclassified.empty());
    std::size_t tensors = 0;
    Bytes bytes = 0;
    for (const auto& [name, tally] : inventory.formats) {
        tensors += tally.tensors;
        bytes += tally.bytes;
    }
    Bytes expected = 0;
    for (const auto& [name, tensor] : small.tensors)
        expected += tensor.bytes.size();
    EXPECT_EQ(tensors, small.tensors.size());
    EXPECT_EQ(bytes, expected);
}

TEST(Checkpoint, EveryMissingTensorIsNamed) {
    const SmallModel whole = small_model(2);
    for (const auto& [name, tensor] : whole.tensors) {
        SmallModel small = whole;
        small.tensors.erase(name);
        EXPECT_THAT(refusal(small), HasSubstr("tensor " + stem_of(name))) << name;
    }
}

TEST(Checkpoint, EveryWrongShapeIsNamedWithItsFile) {
    const SmallModel whole = small_model(3);
    for (const auto& [name, tensor] : whole.tensors) {
        SmallModel small = whole;
        TestTensor& changed = small.tensors[name];
        const std::size_t row = changed.bytes.size() / changed.shape[0];
        changed.shape[0] += 1;
        changed.bytes.resize(changed.bytes.size() + row);
        EXPECT_THAT(refusal(small), AllOf(HasSubstr("model.safetensors: tensor " + name),
                                          HasSubstr(to_string(tensor.shape))))
            << name;
    }
}

TEST(Checkpoint, ATensorWithoutAPlaceIsRefused) {
    SmallModel small = small_model(4);
    std::mt19937_64 random(4);
    const std::string name = layer_prefix(0) + "self_attn.q_proj.bias";
    small.tensors[name] = random_bf16(random, {16});
    EXPECT_THAT(refusal(small), AllOf(HasSubstr(name), HasSubstr("no place")));
}

TEST(Checkpoint, KnownLeftoversAreNotUnclassified) {
    SmallModel small = small_model(5);
    std::mt19937_64 random(5);
    small.tensors[layer_prefix(3) + "shared_head.head.weight"] = random_bf16(random, {40, 16});
    small.tensors[layer_prefix(3) + "embed_tokens.weight"] = random_bf16(random, {40, 16});
    small.tensors[layer_prefix(1) + "self_attn.rotary_emb.inv_freq"] = random_f32(random, {4});
    for (const char* const name : {"k_scale", "v_scale", "q_scale", "kv_scale", "attn.k_scale",
                                   "kv_b_proj.k_scale", "kv_b_proj.v_scale"}) {
        small.tensors[layer_prefix(1) + "self_attn." + name] = random_f32(random, {1});
    }
    EXPECT_EQ(refusal(small), "");
}

TEST(Checkpoint, MtpAndVisionAreFoundOnDiskAndNotBelieved) {
    for (const bool mtp : {false, true}) {
        for (const bool vision : {false, true}) {
            SmallModel small = small_model(6);
            std::erase_if(small.tensors, [&](const auto& entry) {
                return (!mtp && entry.first.starts_with(layer_prefix(3))) ||
                       (!vision && entry.first.starts_with(vision_prefix));
            });
            const TemporaryFolder folder;
            small.write(folder.path());
            auto checkpoint = Checkpoint::open(folder.path());
            ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
            EXPECT_EQ((*checkpoint)->config().mtp_layers, mtp ? 1u : 0u);
            EXPECT_EQ((*checkpoint)->config().has_vision, vision);
            EXPECT_EQ((*checkpoint)->inventory().warnings.size(),
                      (mtp ? 0u : 1u) + (vision ? 0u : 1u));
        }
    }
}

TEST(Checkpoint, OneFileBesideAnIndexIsReadAndSaidSo) {
    const SmallModel small = small_model(1);
    const TemporaryFolder folder;
    small.write(folder.path());
    EXPECT_THAT(Checkpoint::inspect(folder.path()).warnings, IsEmpty());
    ASSERT_TRUE(
        write_text_file(folder.path() / "model.safetensors.index.json", R"({"weight_map": {}})")
            .ok());
    const Inventory inventory = Checkpoint::inspect(folder.path());
    EXPECT_TRUE(inventory.runnable());
    EXPECT_THAT(inventory.warnings,
                ElementsAre(HasSubstr("model.safetensors.index.json beside it is not")));
}

TEST(Checkpoint, AnMtpLayerTheConfigForgetsIsStillFound) {
    SmallModel small = small_model(7);
    small.config["text_config"].erase("num_nextn_predict_layers");
    const TemporaryFolder folder;
    small.write(folder.path());
    auto checkpoint = Checkpoint::open(folder.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    EXPECT_EQ((*checkpoint)->config().mtp_layers, 1u);
}

TEST(Checkpoint, AnyPrefixOfConvertersIsUnderstood) {
    const SmallModel canonical = small_model(8);
    const std::vector<std::vector<std::pair<std::string, std::string>>> spellings = {
        {{"model.language_model.", "model."}, {"model.visual.", "visual."}},
        {{"model.language_model.", "language_model.model."}, {"lm_head", "language_model.lm_head"}},
        {{"model.language_model.", "language_model."}, {"lm_head", "model.lm_head"}},
        {{"model.language_model.", ""}},
    };
    for (const auto& spelling : spellings) {
        SmallModel small = canonical;
        small.tensors.clear();
        for (const auto& [name, tensor] : canonical.tensors) {
            std::string stored = name;
            for (const auto& [prefix, replacement] : spelling) {
                if (name.starts_with(prefix)) stored = replacement + name.substr(prefix.size());
            }
            small.tensors[stored] = tensor;
        }
        EXPECT_EQ(refusal(small), "") << spelling.front().second;
    }
}

TEST(Checkpoint, ATensorStoredUnderTwoSpellingsIsRefused) {
    SmallModel small = small_model(9);
    const std::string name = layer_prefix(0) + "self_attn.q_proj.weight";
    const std::string other = "model.layers.0.self_attn.q_proj.weight";
    small.tensors[other] = small.tensors[name];
    EXPECT_THAT(refusal(small),
                AllOf(HasSubstr("second time"), HasSubstr("layers.0.self_attn.q_proj")));
}

TEST(Checkpoint, VectorsAreWidenedAndChecked) {
    SmallModel small = small_model(10);
    std::mt19937_64 random(10);
    const std::string norm = "model.language_model.norm.weight";
    const std::string base = layer_prefix(0) + "hc_attn_base";
    small.tensors[norm] = random_bf16(random, {16});
    small.tensors[base] = random_f32(random, {24});
    const TemporaryFolder folder;
    small.write(folder.path());
    auto checkpoint = Checkpoint::open(folder.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    std::vector<float> values(16);
    ASSERT_TRUE((*checkpoint)->vector(norm, values).ok());
    const auto* stored = reinterpret_cast<const BFloat16*>(small.tensors[norm].bytes.data());
    for (std::size_t i = 0; i < values.size(); ++i)
        EXPECT_EQ(values[i], static_cast<float>(stored[i]));
    std::vector<float> wide(24);
    ASSERT_TRUE((*checkpoint)->vector(base, wide).ok());
    EXPECT_EQ(std::memcmp(wide.data(), small.tensors[base].bytes.data(), 96), 0);
    EXPECT_THAT((*checkpoint)->vector(base, values).error().message(), HasSubstr(base));
    EXPECT_EQ((*checkpoint)->vector("absent", values).error().code(), ErrorCode::not_found);
}

TEST(Checkpoint, ConvolutionsCanBeReadAsMatrices) {
    const SmallModel small = small_model(11);
    const TemporaryFolder folder;
    small.write(folder.path());
    auto checkpoint = Checkpoint::open(folder.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    auto matrix = (*checkpoint)->matrix("model.visual.patch_embed.proj", 16, 3 * 2 * 2 * 2);
    ASSERT_TRUE(matrix.ok()) << matrix.error().message();
    EXPECT_EQ(std::memcmp(matrix->data,
                          small.tensors.at("model.visual.patch_embed.proj.weight").bytes.data(),
                          small.tensors.at("model.visual.patch_embed.proj.weight").bytes.size()),
              0);
    EXPECT_FALSE((*checkpoint)->matrix("model.visual.patch_embed.proj", 16, 23).ok());
}

}  // namespace
}  // namespace percheron::checkpoint::test
