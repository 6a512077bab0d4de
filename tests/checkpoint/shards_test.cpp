#include "checkpoint/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/names.h"
#include "checkpoint/small_model.h"

namespace percheron::checkpoint::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const fs::path& folder) {
    auto checkpoint = Checkpoint::open(folder);
    return checkpoint.ok() ? "" : checkpoint.error().message();
}

// A model of FP8 and W4A16 weights whose tensors, scales included, lie in random shards.
SmallModel packed_model(std::uint64_t seed) {
    Json config = small_config(128);
    return small_model(seed, config, [](const ExpectedTensor& tensor) {
        return tensor.role == TensorRole::routed_expert ? WeightFormat::w4a16
                                                        : WeightFormat::fp8_block;
    });
}

TEST(Shards, AWeightAndItsScaleMayLieInDifferentFiles) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        const SmallModel small = packed_model(seed);
        const TemporaryFolder whole;
        const TemporaryFolder split;
        small.write(whole.path());
        const std::size_t count = 2 + seed % 4;
        std::mt19937_64 random(seed);
        small.write(split.path(), count, [&](const std::string&) { return random() % count; });
        auto one = Checkpoint::open(whole.path());
        auto many = Checkpoint::open(split.path());
        ASSERT_TRUE(one.ok()) << one.error().message();
        ASSERT_TRUE(many.ok()) << many.error().message();
        EXPECT_EQ((*many)->inventory().files.size(), count);
        std::size_t apart = 0;
        const model::ModelConfig& config = (*one)->config();
        std::vector<float> expected(config.hidden);
        std::vector<float> actual(config.hidden);
        for (std::size_t i = 0; i < config.layers() + config.mtp_layers; ++i) {
            for (const ExpectedTensor& tensor : layer_tensors(config, i)) {
                if (tensor.role == TensorRole::plain) continue;
                const std::string stem = stem_of(tensor.name);
                const auto a = (*one)->matrix(stem, tensor.shape[0], tensor.shape[1]);
                const auto b = (*many)->matrix(stem, tensor.shape[0], tensor.shape[1]);
                ASSERT_TRUE(a.ok() && b.ok()) << stem;
                EXPECT_EQ(a->format, b->format);
                expected.resize(tensor.shape[1]);
                actual.resize(tensor.shape[1]);
                for (std::size_t row = 0; row < tensor.shape[0]; ++row) {
                    ops::dequantise_row(*a, row, expected.data());
                    ops::dequantise_row(*b, row, actual.data());
                    ASSERT_EQ(expected, actual) << stem;
                }
                const std::string scale = a->format == WeightFormat::w4a16
                                              ? stem + ".weight_scale"
                                              : tensor.name + "_scale_inv";
                const std::string data =
                    a->format == WeightFormat::w4a16 ? stem + ".weight_packed" : tensor.name;
                const ShardSet& shards = (*many)->shards();
                apart += shards.find(scale).file != shards.find(data).file ? 1 : 0;
            }
        }
        EXPECT_GT(apart, 10u);
    }
}

class BrokenShards : public testing::Test {
  protected:
    void SetUp() override {
        small_.write(folder_.path(), 3,
                     [](const std::string& name) { return std::hash<std::string>()(name) % 3; });
        ASSERT_EQ(refusal(folder_.path()), "");
    }

    Json index() const { return Json::parse(*read_text_file(index_path_, 1u << 24)); }
    void write(const Json& index) const {
        ASSERT_TRUE(write_text_file(index_path_, index.dump()).ok());
    }

    const SmallModel small_ = small_model(1);
    const TemporaryFolder folder_;
    const fs::path index_path_ = folder_.path() / "model.safetensors.index.json";
    const fs::path second_ = folder_.path() / "model-00002-of-00003.safetensors";
};

TEST_F(BrokenShards, AMissingShardIsNamed) {
    fs::remove(second_);
    EXPECT_THAT(refusal(folder_.path()),
                AllOf(HasSubstr(second_.string()), HasSubstr("No such file"), HasSubstr("open")));
    EXPECT_EQ(Checkpoint::inspect(folder_.path()).problems.size(), 1u);
}

TEST_F(BrokenShards, ACutShardIsNamedWhereverItIsCut) {
    const auto size = fs::file_size(second_);
    std::mt19937_64 random(1);
    for (int trial = 0; trial < 100; ++trial) {
        fs::resize_file(second_, trial == 0 ? 0 : trial == 1 ? size - 1 : random() % size);
        EXPECT_THAT(refusal(folder_.path()), HasSubstr(second_.string()));
        fs::remove(second_);
        small_.write(folder_.path(), 3,
                     [](const std::string& name) { return std::hash<std::string>()(name) % 3; });
    }
}

TEST_F(BrokenShards, ADamagedIndexIsNamed) {
    ASSERT_TRUE(write_text_file(index_path_, "{").ok());
    EXPECT_THAT(refusal(folder_.path()), AllOf(HasSubstr("index.json"), HasSubstr("not JSON")));
    ASSERT_TRUE(write_text_file(index_path_, "{}").ok());
    EXPECT_THAT(refusal(folder_.path()), HasSubstr("weight_map"));
    ASSERT_TRUE(write_text_file(index_path_, R"({"weight_map":{"a":1}})").ok());
    EXPECT_THAT(refusal(folder_.path()), HasSubstr("tensor a"));
    ASSERT_TRUE(write_text_file(index_path_, R"({"weight_map":{"a":"x","a":"x"}})").ok());
    EXPECT_THAT(refusal(folder_.path()), HasSubstr("listed twice"));
}

TEST_F(BrokenShards, TheIndexCannotReachOutsideTheFolder) {
    for (const char* name : {"../x.safetensors", "/etc/passwd", "", ".", "..", "a/b", "a\\b"}) {
        write(Json{{"weight_map", {{"lm_head.weight", name}}}});
        EXPECT_THAT(refusal(folder_.path()), HasSubstr("not a plain file name")) << name;
    }
}

TEST_F(BrokenShards, IndexAndFilesMustAgree) {
    const Json good = index();
    const std::string name = "lm_head.weight";
    const std::string file = good["weight_map"][name];

    Json missing = good;
    missing["weight_map"].erase(name);
    write(missing);
    EXPECT_THAT(refusal(folder_.path()),
                AllOf(HasSubstr(file + ": tensor " + name), HasSubstr("the index does not")));

    Json promised = good;
    promised["weight_map"]["ghost"] = file;
    write(promised);
    EXPECT_THAT(refusal(folder_.path()),
                AllOf(HasSubstr(file + ": tensor ghost"), HasSubstr("promises")));

    Json elsewhere = good;
    for (const auto& entry : good["weight_map"].items()) {
        if (entry.value() != file) elsewhere["weight_map"][name] = entry.value();
    }
    write(elsewhere);
    EXPECT_THAT(refusal(folder_.path()), HasSubstr(file + ": tensor " + name));
}

TEST_F(BrokenShards, ATensorInTwoShardsIsRefused) {
    SmallModel again = small_;
    std::size_t copies = 0;
    const fs::path third = folder_.path() / "model-00003-of-00003.safetensors";
    // The same name in two files: the third shard gets a copy of the head.
    std::vector<TensorHeader> headers;
    auto file = SafetensorsFile::open(third);
    ASSERT_TRUE(file.ok());
    const auto size = [](std::span<const std::byte> bytes) {
        return std::vector<std::byte>(bytes.begin(), bytes.end());
    };
    std::map<std::string, std::vector<std::byte>> contents;
    for (const StoredTensor& tensor : file->tensors()) {
        headers.push_back({tensor.name, tensor.dtype, tensor.shape});
        contents[tensor.name] = size(tensor.bytes);
    }
    for (const auto& [name, tensor] : again.tensors) {
        if (contents.contains(name) || copies > 0) continue;
        headers.push_back({name, tensor.dtype, tensor.shape});
        contents[name] = tensor.bytes;
        ++copies;
    }
    ASSERT_EQ(copies, 1u);
    auto writer = SafetensorsWriter::create(third, headers);
    ASSERT_TRUE(writer.ok());
    for (const auto& [name, bytes] : contents)
        ASSERT_TRUE(writer->write(name, bytes).ok());
    ASSERT_TRUE(writer->finish().ok());
    EXPECT_THAT(refusal(folder_.path()), HasSubstr("second time"));
}

TEST(Shards, AFolderWithoutAnIndexMustHoldOneFile) {
    const SmallModel small = small_model(2);
    const TemporaryFolder folder;
    EXPECT_THAT(refusal(folder.path()), HasSubstr("config.json"));
    small.write_configs(folder.path());
    EXPECT_THAT(refusal(folder.path()), HasSubstr("holds no safetensors file"));
    small.write(folder.path());
    fs::rename(folder.path() / "model.safetensors", folder.path() / "weights.safetensors");
    EXPECT_EQ(refusal(folder.path()), "");
    fs::copy(folder.path() / "weights.safetensors", folder.path() / "more.safetensors");
    EXPECT_THAT(refusal(folder.path()), HasSubstr("no model.safetensors.index.json"));
    EXPECT_THAT(refusal(folder.path() / "absent"), HasSubstr("config.json"));
}

TEST(Names, EverySpellingHasOneCanonicalForm) {
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"model.language_model.layers.3.mlp.gate.weight",
         "model.language_model.layers.3.mlp.gate.weight"},
        {"language_model.model.layers.3.mlp", "model.language_model.layers.3.mlp"},
        {"language_model.layers.3", "model.language_model.layers.3"},
        {"model.layers.3", "model.language_model.layers.3"},
        {"layers.3", "model.language_model.layers.3"},
        {"model.embed_tokens.weight", "model.language_model.embed_tokens.weight"},
        {"norm.weight", "model.language_model.norm.weight"},
        {"lm_head.weight", "lm_head.weight"},
        {"lm_head", "lm_head"},
        {"language_model.lm_head.weight", "lm_head.weight"},
        {"model.lm_head.weight", "lm_head.weight"},
        {"model.visual.blocks.0", "model.visual.blocks.0"},
        {"visual.blocks.0", "model.visual.blocks.0"},
        // What is not known is left alone.
        {"layersX.3", "layersX.3"},
        {"model.other.norm", "model.other.norm"},
        {"", ""},
    };
    for (const auto& [stored, canonical] : cases) {
        EXPECT_EQ(canonical_name(stored), canonical);
        EXPECT_EQ(canonical_name(canonical), canonical);
    }
}

}  // namespace
}  // namespace percheron::checkpoint::test
