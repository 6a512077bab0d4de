// A widened model: zeros where it grew, everything else as it was, and the same function.
#include "tools/inflate.h"

#include <cstring>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "checkpoint/architecture.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/small_model.h"
#include "golden/golden_check.h"
#include "ops/cpu/cpu_backend.h"
#include "tools/model_path.h"
#include "tools/score.h"

namespace percheron::tools {
namespace {

using checkpoint::Checkpoint;
using checkpoint::ExpectedTensor;
using checkpoint::stem_of;
using checkpoint::test::TemporaryFolder;

std::vector<ExpectedTensor> tensors_of(const model::ModelConfig& config) {
    std::vector<ExpectedTensor> tensors = checkpoint::outer_tensors(config);
    const auto add = [&](std::vector<ExpectedTensor> more) {
        tensors.insert(tensors.end(), more.begin(), more.end());
    };
    for (std::size_t i = 0; i < config.layers() + config.mtp_layers; ++i) {
        add(checkpoint::layer_tensors(config, i));
    }
    if (config.has_vision) add(checkpoint::vision_tensors(config.vision));
    return tensors;
}

// Every value of `large` is `small`'s or, outside its shape, zero.
void expect_padded(Checkpoint& small, Checkpoint& large) {
    const auto before = tensors_of(small.config()), after = tensors_of(large.config());
    ASSERT_EQ(before.size(), after.size());
    std::size_t grown = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
        ASSERT_EQ(before[i].name, after[i].name);
        if (before[i].role == checkpoint::TensorRole::plain) {
            std::vector<float> left(checkpoint::test::product(before[i].shape)), right = left;
            ASSERT_TRUE(small.vector(before[i].name, left).ok());
            ASSERT_TRUE(large.vector(before[i].name, right).ok());
            ASSERT_EQ(left, right) << before[i].name;
            continue;
        }
        const std::string stem = stem_of(before[i].name);
        const auto from = small.matrix(stem, before[i].shape[0], before[i].shape[1]).value();
        const auto to = large.matrix(stem, after[i].shape[0], after[i].shape[1]).value();
        ASSERT_EQ(from.format, to.format);
        grown += to.n != from.n || to.k != from.k ? 1 : 0;
        std::vector<float> expected(to.k), got(to.k);
        for (std::size_t row = 0; row < to.n; ++row) {
            std::fill(expected.begin(), expected.end(), 0.0f);
            if (row < from.n) ops::dequantise_row(from, row, expected.data());
            ops::dequantise_row(to, row, got.data());
            ASSERT_EQ(got, expected) << stem << " row " << row;
        }
    }
    EXPECT_GT(grown, 10u);
}

TEST(Inflate, AddsZerosInEveryFormatAndNothingElse) {
    for (const ops::WeightFormat format : {ops::WeightFormat::bf16, ops::WeightFormat::fp8_block,
                                           ops::WeightFormat::w4a16, ops::WeightFormat::nvfp4}) {
        SynthOptions made;
        checkpoint::SyntheticSpec& spec = made.spec;
        spec.layers = 4;
        spec.dense_layers = 1;
        spec.vocabulary = 50;
        spec.hidden = 128;
        spec.intermediate = 384;
        spec.experts = 3;
        spec.experts_per_token = 2;
        spec.shared_experts = 2;
        spec.expert_intermediate = 128;
        spec.attention_heads = 1;
        spec.query_rank = spec.latent = 128;
        spec.query_key_dim = spec.value_dim = spec.index_dim = spec.kda_dim = 32;
        spec.index_heads = spec.kda_heads = spec.mtp = spec.vision = 1;
        spec.index_topk = 16;
        spec.vision_hidden = 32;
        spec.vision_heads = 2;
        spec.vision_intermediate = 48;
        spec.vision_projection = 64;
        spec.format = format;
        const TemporaryFolder folder, out;
        const auto report = synth(folder.path(), made);
        ASSERT_TRUE(report.ok()) << report.error().message();
        InflateOptions options;
        options.size = 4 * report->bytes;
        options.shard_limit = report->bytes;
        const auto larger = inflate(folder.path(), out.path(), options);
        ASSERT_TRUE(larger.ok()) << larger.error().message();
        EXPECT_LE(larger->bytes, options.size);
        EXPECT_GT(larger->bytes, options.size / 2);
        EXPECT_GT(larger->files, 1u);
        EXPECT_EQ(larger->tensors, report->tensors);
        const auto small = Checkpoint::open(folder.path()).value();
        const auto large = Checkpoint::open(out.path());
        ASSERT_TRUE(large.ok()) << large.error().message();
        EXPECT_TRUE((*large)->inventory().warnings.empty());
        EXPECT_EQ((*large)->config().expert_intermediate % 128, 0u);
        EXPECT_GT((*large)->config().dense_intermediate, spec.intermediate);
        expect_padded(*small, **large);

        options.size = report->bytes - 1;
        const TemporaryFolder other;
        EXPECT_FALSE(inflate(folder.path(), other.path(), options).ok());
        options.size = 4 * report->bytes;
        EXPECT_FALSE(inflate(folder.path(), out.path(), options).ok());
    }
}

// Nano widened: the goldens of nano hold, and its own tokens come out wherever they are clear.
TEST(Inflate, WidenedNanoGivesNanosTokens) {
    const auto nano = resolve_model("").value();
    const TemporaryFolder out;
    InflateOptions options;
    options.size = Bytes{160} << 20;
    const auto report = inflate(nano, out.path(), options);
    ASSERT_TRUE(report.ok()) << report.error().message();
    EXPECT_GT(report->bytes, Bytes{150} << 20);

    const auto checkpoint = Checkpoint::open(out.path()).value();
    EXPECT_GE(checkpoint->config().expert_intermediate, 6 * 128u);
    const auto golden = tests::GoldenFile::open(std::filesystem::path(PERCHERON_SOURCE_DIR) /
                                                "tests/data/nano_golden")
                            .value();
    ops::CpuBackendOptions exact;
    exact.threads = 2;
    exact.arithmetic = ops::Arithmetic::fp32;
    const auto backend = ops::make_cpu_backend(exact).value();
    const auto figures = tests::check_golden(*checkpoint, *backend, golden, {});
    ASSERT_TRUE(figures.ok()) << figures.error().message();
    EXPECT_GT(figures->greedy.compared, 40u);
    for (const std::string& sentence : tests::shortcomings(*figures, exact.arithmetic)) {
        ADD_FAILURE() << sentence << "\n" << figures->to_string();
    }

    std::vector<std::vector<TokenId>> sequences;
    for (const char* prompt : {"text300", "chat_tools"}) {
        auto& ids = sequences.emplace_back();
        for (const int id : golden.ids(prompt)) {
            ids.push_back(TokenId(id));
        }
    }
    ScoreOptions scoring;
    scoring.top = 2;
    scoring.threads = 2;
    scoring.folder = nano;
    const auto expected = score(sequences, scoring).value();
    scoring.folder = out.path();
    const auto got = score(sequences, scoring).value();
    std::size_t clear = 0, all = 0;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
        for (std::size_t position = 0; position < expected[s].top.size(); ++position) {
            const auto& top = expected[s].top[position];
            ++all;
            // Logits of this model have an RMS of about 4 around their mean.
            if (!(top[0].second - top[1].second > 1e-2 * 4)) continue;
            ++clear;
            EXPECT_EQ(got[s].top[position][0].first, top[0].first) << position;
        }
    }
    EXPECT_GT(clear * 100, all * 90);
}

}  // namespace
}  // namespace percheron::tools
