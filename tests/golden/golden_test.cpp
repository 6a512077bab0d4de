// Small random checkpoints and the embedded model against the Hugging Face implementation's
// numbers.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <tuple>

#include <gtest/gtest.h>

#include "golden/golden_check.h"
#include "golden/mtp_check.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/reference/reference_backend.h"

namespace percheron::tests {
namespace {

struct Case {
    const char* checkpoint;
    std::size_t chunk;  // prefill positions a step
};

namespace fs = std::filesystem;
const fs::path source = PERCHERON_SOURCE_DIR;

// Fails with a sentence for every figure that is short.
void check_folders(const fs::path& model, const fs::path& numbers, std::size_t chunk,
                   ops::Backend& backend, GoldenFigures& figures) {
    auto checkpoint = checkpoint::Checkpoint::open(model);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    const auto golden = GoldenFile::open(numbers);
    ASSERT_TRUE(golden.ok()) << golden.error().message();
    GoldenOptions options;
    options.chunk = chunk;
    const auto found = check_golden(**checkpoint, backend, *golden, options);
    ASSERT_TRUE(found.ok()) << found.error().message();
    figures = *found;
    for (const std::string& sentence : shortcomings(figures, backend.arithmetic())) {
        ADD_FAILURE() << sentence << "\n" << figures.to_string();
    }
}

std::unique_ptr<ops::Backend> cpu_backend(ops::Arithmetic arithmetic) {
    ops::CpuBackendOptions options;
    options.arithmetic = arithmetic;
    return ops::make_cpu_backend(options).value();
}

class GoldenTest : public testing::TestWithParam<Case> {
  protected:
    void check(ops::Backend& backend, GoldenFigures& figures) {
        const fs::path folder = source / "tests/data" / GetParam().checkpoint;
        check_folders(folder, folder, GetParam().chunk, backend, figures);
    }
};

// Whatever the file holds was looked at.
void expect_everything_compared(const GoldenFigures& figures) {
    EXPECT_GT(figures.prompts, 5u);
    EXPECT_GT(figures.positions, 200u);
    EXPECT_EQ(figures.logits.positions, figures.positions);
    EXPECT_GT(figures.greedy.compared, 60u);
    EXPECT_GT(figures.pools.compared, 200u);
    EXPECT_GT(figures.layers.positions, 300u);
    EXPECT_GT(figures.kda_state.positions, 1u);
    EXPECT_GT(figures.conv_state.positions, 1u);
}

TEST_P(GoldenTest, ReferenceAgreesInFp32) {
    const auto backend = ops::reference::make_reference_backend(ops::Arithmetic::fp32);
    GoldenFigures figures;
    check(*backend, figures);
    expect_everything_compared(figures);
}

TEST_P(GoldenTest, CpuAgreesInFp32) {
    GoldenFigures figures;
    check(*cpu_backend(ops::Arithmetic::fp32), figures);
    expect_everything_compared(figures);
}

// The embedded model: transformers on its weights widened to fp32.
class EmbeddedModel : public testing::TestWithParam<ops::Arithmetic> {};

TEST_P(EmbeddedModel, AgreesOnTheCpu) {
    GoldenFigures figures;
    check_folders(source / "models/nano", source / "tests/data/nano_golden", 256,
                  *cpu_backend(GetParam()), figures);
    EXPECT_EQ(figures.prompts, 3u);
    EXPECT_EQ(figures.positions, 70u + 300u + 340u);
    EXPECT_EQ(figures.logits.positions, 6u);
    EXPECT_GT(figures.pools.compared, 1000u);
    EXPECT_GT(figures.greedy.compared, 40u);
}

// fp8 caches against the same numbers, beside bf16 ones.  An e4m3 value is off by 2.6 % (root mean
// square over a binade: 2^-4 / sqrt(3), of 1.4), as score and as value, in each of nano's two
// sparse layers: 2.6 % sqrt(4) = 5 % of the RMS of the logits if nothing averaged out, and the
// worst of 8192 of them four times that.
TEST(EmbeddedModelInFp8, StaysNearTheGoldenNumbers) {
    GoldenFigures figures[2];
    for (const bool fp8 : {false, true}) {
        auto checkpoint = checkpoint::Checkpoint::open(source / "models/nano");
        ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
        const auto golden = GoldenFile::open(source / "tests/data/nano_golden");
        ASSERT_TRUE(golden.ok()) << golden.error().message();
        GoldenOptions options;
        options.chunk = 256;
        options.kv_dtype = fp8 ? "fp8" : "bf16";
        const auto backend = cpu_backend(ops::Arithmetic::standard);
        const auto found = check_golden(**checkpoint, *backend, *golden, options);
        ASSERT_TRUE(found.ok()) << found.error().message();
        figures[fp8] = *found;
        std::printf("%s caches: %s", options.kv_dtype.c_str(), found->to_string().c_str());
    }
    EXPECT_EQ(figures[1].positions, 70u + 300u + 340u);
    EXPECT_EQ(figures[1].logits.positions, 6u);
    EXPECT_NE(figures[1].logits.worst, figures[0].logits.worst);
    EXPECT_LE(figures[1].logits.worst, figures[0].logits.worst + 0.2);
    EXPECT_LE(figures[1].last_logits.worst, figures[0].last_logits.worst + 0.2);
    EXPECT_TRUE(shortcomings(figures[1], ops::Arithmetic::standard, true).empty());
}

// Pictures: the tower's rows, then prompts with one and two pictures, one of them over the edge of
// two prefill chunks.
TEST_P(EmbeddedModel, AgreesOnPictures) {
    for (const std::size_t chunk : {64, 256}) {
        GoldenFigures figures;
        check_folders(source / "models/nano", source / "tests/data/nano_vision_golden", chunk,
                      *cpu_backend(GetParam()), figures);
        EXPECT_EQ(figures.prompts, 3u);
        EXPECT_EQ(figures.positions, 34u + 67u + 79u);
        EXPECT_EQ(figures.features.positions, 16u + 24u + 20u + 18u);
        EXPECT_EQ(figures.greedy.compared, 12u);
    }
}

// A tower of odd sizes: three heads of 16, patches of 5 pixels, a clamp that bites.
TEST(RandomTower, AgreesInFp32) {
    const fs::path folder = source / "tests/data/random_v";
    GoldenFigures figures;
    const auto reference = ops::reference::make_reference_backend(ops::Arithmetic::fp32);
    check_folders(folder, folder, 64, *reference, figures);
    EXPECT_EQ(figures.features.positions, 1u + 6u + 5u + 24u);
    GoldenFigures on_cpu;
    check_folders(folder, folder, 64, *cpu_backend(ops::Arithmetic::fp32), on_cpu);
    EXPECT_EQ(on_cpu.features.positions, 1u + 6u + 5u + 24u);
}

// The MTP layer against the NumPy oracle: fed the golden hidden rows, and behind our own trunk.
MtpFigures mtp_figures(const fs::path& model, const fs::path& numbers, MtpInput input,
                       std::size_t chunk, ops::Backend& backend) {
    auto checkpoint = checkpoint::Checkpoint::open(model);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message();
    const auto golden = GoldenFile::open(numbers);
    EXPECT_TRUE(golden.ok()) << golden.error().message();
    const auto figures = check_mtp(**checkpoint, backend, *golden, input, chunk);
    EXPECT_TRUE(figures.ok()) << figures.error().message();
    return figures.ok() ? *figures : MtpFigures();
}

TEST_P(EmbeddedModel, MtpLayerAgreesWithTheOracle) {
    for (const MtpInput input : {MtpInput::golden, MtpInput::trunk}) {
        const MtpFigures figures =
            mtp_figures(source / "models/nano", source / "tests/data/nano_mtp_golden", input, 64,
                        *cpu_backend(GetParam()));
        EXPECT_EQ(figures.rows, 69u + 19u);
        if (GetParam() == ops::Arithmetic::fp32) {
            EXPECT_LE(figures.hidden, 1e-3);
            EXPECT_LE(figures.logits, 1e-3);
            EXPECT_LE(figures.top_logits, 1e-3);
            EXPECT_EQ(figures.top_equal, figures.rows);
        } else {
            EXPECT_GE(figures.top_equal * 100, figures.rows * 97);
        }
    }
}

TEST(RandomMtpLayer, AgreesWithTheOracleInFp32) {
    const fs::path folder = source / "tests/data/random_m";
    const auto reference = ops::reference::make_reference_backend(ops::Arithmetic::fp32);
    const auto cpu = cpu_backend(ops::Arithmetic::fp32);
    for (ops::Backend* backend : {static_cast<ops::Backend*>(reference.get()), cpu.get()}) {
        for (const std::size_t chunk : {64, 192}) {
            const MtpFigures figures =
                mtp_figures(folder, folder, MtpInput::golden, chunk, *backend);
            EXPECT_EQ(figures.rows, 1u + 8u + 39u + 129u);
            EXPECT_LE(figures.hidden, 1e-3);
            EXPECT_LE(figures.logits, 1e-3);
            EXPECT_LE(figures.top_logits, 1e-3);
            EXPECT_EQ(figures.top_equal, figures.rows);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Both, EmbeddedModel,
                         testing::Values(ops::Arithmetic::standard, ops::Arithmetic::fp32),
                         [](const auto& info) {
                             return info.param == ops::Arithmetic::fp32 ? "fp32" : "standard";
                         });

INSTANTIATE_TEST_SUITE_P(Random, GoldenTest,
                         testing::Values(Case{"random_a", 512}, Case{"random_a", 64},
                                         Case{"random_b", 512}, Case{"random_b", 64}),
                         [](const auto& info) {
                             return std::string(info.param.checkpoint) + "_chunk" +
                                    std::to_string(info.param.chunk);
                         });

}  // namespace
}  // namespace percheron::tests
