#include "tools/quantize.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/formats.h"
#include "checkpoint/names.h"
#include "checkpoint/small_model.h"
#include "tools/quantize_folder.h"
#include "tools/quantize_formats.h"

namespace percheron::tools {
namespace {

using checkpoint::Checkpoint;
using checkpoint::ExpectedTensor;
using checkpoint::layer_prefix;
using checkpoint::stem_of;
using checkpoint::TensorRole;
using checkpoint::test::Json;
using checkpoint::test::small_config;
using checkpoint::test::small_model;
using checkpoint::test::SmallModel;
using checkpoint::test::TemporaryFolder;
using ops::WeightFormat;
using testing::AllOf;
using testing::HasSubstr;

namespace fs = std::filesystem;

// Rows as networks have them: mostly normal, some with outliers, zeros or tiny values.
std::vector<float> random_weights(std::mt19937_64& random, std::size_t count) {
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<float> weights(count);
    const int kind = static_cast<int>(random() % 5);
    for (float& weight : weights) {
        weight = normal(random);
        if (kind == 1) weight *= std::exp(3.0f * normal(random) / 0.02f);
        if (kind == 2 && random() % 50 == 0) weight *= 20.0f;
        if (kind == 3) weight *= 1e-30f;
        if (kind == 4 && random() % 2 == 0) weight = 0.0f;
    }
    return weights;
}

TEST(QuantizeFormats, Fp8BlocksStayWithinHalfAStepOfEveryValue) {
    std::mt19937_64 random(1);
    for (int trial = 0; trial < 200; ++trial) {
        const std::size_t rows = 1 + random() % 128;
        const std::size_t k = 1 + random() % 300;
        const std::vector<float> weights = random_weights(random, rows * k);
        std::vector<Float8E4M3> codes(rows * k);
        std::vector<float> scales((k + 127) / 128);
        const RoundingError error = round_to_fp8_blocks(weights, rows, k, codes, scales);
        double squares = 0;
        std::vector<float> largest(scales.size());
        for (std::size_t i = 0; i < weights.size(); ++i) {
            float& most = largest[i % k / 128];
            most = std::max(most, std::fabs(weights[i]));
        }
        for (std::size_t block = 0; block < scales.size(); ++block) {
            EXPECT_EQ(scales[block], largest[block] > 0 ? largest[block] / 448.0f : 1.0f);
        }
        for (std::size_t i = 0; i < weights.size(); ++i) {
            const double scale = scales[i % k / 128];
            const double off =
                weights[i] - static_cast<double>(static_cast<float>(codes[i])) * scale;
            // Three bits after the leading one; below 2^-6 steps of 2^-9.
            const double bound = std::max(std::fabs(weights[i]) / 16.0, scale / 1024.0);
            ASSERT_LE(std::fabs(off), bound * 1.0001) << weights[i];
            squares += off * off;
        }
        EXPECT_NEAR(error.squared_error, squares, 1e-4 * squares);
    }
}

double group_error(const float* weights, double scale) {
    double sum = 0;
    for (std::size_t i = 0; i < 128; ++i) {
        const double code = std::clamp(std::nearbyint(weights[i] / scale), -8.0, 7.0);
        sum += (weights[i] - code * scale) * (weights[i] - code * scale);
    }
    return sum;
}

TEST(QuantizeFormats, W4A16TakesTheBestScaleOfAll) {
    std::mt19937_64 random(2);
    for (int trial = 0; trial < 300; ++trial) {
        const std::vector<float> weights = random_weights(random, 256);
        std::vector<std::uint32_t> words(32);
        std::vector<BFloat16> scales(2);
        const RoundingError error = round_to_w4a16(weights, words, scales);
        double total = 0;
        for (std::size_t group = 0; group < 2; ++group) {
            const float* values = weights.data() + group * 128;
            const auto scale = static_cast<float>(scales[group]);
            float largest = 0;
            for (std::size_t i = 0; i < 128; ++i)
                largest = std::max(largest, std::fabs(values[i]));
            double actual = 0;
            for (std::size_t i = 0; i < 128; ++i) {
                const std::size_t at = group * 128 + i;
                const int code = static_cast<int>(words[at / 8] >> (4 * (at % 8)) & 15u) - 8;
                actual += std::pow(values[i] - static_cast<double>(code) * scale, 2);
                const double quotient = values[i] / static_cast<double>(scale);
                if (std::fabs(quotient) <= 7.0) {
                    ASSERT_LE(std::fabs(quotient - code), 0.5001);
                }
            }
            total += actual;
            // No other scale of the range does better, and so neither does the plain one.
            for (std::uint16_t bits = BFloat16(largest / 14.0f).bits;
                 bits <= BFloat16(largest / 7.0f).bits && largest > 0; ++bits) {
                const auto other = static_cast<float>(BFloat16::from_bits(bits));
                ASSERT_LE(actual, group_error(values, other) * 1.0001) << scale << " " << other;
            }
        }
        EXPECT_NEAR(error.squared_error, total, 1e-4 * total);
    }
}

TEST(QuantizeFormats, ExtremeGroupsHaveFiniteScales) {
    for (const float value : {0.0f, -0.0f, 1e-45f, 1e-38f, 3e38f, -3e38f, 1.0f}) {
        std::vector<float> weights(128, 0.0f);
        weights[5] = value;
        std::vector<std::uint32_t> words(16);
        std::vector<BFloat16> scales(1);
        round_to_w4a16(weights, words, scales);
        const auto scale = static_cast<float>(scales[0]);
        EXPECT_TRUE(std::isfinite(scale) && scale > 0.0f) << value;
        EXPECT_EQ(words[0] & 15u, 8u) << "zero stays zero";
        std::vector<Float8E4M3> codes(128);
        std::vector<float> block(1);
        round_to_fp8_blocks(weights, 1, 128, codes, block);
        EXPECT_TRUE(std::isfinite(block[0]) && block[0] > 0.0f) << value;
        EXPECT_EQ(static_cast<float>(codes[0]), 0.0f);
    }
}

// Every tensor the network has, with its role.
std::vector<ExpectedTensor> network(const model::ModelConfig& config) {
    std::vector<ExpectedTensor> tensors = checkpoint::outer_tensors(config);
    for (std::size_t i = 0; i < config.layers() + config.mtp_layers; ++i) {
        for (ExpectedTensor& tensor : checkpoint::layer_tensors(config, i))
            tensors.push_back(std::move(tensor));
    }
    if (config.has_vision) {
        for (ExpectedTensor& tensor : checkpoint::vision_tensors(config.vision))
            tensors.push_back(std::move(tensor));
    }
    return tensors;
}

// A model in which some matrices are multiples of 128 both ways and some are not.
Json mixed_config() {
    Json config = small_config(128);
    config["text_config"]["vocab_size"] = 256;
    config["text_config"]["kv_lora_rank"] = 128;
    config["vision_config"]["hidden_size"] = 128;
    return config;
}

std::string read(const fs::path& path) {
    return *read_text_file(path, Bytes{1} << 30);
}

class Quantize : public testing::Test {
  protected:
    QuantizeReport run(const SmallModel& small, const QuantizeOptions& options, const char* out) {
        const fs::path source = folder_.path() / "source";
        if (!fs::exists(source)) {
            fs::create_directory(source);
            small.write(source);
            EXPECT_TRUE(write_text_file(source / "tokenizer.json", "{\"a\": 1}").ok());
            EXPECT_TRUE(write_text_file(source / "chat_template.jinja", "{{ x }}").ok());
        }
        auto report = quantize(source, folder_.path() / out, options);
        EXPECT_TRUE(report.ok()) << report.error().message();
        return report.ok() ? *report : QuantizeReport{};
    }

    std::unique_ptr<Checkpoint> open(const char* name) {
        auto checkpoint = Checkpoint::open(folder_.path() / name);
        EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message();
        return checkpoint.ok() ? std::move(*checkpoint) : nullptr;
    }

    TemporaryFolder folder_;
};

TEST_F(Quantize, GivesEveryTensorTheFormatOfItsPlace) {
    const SmallModel small = small_model(1, mixed_config());
    QuantizeOptions options;
    options.rest = WeightFormat::fp8_block;
    const QuantizeReport report = run(small, options, "out");
    const auto source = open("source");
    const auto out = open("out");
    ASSERT_TRUE(source && out);
    std::map<WeightFormat, std::size_t> seen;
    for (const ExpectedTensor& tensor : network(source->config())) {
        const std::string stem = stem_of(tensor.name);
        if (tensor.role == TensorRole::plain) {
            const auto a = source->shards().find(tensor.name);
            const auto b = out->shards().find(tensor.name);
            ASSERT_TRUE(a && b) << tensor.name;
            EXPECT_EQ(a.tensor->dtype, b.tensor->dtype);
            EXPECT_TRUE(std::ranges::equal(a.tensor->bytes, b.tensor->bytes)) << tensor.name;
            continue;
        }
        const auto a = source->matrix(stem, tensor.shape[0], tensor.shape[1]);
        const auto b = out->matrix(stem, tensor.shape[0], tensor.shape[1]);
        ASSERT_TRUE(a.ok() && b.ok()) << stem;
        const bool multiples = tensor.shape[0] % 128 == 0 && tensor.shape[1] % 128 == 0;
        EXPECT_EQ(b->format, tensor.role == TensorRole::routed_expert ? WeightFormat::w4a16
                             : multiples                              ? WeightFormat::fp8_block
                                                                      : WeightFormat::bf16)
            << stem;
        ++seen[b->format];
        double error = 0;
        double sum = 0;
        std::vector<float> before(tensor.shape[1]);
        std::vector<float> after(tensor.shape[1]);
        for (std::size_t row = 0; row < tensor.shape[0]; ++row) {
            ops::dequantise_row(*a, row, before.data());
            ops::dequantise_row(*b, row, after.data());
            for (std::size_t i = 0; i < before.size(); ++i) {
                error += std::pow(before[i] - after[i], 2);
                sum += std::pow(before[i], 2);
            }
        }
        const double relative = std::sqrt(error / sum);
        // Normal values: 4 bits lose about a tenth, e4m3 about a fortieth.
        const double expected = b->format == WeightFormat::bf16        ? 0.0
                                : b->format == WeightFormat::fp8_block ? 0.025
                                                                       : 0.095;
        EXPECT_NEAR(relative, expected, 0.4 * expected) << stem;
    }
    EXPECT_EQ(seen.size(), 3u);
    Bytes bytes = 0;
    for (const auto& [name, tally] : out->inventory().formats) {
        EXPECT_EQ(report.formats.at(name).tensors, tally.tensors);
        EXPECT_EQ(report.formats.at(name).bytes, tally.bytes);
        bytes += tally.bytes;
    }
    EXPECT_EQ(report.bytes, bytes);
    EXPECT_NEAR(report.formats.at("w4a16").relative_error, 0.1, 0.03);
    EXPECT_TRUE(out->inventory().mtp);
    EXPECT_TRUE(out->inventory().vision);
}

TEST_F(Quantize, TheBytesDependOnInputAndOptionsOnly) {
    const SmallModel small = small_model(2, mixed_config());
    QuantizeOptions options;
    options.rest = WeightFormat::fp8_block;
    options.threads = 1;
    run(small, options, "one");
    options.threads = 4;
    run(small, options, "four");
    for (const char* name : {"model.safetensors", "config.json", "generation_config.json",
                             "tokenizer.json", "chat_template.jinja"}) {
        EXPECT_EQ(read(folder_.path() / "one" / name), read(folder_.path() / "four" / name))
            << name;
    }
    EXPECT_EQ(read(folder_.path() / "one/tokenizer.json"), "{\"a\": 1}");
    // Sharding moves tensors, not values.
    options.shard_limit = 100000;
    const QuantizeReport report = run(small, options, "sharded");
    EXPECT_GT(report.files, 3u);
    const auto whole = open("one");
    const auto sharded = open("sharded");
    ASSERT_TRUE(whole && sharded);
    EXPECT_EQ(whole->shards().tensors().size(), sharded->shards().tensors().size());
    for (const auto& [name, place] : whole->shards().tensors()) {
        EXPECT_TRUE(
            std::ranges::equal(place.tensor->bytes, sharded->shards().find(name).tensor->bytes));
    }
}

TEST_F(Quantize, WhatAlreadyHasTheFormatIsCopiedAndOtherFormatsAreRead) {
    const SmallModel small = small_model(3, mixed_config(), [](const ExpectedTensor& tensor) {
        if (tensor.role == TensorRole::routed_expert) {
            return tensor.name.find("experts.0.") != std::string::npos   ? WeightFormat::w4a16
                   : tensor.name.find("experts.1.") != std::string::npos ? WeightFormat::nvfp4
                                                                         : WeightFormat::fp8_block;
        }
        return WeightFormat::bf16;
    });
    run(small, {}, "out");
    const auto source = open("source");
    const auto out = open("out");
    ASSERT_TRUE(source && out);
    EXPECT_EQ(out->inventory().formats.count("nvfp4"), 0u);
    EXPECT_EQ(out->inventory().formats.count("fp8_block"), 0u);
    std::size_t copied = 0;
    for (const auto& [name, place] : source->shards().tensors()) {
        if (name.find("experts.0.") == std::string::npos) continue;
        EXPECT_TRUE(
            std::ranges::equal(place.tensor->bytes, out->shards().find(name).tensor->bytes));
        ++copied;
    }
    EXPECT_EQ(copied, 3u * 3u * 3u);
    EXPECT_EQ(read(folder_.path() / "out/config.json").find("percheron"), std::string::npos);
}

TEST_F(Quantize, TheConfigSaysWhatIsStored) {
    const SmallModel small = small_model(4, mixed_config());
    QuantizeOptions options;
    run(small, options, "experts");
    options.rest = WeightFormat::fp8_block;
    run(small, options, "mixed");
    options.format = WeightFormat::fp8_block;
    run(small, options, "fp8 of all");
    options.rest.reset();
    run(small, options, "fp8");
    for (const auto& [name, method] :
         std::vector<std::pair<std::string, std::string>>{{"experts", "compressed-tensors"},
                                                          {"mixed", "percheron"},
                                                          {"fp8 of all", "percheron"},
                                                          {"fp8", "fp8"}}) {
        const Json config = Json::parse(read(folder_.path() / name / "config.json"));
        const Json& quantization = config.at("quantization_config");
        EXPECT_EQ(quantization.at("quant_method"), method);
        const Json& kept = quantization.at(method == "fp8" ? "modules_to_not_convert" : "ignore");
        const auto out = open(name.c_str());
        ASSERT_TRUE(out);
        std::size_t unquantised = 0;
        for (const ExpectedTensor& tensor : network(out->config())) {
            if (tensor.role == TensorRole::plain) continue;
            const auto matrix = out->matrix(stem_of(tensor.name), tensor.shape[0], tensor.shape[1]);
            ASSERT_TRUE(matrix.ok());
            const bool listed =
                std::find(kept.begin(), kept.end(), stem_of(tensor.name)) != kept.end();
            EXPECT_EQ(listed, matrix->format == WeightFormat::bf16) << tensor.name;
            unquantised += listed ? 1 : 0;
        }
        EXPECT_EQ(kept.size(), unquantised);
        Json rest = config;
        rest.erase("quantization_config");
        EXPECT_EQ(rest, small.config);
    }
}

TEST_F(Quantize, RefusesBeforeItWrites) {
    const SmallModel small = small_model(5, mixed_config());
    run(small, {}, "out");
    const fs::path source = folder_.path() / "source";
    const auto refusal = [&](const fs::path& out) {
        const auto report = quantize(source, out, {});
        return report.ok() ? std::string() : report.error().message();
    };
    EXPECT_THAT(refusal(folder_.path() / "out"), HasSubstr("there is a checkpoint already"));
    EXPECT_THAT(refusal(source), HasSubstr("there is a checkpoint already"));
    EXPECT_THAT(refusal(source / "tokenizer.json"), HasSubstr("not a folder"));
    // Nor is somebody's own file replaced.
    for (const char* file : {"tokenizer.json", "generation_config.json", "chat_template.jinja"}) {
        const TemporaryFolder own;
        ASSERT_TRUE(write_text_file(own.path() / file, "mine").ok());
        EXPECT_THAT(refusal(own.path()), HasSubstr(std::string(file) + ": would be replaced"));
        EXPECT_EQ(read(own.path() / file), "mine");
    }

    // A pattern that cannot be matched in time would name some of what it means.
    for (const char* evil : {"re:(.*a)*(.*b)*(.+)+(x+x+)+y$", "re:((.+)+)+$x", "re:(.|.)*Z"}) {
        for (const char* option : {"--include", "--keep"}) {
            QuantizeOptions options;
            auto& patterns = option == std::string("--keep") ? options.keep : options.include;
            patterns = {"*.experts.*", evil};
            const auto refused = quantize(source, folder_.path() / "evil", options);
            ASSERT_FALSE(refused.ok()) << evil;
            EXPECT_THAT(refused.error().message(),
                        AllOf(HasSubstr(std::string(option) + " " + evil + ": takes too long")));
            EXPECT_FALSE(fs::exists(folder_.path() / "evil"));
        }
    }

    // Rows that do not divide into groups.
    const TemporaryFolder narrow;
    small_model(6).write(narrow.path());
    const auto report = quantize(narrow.path(), folder_.path() / "narrow", {});
    ASSERT_FALSE(report.ok());
    EXPECT_THAT(report.error().message(), AllOf(HasSubstr("experts"), HasSubstr("groups of 128")));
    EXPECT_FALSE(fs::exists(folder_.path() / "narrow"));
}

TEST_F(Quantize, AWeightThatIsNotFiniteIsNamedAndNothingRunnableIsLeft) {
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        SmallModel small = small_model(7, mixed_config());
        const std::string name = layer_prefix(2) + "mlp.experts.1.up_proj.weight";
        const BFloat16 bad(value);
        std::memcpy(small.tensors.at(name).bytes.data() + 1000, &bad, 2);
        const TemporaryFolder source;
        const TemporaryFolder out;
        small.write(source.path());
        const auto report = quantize(source.path(), out.path(), {});
        ASSERT_FALSE(report.ok());
        EXPECT_THAT(report.error().message(), AllOf(HasSubstr(name), HasSubstr("not finite")));
        EXPECT_FALSE(Checkpoint::open(out.path()).ok());
        EXPECT_FALSE(fs::exists(out.path() / "config.json"));
        EXPECT_FALSE(fs::exists(out.path() / "model.safetensors"));
    }
}

// Two runs that wrote one folder would mix their shards, and both would seem to succeed.
TEST(QuantizeFolders, OneRunAtATimeWritesAFolder) {
    const TemporaryFolder root;
    const std::filesystem::path out = root.path() / "out";
    for (const bool begun : {false, true}) {
        auto first = QuantizeFolder::open(out, "{}", 0);
        ASSERT_TRUE(first.ok()) << first.error().message();
        for (const char* run : {"{}", R"({"format": "nvfp4"})"}) {
            const auto second = QuantizeFolder::open(out, run, 0);
            ASSERT_FALSE(second.ok());
            EXPECT_EQ(second.error().code(), ErrorCode::unavailable) << begun;
            EXPECT_THAT(second.error().message(),
                        AllOf(HasSubstr(out.string()), HasSubstr("in use by another process (" +
                                                                 std::to_string(::getpid()))));
        }
    }
    // The one before has let go, and what it left is gone on from.
    EXPECT_TRUE(QuantizeFolder::open(out, "{}", 0).ok());
}

// Of a run with texts and one without, the options differ first: not the fields that only one has.
TEST(QuantizeFolders, AnotherRunIsToldTheFirstOptionThatDiffers) {
    const std::pair<const char*, const char*> others[] = {
        {R"({"format": "fp8_block", "rest": null})", "differs in format;"},
        {R"({"format": "w4a16", "rest": "fp8_block"})", "differs in rest;"},
        {R"({"format": "w4a16", "rest": null})", "differs in calibration texts;"},
        {R"({"format": "w4a16", "rest": null, "calibration texts": "1", "all experts": true})",
         "differs in all experts;"},
        {R"({"format": "w4a16", "rest": null, "calibration texts": "1", "all experts": false, "new": 1})",
         "differs in new;"}};
    for (const auto& [run, said] : others) {
        const TemporaryFolder root;
        ASSERT_TRUE(
            QuantizeFolder::open(
                root.path() / "out",
                R"({"format": "w4a16", "rest": null, "calibration texts": "1", "all experts": false})",
                0)
                .ok());
        const auto refused = QuantizeFolder::open(root.path() / "out", run, 0);
        ASSERT_FALSE(refused.ok());
        EXPECT_THAT(refused.error().message(), HasSubstr(said));
    }
}

TEST(QuantizeFolders, ADiskTooSmallIsRefusedBeforeAnythingIsWritten) {
    const TemporaryFolder root;
    const std::filesystem::path out = root.path() / "out";
    constexpr Bytes more_than_any_disk = Bytes{1} << 60;
    const auto refused = QuantizeFolder::open(out, "{}", more_than_any_disk);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::io);
    EXPECT_THAT(refused.error().message(), HasSubstr("1073741824.00 GiB would be written"));
    EXPECT_FALSE(std::filesystem::exists(out));
    // A run that was stopped needs what it has not written yet.
    ASSERT_TRUE(QuantizeFolder::open(out, "{}", 0).ok());
    EXPECT_FALSE(QuantizeFolder::open(out, "{}", more_than_any_disk).ok());
    ASSERT_TRUE(write_text_file(out / ".quantize/part-00000", "half").ok());
    std::filesystem::resize_file(out / ".quantize/part-00000", std::uintmax_t{1} << 40);
    EXPECT_TRUE(QuantizeFolder::open(out, "{}", std::uintmax_t{1} << 40).ok());
}

}  // namespace
}  // namespace percheron::tools
