#include "tools/synth.h"

#include <cmath>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/formats.h"
#include "checkpoint/small_model.h"
#include "checkpoint/synthetic_source.h"
#include "tools/model_path.h"
#include "tools/model_source.h"
#include "tools/score.h"

namespace percheron::tools {
namespace {

using checkpoint::Checkpoint;
using checkpoint::stem_of;
using checkpoint::SyntheticModel;
using checkpoint::SyntheticSource;
using checkpoint::SyntheticSpec;
using checkpoint::SyntheticTensor;
using checkpoint::SyntheticWeight;
using checkpoint::test::TemporaryFolder;
using ops::WeightFormat;
using testing::HasSubstr;

constexpr WeightFormat formats[] = {WeightFormat::bf16, WeightFormat::fp8_block,
                                    WeightFormat::w4a16, WeightFormat::nvfp4};

// Few of everything, at random.
SyntheticSpec small_spec(std::mt19937_64& random, WeightFormat format) {
    const auto some = [&](std::size_t least, std::size_t most) {
        return least + random() % (most - least + 1);
    };
    SyntheticSpec spec;
    spec.layers = some(4, 6);
    spec.dense_layers = some(0, 2);
    spec.vocabulary = some(40, 300);
    spec.hidden = 128 * some(1, 2);
    spec.intermediate = 128 * some(1, 3);
    spec.experts = some(2, 5);
    spec.experts_per_token = some(1, 2);
    spec.shared_experts = some(1, 2);
    spec.expert_intermediate = 128 * some(1, 2);
    spec.attention_heads = some(1, 3);
    spec.query_rank = 128;
    spec.latent = 128 * some(1, 2);
    spec.query_key_dim = 32 * some(1, 2);
    spec.value_dim = 32 * some(1, 2);
    spec.index_heads = some(1, 2);
    spec.index_dim = 32 * some(1, 2);
    spec.index_topk = 16;
    spec.kda_heads = some(1, 2);
    spec.kda_dim = 32 * some(1, 2);
    spec.mtp = some(0, 1);
    spec.context = 4096;
    spec.vision = some(0, 1);
    spec.vision_hidden = 32;
    spec.vision_heads = 2;
    spec.vision_intermediate = 48;
    spec.vision_projection = 64;
    spec.format = format;
    spec.seed = random();
    return spec;
}

std::string text_of(const SyntheticSpec& spec) {
    std::string text = "synth:";
    for (const checkpoint::SpecCount& count : checkpoint::spec_counts()) {
        text += std::string(count.key) + "=" + std::to_string(spec.*count.member) + ",";
    }
    return text + "format=" + std::string(checkpoint::spec_name(spec.format)) +
           ",seed=" + std::to_string(spec.seed);
}

std::uint64_t hash(const void* data, std::size_t bytes) {
    std::uint64_t value = 0xcbf29ce484222325u;
    for (std::size_t i = 0; i < bytes; ++i) {
        value = (value ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
    }
    return value;
}

// Name, type, shape and hash of every tensor of a folder.
std::map<std::string, std::string> stored(const std::filesystem::path& folder) {
    std::map<std::string, std::string> tensors;
    auto opened = Checkpoint::open(folder);
    EXPECT_TRUE(opened.ok()) << opened.error().message();
    if (!opened.ok()) return tensors;
    for (const auto& file : (*opened)->shards().files()) {
        for (const checkpoint::StoredTensor& tensor : file.tensors()) {
            tensors[tensor.name] = std::string(name_of(tensor.dtype)) +
                                   checkpoint::to_string(tensor.shape) +
                                   std::to_string(hash(tensor.bytes.data(), tensor.bytes.size()));
        }
    }
    return tensors;
}

TEST(Synth, EveryTensorWithoutAFileEqualsTheWrittenOne) {
    std::mt19937_64 random(1);
    for (int trial = 0; trial < 12; ++trial) {
        const SyntheticSpec spec = small_spec(random, formats[trial % 4]);
        SCOPED_TRACE(text_of(spec));
        const TemporaryFolder folder;
        SynthOptions options;
        options.spec = spec;
        options.shards = 2 + random() % 5;
        options.split_pairs = random() % 2 == 0;
        const auto report = synth(folder.path(), options);
        ASSERT_TRUE(report.ok()) << report.error().message();
        EXPECT_EQ(report->files, options.shards);
        auto file = open_model(folder.path(), 1);
        ASSERT_TRUE(file.ok()) << file.error().message();
        EXPECT_THAT(file->inventory.warnings, testing::IsEmpty());
        EXPECT_THAT(file->inventory.unclassified, testing::IsEmpty());
        const auto name = resolve_model(text_of(spec));
        ASSERT_TRUE(name.ok()) << name.error().message();
        auto made = open_model(*name, 2);
        ASSERT_TRUE(made.ok()) << made.error().message();
        EXPECT_EQ(made->weight_bytes, report->bytes);
        EXPECT_EQ(summary(made->inventory), summary(file->inventory));
        for (const auto& [part, tallies] : file->inventory.parts) {
            for (const auto& [format, tally] : tallies) {
                EXPECT_EQ(made->inventory.parts[part][format].bytes, tally.bytes);
            }
        }
        EXPECT_EQ(made->config.stop_tokens, file->config.stop_tokens);

        const auto model = checkpoint::make_synthetic_model(spec);
        for (const SyntheticWeight& weight : model->weights) {
            const auto& shape = weight.tensor.shape;
            std::size_t k = 1;
            for (std::size_t i = 1; i < shape.size(); ++i) {
                k *= shape[i];
            }
            if (shape.size() == 1) {
                std::vector<float> left(shape[0]), right(shape[0]);
                ASSERT_TRUE(file->weights->vector(weight.tensor.name, left).ok());
                ASSERT_TRUE(made->weights->vector(weight.tensor.name, right).ok());
                ASSERT_EQ(left, right) << weight.tensor.name;
                continue;
            }
            const std::string stem = stem_of(weight.tensor.name);
            ASSERT_TRUE(made->weights->has(stem));
            const auto left = file->weights->matrix(stem, shape[0], k);
            const auto right = made->weights->matrix(stem, shape[0], k);
            ASSERT_TRUE(left.ok()) << left.error().message();
            ASSERT_TRUE(right.ok()) << right.error().message();
            ASSERT_EQ(left->format, right->format) << stem;
            ASSERT_EQ(left->global_scale, right->global_scale) << stem;
            const std::size_t data = weight.parts[0].header.bytes();
            ASSERT_EQ(hash(left->data, data), hash(right->data, data)) << stem;
            if (left->scales != nullptr) {
                const std::size_t scales = weight.parts[1].header.bytes();
                ASSERT_EQ(hash(left->scales, scales), hash(right->scales, scales)) << stem;
            }
        }
    }
}

TEST(Synth, ValuesDependNeitherOnShardsNorOnThreadsButOnTheSeed) {
    std::mt19937_64 random(2);
    for (const WeightFormat format : formats) {
        SynthOptions options;
        options.spec = small_spec(random, format);
        const TemporaryFolder one;
        options.threads = 1;
        ASSERT_TRUE(synth(one.path(), options).ok());
        const auto expected = stored(one.path());
        ASSERT_FALSE(expected.empty());
        const TemporaryFolder many;
        options.threads = 3;
        options.shard_limit = 100'000;
        options.split_pairs = true;
        const auto report = synth(many.path(), options);
        ASSERT_TRUE(report.ok()) << report.error().message();
        EXPECT_GT(report->files, 2u);
        EXPECT_EQ(stored(many.path()), expected);
        const TemporaryFolder other;
        options.spec.seed += 1;
        ASSERT_TRUE(synth(other.path(), options).ok());
        EXPECT_NE(stored(other.path()), expected);
    }
}

TEST(Synth, AnyRangeOfATensorIsAPartOfTheWhole) {
    std::mt19937_64 random(3);
    for (const WeightFormat format : formats) {
        const auto model = checkpoint::make_synthetic_model(small_spec(random, format));
        for (const SyntheticWeight& weight : model->weights) {
            for (const SyntheticTensor& part : weight.parts) {
                const std::size_t size = size_of(part.header.dtype);
                std::vector<std::byte> whole(part.header.bytes());
                make_values(part, 7, 0, whole);
                const std::size_t count = whole.size() / size;
                const std::size_t first = random() % count;
                std::vector<std::byte> piece((1 + random() % (count - first)) * size);
                make_values(part, 7, first, piece);
                ASSERT_TRUE(std::equal(piece.begin(), piece.end(),
                                       whole.begin() + static_cast<std::ptrdiff_t>(first * size)))
                    << part.header.name;
            }
        }
    }
}

// A product with unit-variance inputs: mean 0 and mean square 1 over the outputs.
TEST(Synth, MatricesKeepUnitVariance) {
    std::mt19937_64 random(4);
    std::normal_distribution<float> normal;
    std::size_t checked = 0;
    for (const WeightFormat format : formats) {
        double ratios = 0, ratio_count = 0;
        const SyntheticSpec spec = small_spec(random, format);
        auto model = checkpoint::make_synthetic_model(spec);
        const std::vector<SyntheticWeight> weights = model->weights;
        SyntheticSource source(std::move(*model), 1);
        for (const SyntheticWeight& weight : weights) {
            const auto& shape = weight.tensor.shape;
            if (weight.tensor.role == checkpoint::TensorRole::plain) continue;
            const bool embedding = weight.tensor.part == checkpoint::NetworkPart::embedding;
            const std::size_t n = shape[0], k = shape[1];
            if (n * k < 16384) continue;
            const auto matrix = source.matrix(stem_of(weight.tensor.name), n, k);
            ASSERT_TRUE(matrix.ok());
            std::vector<float> row(k);
            double sum = 0, squares = 0;
            for (std::size_t r = 0; r < n; ++r) {
                ops::dequantise_row(*matrix, r, row.data());
                for (const float value : row) {
                    sum += value;
                    squares += static_cast<double>(value) * value;
                }
            }
            const auto count = static_cast<double>(n * k);
            const double unit = embedding ? 1.0 : 1.0 / std::sqrt(static_cast<double>(k));
            // Scales vary, and where a matrix has few of them those decide.
            double band = 0.05;
            if (weight.parts.size() > 1) {
                const checkpoint::TensorHeader& scales = weight.parts[1].header;
                band +=
                    1.5 / std::sqrt(static_cast<double>(scales.bytes() / size_of(scales.dtype)));
            }
            const double ratio = squares / count / (unit * unit);
            EXPECT_NEAR(ratio, 1.0, band) << weight.tensor.name;
            if (weight.format == format) {
                ratios += ratio;
                ++ratio_count;
            }
            EXPECT_NEAR(sum / count / unit, 0.0, 6.0 / std::sqrt(count)) << weight.tensor.name;
            ++checked;
        }
        EXPECT_NEAR(ratios / ratio_count, 1.0, 0.1) << ops::name_of(format);
    }
    EXPECT_GT(checked, 100u);
}

TEST(Synth, RandomModelsScoreTheSameFromAFileAndWithout) {
    std::mt19937_64 random(5);
    for (int trial = 0; trial < 8; ++trial) {
        const SyntheticSpec spec = small_spec(random, formats[trial % 4]);
        SCOPED_TRACE(text_of(spec));
        const TemporaryFolder folder;
        SynthOptions options;
        options.spec = spec;
        ASSERT_TRUE(synth(folder.path(), options).ok());
        std::vector<TokenId> ids(70);
        for (TokenId& id : ids) {
            id = TokenId(static_cast<int>(random() % spec.vocabulary));
        }
        ScoreOptions scoring;
        scoring.threads = 1;
        scoring.folder = folder.path();
        const auto file = score({ids}, scoring);
        ASSERT_TRUE(file.ok()) << file.error().message();
        scoring.folder = resolve_model(text_of(spec)).value();
        const auto made = score({ids}, scoring);
        ASSERT_TRUE(made.ok()) << made.error().message();
        EXPECT_EQ(file->front().logprobs, made->front().logprobs);
        // Unit-variance logits are far from certain of anything.
        double mean = 0;
        for (const double logprob : made->front().logprobs) {
            ASSERT_TRUE(std::isfinite(logprob));
            mean += logprob / static_cast<double>(made->front().logprobs.size());
        }
        EXPECT_NEAR(mean, -std::log(static_cast<double>(spec.vocabulary)), 1.5);
    }
}

TEST(Synth, DefaultsAreTheReleasedModel) {
    const auto model = checkpoint::make_synthetic_model({});
    ASSERT_TRUE(model.ok());
    EXPECT_EQ(model->weights.size(), 76'108u - 37'338u);  // without the scales of its FP8 weights
    const auto fp8 = checkpoint::make_synthetic_model({.format = WeightFormat::fp8_block});
    std::size_t tensors = 0;
    Bytes bytes = 0;
    for (const SyntheticWeight& weight : fp8->weights) {
        tensors += weight.parts.size();
        bytes += weight.bytes();
    }
    // Of the published index.
    EXPECT_EQ(tensors, 76'108u);
    EXPECT_EQ(bytes, 328'326'771'576u);
}

TEST(Synth, SpecialIdsAreThoseOfTheEmbeddedTokenizer) {
    const auto embedded = read_model_config(resolve_model("").value());
    const auto made = read_model_config("synth:layers=4");
    ASSERT_TRUE(embedded.ok() && made.ok());
    EXPECT_EQ(embedded->vocabulary, checkpoint::embedded_vocabulary);
    EXPECT_EQ(made->stop_tokens, embedded->stop_tokens);
    EXPECT_EQ(made->pad_token, embedded->pad_token);
    EXPECT_EQ(made->image_token, embedded->image_token);
    EXPECT_EQ(made->image_start_token, embedded->image_start_token);
    EXPECT_EQ(made->image_end_token, embedded->image_end_token);
    EXPECT_EQ(made->video_token, embedded->video_token);
    EXPECT_EQ(text_folder("synth:layers=4").value(), resolve_model("").value());
    EXPECT_FALSE(text_folder("synth:vocabulary=100").ok());
}

TEST(Synth, TheTokenizerIsCopiedWhenItsIdsFit) {
    for (const std::size_t vocabulary : {std::size_t{100}, checkpoint::embedded_vocabulary}) {
        std::mt19937_64 random(6);
        SynthOptions options;
        options.spec = small_spec(random, WeightFormat::bf16);
        options.spec.vocabulary = vocabulary;
        options.tokenizer_from = resolve_model("").value();
        const TemporaryFolder folder;
        const auto report = synth(folder.path(), options);
        ASSERT_TRUE(report.ok());
        EXPECT_EQ(report->tokenizer, vocabulary == checkpoint::embedded_vocabulary);
        EXPECT_EQ(std::filesystem::exists(folder.path() / "tokenizer.json"), report->tokenizer);
    }
}

TEST(Synth, WrongSpecsGiveOneSentence) {
    const std::map<std::string, std::string> wrong = {
        {"synth:layres=4", "layres: is no key"},
        {"synth:experts=4", "at least experts-per-token"},
        {"synth:hidden=200", "multiple of 128"},
        {"synth:hidden=", "must be a whole number"},
        {"synth:layers=-1", "must be a whole number"},
        {"synth:layers=0", "must be 1 to"},
        {"synth:layers=99999999999999999999", "must be a whole number"},
        {"synth:format=int3", "must be bf16, fp8, w4a16 or nvfp4"},
        {"synth:layers", "write key=value"},
        {"synth:layers=4,,seed=1", "write key=value"},
        {"synth:layers=4,layers=5", "twice"},
        {"synth:vision-heads=3", "must divide vision-hidden"},
    };
    for (const auto& [text, sentence] : wrong) {
        const auto resolved = resolve_model(text);
        ASSERT_FALSE(resolved.ok()) << text;
        EXPECT_EQ(resolved.error().code(), ErrorCode::invalid_argument);
        EXPECT_THAT(resolved.error().message(), HasSubstr(sentence));
        EXPECT_THAT(resolved.error().message(), HasSubstr("synth:"));
    }
    EXPECT_TRUE(resolve_model("synth:").ok());
}

}  // namespace
}  // namespace percheron::tools
