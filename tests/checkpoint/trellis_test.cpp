// EXL3: tiles against values that exllamav3's own decoder gave, whole matrices against the
// definition, folders laid out as its converter does, and what is refused.
#include "checkpoint/trellis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/float16.h"
#include "checkpoint/formats.h"
#include "checkpoint/names.h"
#include "checkpoint/small_model.h"
#include "checkpoint/trellis_model.h"

namespace percheron::checkpoint::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct KnownTile {
    unsigned half_bits;
    TrellisCodebook codebook;
    float first, second, last;  // codes 0, 1 and 255
    double sum;                 // of all 256
};

// Word i of a tile is 40503 i + 12345 half_bits + 777 codebook; decoded by the package (scripts/
// check-exl3 does it for thousands of tiles).
const KnownTile known_tiles[] = {
    {2, TrellisCodebook::three_instructions, 0.135009765625f, -2.30078125f, -1.517578125f,
     -2.3326416015625},
    {2, TrellisCodebook::mcg, -0.51025390625f, -0.09716796875f, 0.2025146484375f, -13.37060546875},
    {2, TrellisCodebook::mul1, -0.78662109375f, 0.15380859375f, -0.394287109375f,
     3.2867660522460938},
    {4, TrellisCodebook::three_instructions, 0.7021484375f, 0.2310791015625f, -0.833984375f,
     -44.0977783203125},
    {4, TrellisCodebook::mcg, -1.16796875f, -0.6533203125f, 1.8427734375f, -6.4171142578125},
    {6, TrellisCodebook::three_instructions, 0.640625f, -0.59375f, 0.20751953125f,
     19.2181396484375},
    {6, TrellisCodebook::mul1, -1.2197265625f, -0.4619140625f, -0.204833984375f, 9.980949401855469},
    {8, TrellisCodebook::mcg, -1.4384765625f, -0.81689453125f, -0.0098876953125f, 30.75537109375},
    {8, TrellisCodebook::mul1, -0.380859375f, 1.2431640625f, -0.110107421875f, 4.6702880859375},
    {10, TrellisCodebook::three_instructions, -0.6416015625f, 0.818359375f, -0.451171875f,
     14.1265869140625},
    {10, TrellisCodebook::mul1, -0.353759765625f, 0.431396484375f, -0.00858306884765625f,
     9.50616455078125},
    {12, TrellisCodebook::mcg, -0.95556640625f, 0.87890625f, -0.8994140625f, 11.8787841796875},
    {12, TrellisCodebook::mul1, -2.681640625f, -1.544921875f, 0.086181640625f, -17.46363067626953},
    {14, TrellisCodebook::three_instructions, 0.2529296875f, -0.744140625f, 0.5986328125f,
     3.5755615234375},
    {14, TrellisCodebook::mul1, -0.360595703125f, 0.76953125f, 0.180908203125f, 19.886863708496094},
    {16, TrellisCodebook::mcg, -0.09228515625f, -2.880859375f, 3.7734375f, -16.603515625},
    {16, TrellisCodebook::mul1, -1.970703125f, 0.458251953125f, 2.001953125f, -5.65411376953125},
    {3, TrellisCodebook::mul1, 1.033203125f, -0.401123046875f, 0.51904296875f, 3.6549758911132812},
    {5, TrellisCodebook::mul1, 0.275634765625f, 0.09967041015625f, 0.607421875f, 11.09674072265625},
    {7, TrellisCodebook::mul1, -0.1981201171875f, 1.615234375f, -1.0234375f, -4.984428405761719},
};

TEST(Trellis, TilesHaveTheValuesOfThePackageThatMakesThem) {
    for (const KnownTile& known : known_tiles) {
        std::vector<std::uint16_t> words(8 * known.half_bits);
        for (std::size_t i = 0; i < words.size(); ++i) {
            words[i] = static_cast<std::uint16_t>(i * 40503 + 12345 * known.half_bits +
                                                  777 * static_cast<unsigned>(known.codebook));
        }
        ASSERT_EQ(trellis_half_bits(words.size(), known.codebook), known.half_bits);
        float values[256];
        decode_tile(std::as_bytes(std::span(words)), known.half_bits, known.codebook, values);
        EXPECT_EQ(values[0], known.first) << known.half_bits;
        EXPECT_EQ(values[16], known.second) << known.half_bits;
        EXPECT_EQ(values[255], known.last) << known.half_bits;
        double sum = 0;
        for (const float value : values)
            sum += static_cast<double>(value);
        EXPECT_EQ(sum, known.sum) << known.half_bits;
    }
}

TEST(Trellis, EveryHalfComesBackFromAnyNumberNearIt) {
    for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
        const double value = static_cast<double>(half_to_float(static_cast<std::uint16_t>(bits)));
        const double next =
            static_cast<double>(half_to_float(static_cast<std::uint16_t>(bits + 1)));
        ASSERT_EQ(rounded_to_half(value), static_cast<float>(value));
        if (bits + 1 == 0x7c00) break;
        const double middle = (value + next) / 2;
        ASSERT_EQ(rounded_to_half(middle), static_cast<float>(bits % 2 == 0 ? value : next));
        ASSERT_EQ(rounded_to_half(-(middle + (next - value) / 64)), static_cast<float>(-next));
        ASSERT_EQ(rounded_to_half(middle - (next - value) / 64), static_cast<float>(value));
    }
}

Status as_stored(const TestTensors& tensors, const std::string& stem, const Shape& shape,
                 std::vector<float>& values) {
    SmallModel small = small_model(1);
    small.tensors = tensors;
    const TemporaryFolder folder;
    small.write(folder.path());
    std::vector<Error> problems;
    const ShardSet shards = ShardSet::scan(folder.path(), problems);
    PERCHERON_ASSIGN(const WeightParts parts, find_weight(shards, stem, shape));
    EXPECT_EQ(parts.stored_as, "exl3");
    EXPECT_EQ(parts.format, WeightFormat::f32);
    PERCHERON_ASSIGN(values, rewritten_values(parts, shape));
    return {};
}

TEST(Trellis, MatricesOfEveryShapeHaveTheValuesOfTheDefinition) {
    std::mt19937_64 random(1);
    for (int trial = 0; trial < 24; ++trial) {
        const std::size_t n = 1 + random() % 200;
        const std::size_t k = 1 + random() % 200;
        TestTensors tensors;
        const std::string stem = layer_prefix(0) + "mlp.down_proj";
        const RandomTrellis expected(tensors, random, stem, n, k);
        std::vector<float> values;
        const Status read = as_stored(tensors, stem, {n, k}, values);
        ASSERT_TRUE(read.ok()) << read.error().message();
        ASSERT_EQ(values, expected.values);
    }
}

TEST(Trellis, SharesOfAStackAreItsRows) {
    std::mt19937_64 random(2);
    for (const std::size_t n : {40u, 128u, 150u}) {
        TestTensors tensors;
        const std::string layer = layer_prefix(0) + "self_attn.";
        const RandomTrellis stack(tensors, random, layer + "qkv_proj", 3 * n, 70);
        for (std::size_t share = 0; share < 3; ++share) {
            std::vector<float> values;
            const std::string name = std::string(1, "qkv"[share]) + "_proj";
            const Status read = as_stored(tensors, layer + name, {n, 70}, values);
            ASSERT_TRUE(read.ok()) << read.error().message();
            const auto from = stack.values.begin() + static_cast<std::ptrdiff_t>(share * n * 70);
            ASSERT_EQ(values, std::vector<float>(from, from + static_cast<std::ptrdiff_t>(n * 70)));
        }
    }
}

TEST(Trellis, AFolderLaidOutByItsConverterRuns) {
    std::mt19937_64 random(3);
    SmallModel small = small_model(6, small_config(16));
    const model::ModelConfig config = small.parsed();
    const std::string layer = layer_prefix(0) + "self_attn.";
    const std::size_t width = config.kda_width();
    std::map<std::string, std::vector<float>> expected;

    // A stack of projections, one of convolutions, a head, and the tower's attention in pieces.
    for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight"})
        ASSERT_EQ(small.tensors.erase(layer + name), 1u) << name;
    const RandomTrellis stack(small.tensors, random, layer + "qkv_proj", 3 * width, config.hidden);
    for (std::size_t i = 0; i < 3; ++i) {
        const auto from =
            stack.values.begin() + static_cast<std::ptrdiff_t>(i * width * config.hidden);
        expected[layer + "qkv"[i] + "_proj"].assign(
            from, from + static_cast<std::ptrdiff_t>(width * config.hidden));
    }
    small.tensors.erase("lm_head.weight");
    expected["lm_head"] =
        RandomTrellis(small.tensors, random, "lm_head", config.vocabulary, config.hidden).values;
    std::vector<float> convolutions;
    small.tensors[layer + "conv1d.weight"] =
        as_halves({DType::bf16, {3 * width, 1, config.kda_conv}, {}}, random, convolutions);
    for (const char* name : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"})
        ASSERT_EQ(small.tensors.erase(layer + name), 1u) << name;
    ASSERT_TRUE(config.has_vision);
    const std::string block = "model.visual.blocks.0.attn.";
    std::vector<float> qkv, biases;
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
        const std::size_t hidden = config.vision.hidden;
        const auto piece =
            RandomTrellis(small.tensors, random, block + name, hidden, hidden).values;
        qkv.insert(qkv.end(), piece.begin(), piece.end());
        std::vector<float> bias;
        small.tensors[block + name + ".bias"] =
            as_halves({DType::bf16, {hidden}, {}}, random, bias);
        biases.insert(biases.end(), bias.begin(), bias.end());
    }
    expected[block + "qkv"] = qkv;
    ASSERT_EQ(small.tensors.erase(block + "qkv.weight"), 1u);
    ASSERT_EQ(small.tensors.erase(block + "qkv.bias"), 1u);
    const std::string router = layer_prefix(1) + "mlp.gate";
    small.tensors[router + ".weight"] =
        as_halves(small.tensors.at(router + ".weight"), random, expected[router]);

    small.config["quantization_config"] = {{"quant_method", "exl3"}, {"bits", 4}};
    const TemporaryFolder folder;
    small.write(folder.path());
    const Json modules = {{layer.substr(0, layer.size()) + "qkv_proj", {{"quant_format", "exl3"}}},
                          {router, {{"stored_tensors", Json::object()}}}};
    ASSERT_TRUE(write_text_file(folder.path() / "quantization_config.json",
                                Json{{"quant_method", "exl3"}, {"tensor_storage", modules}}.dump())
                    .ok());
    const auto checkpoint = Checkpoint::open(folder.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    const Inventory& inventory = (*checkpoint)->inventory();
    EXPECT_EQ(inventory.formats.at("exl3").tensors, 5u);  // three shares, the head, the tower's
    EXPECT_THAT(summary(inventory), AllOf(HasSubstr("5 exl3"), HasSubstr(" 0 unclassified")));
    // The head and the tower's pieces are none of the modules that the account names.
    ASSERT_EQ(inventory.disagreements.size(), 1u);
    EXPECT_EQ(inventory.disagreements[0].what, "stored as exl3 but no target");
    EXPECT_EQ(inventory.disagreements[0].weights.size(), 2u);
    for (const auto& [stem, values] : expected) {
        const bool vision = stem.starts_with("model.visual.");
        const std::size_t k = vision ? config.vision.hidden : config.hidden;
        const auto matrix = (*checkpoint)->matrix(stem, values.size() / k, k);
        ASSERT_TRUE(matrix.ok()) << matrix.error().message();
        std::vector<float> row(k);
        for (std::size_t i = 0; i < matrix->n; ++i) {
            ops::dequantise_row(*matrix, i, row.data());
            for (std::size_t j = 0; j < k; ++j)
                ASSERT_EQ(row[j], values[i * k + j]) << stem;
        }
        EXPECT_EQ((*checkpoint)->matrix(stem, values.size() / k, k)->data, matrix->data);
    }
    std::vector<float> share(width * config.kda_conv);
    ASSERT_TRUE((*checkpoint)->vector(layer + "k_conv1d.weight", share).ok());
    EXPECT_EQ(share, std::vector<float>(
                         convolutions.begin() + static_cast<std::ptrdiff_t>(share.size()),
                         convolutions.begin() + static_cast<std::ptrdiff_t>(2 * share.size())));
    std::vector<float> bias(biases.size());
    ASSERT_TRUE((*checkpoint)->vector(block + "qkv.bias", bias).ok());
    EXPECT_EQ(bias, biases);
}

TEST(Trellis, WhatIsMissingOrImpossibleIsNamed) {
    struct Damage {
        const char* what;
        std::function<void(TestTensors&, const std::string& stem)> damage;
        const char* named;
        const char* said;
    };
    const auto halves = [](std::size_t count, std::uint16_t bits) {
        return tensor_of(DType::f16, {count}, std::vector<std::uint16_t>(count, bits));
    };
    const Damage damages[] = {
        {"no scales of inputs", [](TestTensors& t, const std::string& s) { t.erase(s + ".suh"); },
         ".suh", "missing"},
        {"scales of another length",
         [&](TestTensors& t, const std::string& s) { t[s + ".svh"] = halves(128, 0x3c00); }, ".svh",
         "[256]"},
        {"scales in BF16",
         [](TestTensors& t, const std::string& s) { t[s + ".svh"].dtype = DType::bf16; }, ".svh",
         "F16"},
        {"scales twice",
         [](TestTensors& t, const std::string& s) {
             t[s + ".sv"] = tensor_of(DType::i16, {16}, std::vector<std::uint16_t>(16));
         },
         ".sv", "both"},
        {"tiles of no number of bits",
         [](TestTensors& t, const std::string& s) {
             t[s + ".trellis"] =
                 tensor_of(DType::i16, {8, 16, 72}, std::vector<std::uint16_t>(8 * 16 * 72));
         },
         ".trellis", "72 words"},
        {"half bits without their codebook",
         [](TestTensors& t, const std::string& s) {
             t[s + ".trellis"] =
                 tensor_of(DType::i16, {8, 16, 40}, std::vector<std::uint16_t>(8 * 16 * 40));
         },
         ".trellis", "mul1"},
        {"a matrix where tiles belong",
         [](TestTensors& t, const std::string& s) {
             t[s + ".trellis"].shape = {8, 16 * 64};
         },
         ".trellis", "[8, 1024]"},
        {"tiles of another type",
         [](TestTensors& t, const std::string& s) { t[s + ".trellis"].dtype = DType::u16; },
         ".trellis", "I16"},
        {"tiles of another shape",
         [](TestTensors& t, const std::string& s) {
             t[s + ".trellis"].shape = {16, 8, 64};
         },
         ".trellis", "[8, 16, 64]"},
        {"two codebooks",
         [](TestTensors& t, const std::string& s) {
             t[s + ".mul1"] =
                 tensor_of(DType::i32, {}, std::vector<std::uint32_t>{mul1_multiplier});
             t[s + ".mcg"] = tensor_of(DType::i32, {}, std::vector<std::uint32_t>{mcg_multiplier});
         },
         ".mcg", "second codebook"},
        {"an unknown multiplier",
         [](TestTensors& t, const std::string& s) {
             t[s + ".mcg"] = tensor_of(DType::i32, {}, std::vector<std::uint32_t>{7});
         },
         ".mcg", "multiplier"},
        {"a plain weight beside",
         [](TestTensors& t, const std::string& s) {
             t[s + ".weight"] = tensor_of(DType::bf16, {200, 100}, std::vector<BFloat16>(20000));
         },
         ".weight", "both"},
        {"a scale that is no number",
         [&](TestTensors& t, const std::string& s) { t[s + ".svh"] = halves(256, 0x7e00); }, ".svh",
         "finite"},
    };
    for (const Damage& damage : damages) {
        TestTensors tensors;
        const std::string stem = layer_prefix(1) + "mlp.experts.0.up_proj";
        tensors[stem + ".trellis"] =
            tensor_of(DType::i16, {8, 16, 64}, std::vector<std::uint16_t>(8 * 16 * 64));
        tensors[stem + ".suh"] = halves(128, 0x3c00);
        tensors[stem + ".svh"] = halves(256, 0x3c00);
        std::vector<float> values;
        ASSERT_TRUE(as_stored(tensors, stem, {200, 100}, values).ok());
        damage.damage(tensors, stem);
        const Status read = as_stored(tensors, stem, {200, 100}, values);
        ASSERT_FALSE(read.ok()) << damage.what;
        EXPECT_THAT(read.error().message(),
                    AllOf(HasSubstr("model.safetensors"), HasSubstr(stem + damage.named),
                          HasSubstr(damage.said)))
            << damage.what;
    }
}

// Without its marker a codebook would be taken for another one, and without its account nothing
// would tell.
TEST(Trellis, NothingMayBeMissingThatTheFoldersAccountLists) {
    const SmallModel sound = trellis_model(5);
    {
        const TemporaryFolder folder;
        sound.write(folder.path());
        const auto checkpoint = Checkpoint::open(folder.path());
        ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
        EXPECT_THAT((*checkpoint)->inventory().disagreements, testing::IsEmpty());
        EXPECT_GT((*checkpoint)->inventory().formats.at("exl3").tensors, 30u);
    }
    std::size_t markers = 0;
    for (const auto& [name, tensor] : sound.tensors) {
        if (!name.ends_with(".mcg") && !name.ends_with(".mul1")) continue;
        ++markers;
        SmallModel damaged = sound;
        damaged.tensors.erase(name);
        const TemporaryFolder folder;
        damaged.write(folder.path());
        EXPECT_FALSE(Checkpoint::open(folder.path()).ok()) << name;
        // Half bits without their codebook are a problem of their own.
        std::string problems;
        for (const Error& problem : Checkpoint::inspect(folder.path()).problems)
            problems += problem.message() + "\n";
        EXPECT_THAT(problems, HasSubstr(folder.path().string() + ": tensor " + name + ": "));
    }
    EXPECT_GT(markers, 10u);
    // A part of the network that was left out whole is no damage.
    SmallModel blind = sound;
    std::erase_if(blind.tensors,
                  [](const auto& entry) { return entry.first.starts_with("model.visual."); });
    const TemporaryFolder folder;
    blind.write(folder.path());
    EXPECT_TRUE(Checkpoint::open(folder.path()).ok());
}

}  // namespace
}  // namespace percheron::checkpoint::test
