#include "checkpoint/quantization_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/names.h"
#include "checkpoint/small_model.h"

namespace percheron::checkpoint::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

ModuleList list_of(const std::vector<std::string>& entries) {
    ModuleList list;
    for (const std::string& entry : entries) {
        const Status status = list.add(entry);
        EXPECT_TRUE(status.ok()) << status.error().message();
    }
    return list;
}

TEST(ModuleList, UnderstandsHowToolsWriteModules) {
    const std::string q = layer_prefix(3) + "self_attn.q_proj";
    const std::string expert = layer_prefix(3) + "mlp.experts.7.up_proj";
    const std::vector<std::pair<std::string, bool>> for_q = {
        {"model.language_model.layers.3.self_attn.q_proj", true},
        {"model.layers.3.self_attn.q_proj", true},
        {"language_model.model.layers.3.self_attn.q_proj", true},
        {"model.layers.3.self_attn", true},
        {"model.layers.3", true},
        {"model.layers.33", false},
        {"model.layers.3.self_attn.q_proj_extra", false},
        {"model.layers.*.self_attn.q_proj", true},
        {"model.layers.?.self_attn.*", true},
        {"*self_attn*", true},
        {"*.mlp.*", false},
        {"self_attn", false},
        {"re:.*self_attn.*", true},
        {"re:model\\.layers\\.\\d+\\.self_attn\\.[qkv]_proj$", true},
        {"re:layers", true},
        {"re:self_attn", false},  // matched from the start
        {"re:.*experts.*", false},
        {"Linear", false},
    };
    for (const auto& [entry, expected] : for_q) {
        EXPECT_EQ(list_of({entry}).contains(q), expected) << entry;
    }
    EXPECT_TRUE(list_of({"Linear"}).every_linear());
    EXPECT_TRUE(list_of({"re:.*mlp\\.experts\\.\\d+\\.(gate|up|down)_proj$"}).contains(expert));
    EXPECT_FALSE(list_of({}).contains(q));
    EXPECT_FALSE(ModuleList().add("re:(").ok());
}

TEST(ModuleList, AHostileExpressionEnds) {
    const ModuleList list = list_of({"re:(a+)+(b+)+(a|b|ab)*$x", "*a*a*a*a*a*a*a*a*a*b"});
    EXPECT_FALSE(list.contains(std::string(3000, 'a')));
}

// Experts packed, everything else BF16; the config lists what is not packed.
class MixedPrecision : public testing::Test {
  protected:
    MixedPrecision() {
        small_ = small_model(1, small_config(128), [](const ExpectedTensor& tensor) {
            return tensor.role == TensorRole::routed_expert && tensor.part != NetworkPart::mtp
                       ? WeightFormat::w4a16
                       : WeightFormat::bf16;
        });
        const model::ModelConfig config = small_.parsed();
        for (std::size_t i = 0; i < config.layers(); ++i) {
            for (const ExpectedTensor& tensor : layer_tensors(config, i)) {
                if (tensor.role == TensorRole::matrix) listed_.push_back(stem_of(tensor.name));
            }
        }
        listed_.push_back("lm_head");
    }

    // The account of a folder whose config lists `ignore` under other prefixes than the tensors
    // have.
    Inventory account(std::vector<std::string> ignore, const std::string& stored_prefix) {
        for (std::string& name : ignore) {
            if (name.starts_with(text_prefix)) name = "model." + name.substr(text_prefix.size());
        }
        ignore.push_back("re:.*visual.*");
        SmallModel small = small_;
        small.config["quantization_config"] = {
            {"quant_method", "compressed-tensors"},
            {"format", "pack-quantized"},
            {"config_groups", {{"group_0", {{"targets", {"Linear"}}}}}},
            {"ignore", ignore}};
        small.tensors.clear();
        for (const auto& [name, tensor] : small_.tensors) {
            std::string stored = name;
            if (name.starts_with(text_prefix)) {
                stored = stored_prefix + name.substr(text_prefix.size());
            }
            small.tensors[stored] = tensor;
        }
        const TemporaryFolder folder;
        small.write(folder.path());
        return Checkpoint::inspect(folder.path());
    }

    std::vector<std::string> mtp_linears() const {
        std::vector<std::string> stems;
        for (const ExpectedTensor& tensor : layer_tensors(small_.parsed(), 3)) {
            const std::string stem = stem_of(tensor.name);
            if (tensor.role != TensorRole::plain && stem != tensor.name &&
                !stem.ends_with("mlp.gate")) {
                stems.push_back(stem);
            }
        }
        return stems;
    }

    SmallModel small_;
    std::vector<std::string> listed_;
};

TEST_F(MixedPrecision, RunsUnderAnyPrefixWithTheMtpLayerForgottenByTheList) {
    const Inventory inventory = account(listed_, "language_model.model.");
    EXPECT_TRUE(inventory.runnable());
    EXPECT_TRUE(inventory.mtp);
    EXPECT_THAT(inventory.unclassified, IsEmpty());
    EXPECT_EQ(inventory.formats.at("w4a16").tensors, 2u * 3u * 3u);
    EXPECT_GE(inventory.ignored.size(), listed_.size());
    // The layer that the list forgets is BF16 on disk, is read as such and is named.
    EXPECT_EQ(inventory.disagreements.size(), mtp_linears().size());
    for (const std::string& stem : mtp_linears()) {
        EXPECT_THAT(inventory.disagreements, Contains(HasSubstr(stem + " is stored as bf16")));
    }
    EXPECT_THAT(inventory.warnings, ElementsAre(HasSubstr(mtp_linears().front())));
    EXPECT_THAT(summary(inventory), HasSubstr("0 unclassified; MTP found"));
}

TEST_F(MixedPrecision, AnEntryThatIsMissingIsNamedAndChangesNothing) {
    for (const std::string& stem : mtp_linears())
        listed_.push_back(stem);
    const Inventory whole = account(listed_, "model.language_model.");
    EXPECT_THAT(whole.warnings, IsEmpty());
    const std::string forgotten = layer_prefix(1) + "self_attn.q_a_proj";
    ASSERT_EQ(std::erase(listed_, forgotten), 1u);
    const Inventory inventory = account(listed_, "model.language_model.");
    EXPECT_TRUE(inventory.runnable());
    EXPECT_THAT(inventory.disagreements, ElementsAre(HasSubstr(forgotten + " is stored as bf16")));
    EXPECT_THAT(inventory.warnings, ElementsAre(HasSubstr(forgotten)));
    EXPECT_EQ(inventory.ignored.size() + 1, whole.ignored.size());
    EXPECT_EQ(inventory.formats.at("w4a16").bytes, whole.formats.at("w4a16").bytes);
}

TEST_F(MixedPrecision, AnEntryTooManyIsNamed) {
    for (const std::string& stem : mtp_linears())
        listed_.push_back(stem);
    const std::string packed = layer_prefix(2) + "mlp.experts.1.down_proj";
    listed_.push_back(packed);
    const Inventory inventory = account(listed_, "model.");
    EXPECT_TRUE(inventory.runnable());
    EXPECT_THAT(inventory.disagreements, ElementsAre(HasSubstr(packed + " is stored as w4a16")));
}

TEST_F(MixedPrecision, AClaimThatCannotBeReadIsAWarning) {
    const std::vector<Json> claims = {
        Json(7), Json::array(), {{"ignore", 7}}, {{"ignore", {1}}}, {{"ignore", {"re:("}}}};
    for (const Json& claim : claims) {
        SmallModel small = small_;
        small.config["quantization_config"] = claim;
        const TemporaryFolder folder;
        small.write(folder.path());
        const Inventory inventory = Checkpoint::inspect(folder.path());
        EXPECT_TRUE(inventory.runnable());
        EXPECT_THAT(inventory.warnings, ElementsAre(HasSubstr("quantization_config"))) << claim;
    }
}

TEST_F(MixedPrecision, TheListOfAnotherFileCountsWhenConfigHasNone) {
    SmallModel small = small_;
    const TemporaryFolder folder;
    small.write(folder.path());
    EXPECT_THAT(Checkpoint::inspect(folder.path()).ignored, IsEmpty());
    ASSERT_TRUE(
        write_text_file(folder.path() / "hf_quant_config.json",
                        R"({"quantization": {"exclude_modules": ["lm_head", "model.layers.0*"]}})")
            .ok());
    const Inventory inventory = Checkpoint::inspect(folder.path());
    EXPECT_THAT(inventory.ignored, Contains("lm_head"));
    EXPECT_THAT(inventory.ignored, Contains(layer_prefix(0) + "self_attn.q_proj"));
    EXPECT_THAT(inventory.ignored, Not(Contains(layer_prefix(1) + "self_attn.q_a_proj")));
}

}  // namespace
}  // namespace percheron::checkpoint::test
