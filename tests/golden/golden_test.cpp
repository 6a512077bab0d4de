// The random checkpoints of tests/data against the Hugging Face implementation's numbers.
#include <filesystem>
#include <memory>
#include <tuple>

#include <gtest/gtest.h>

#include "golden/golden_check.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/reference/reference_backend.h"

namespace percheron::tests {
namespace {

struct Case {
    const char* checkpoint;
    std::size_t chunk;  // prefill positions a step
};

class GoldenTest : public testing::TestWithParam<Case> {
  protected:
    void check(ops::Backend& backend, GoldenFigures& figures) {
        const auto folder =
            std::filesystem::path(PERCHERON_SOURCE_DIR) / "tests/data" / GetParam().checkpoint;
        auto checkpoint = checkpoint::Checkpoint::open(folder);
        ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
        const auto golden = GoldenFile::open(folder);
        ASSERT_TRUE(golden.ok()) << golden.error().message();
        GoldenOptions options;
        options.chunk = GetParam().chunk;
        const auto found = check_golden(**checkpoint, backend, *golden, options);
        ASSERT_TRUE(found.ok()) << found.error().message();
        figures = *found;
        for (const std::string& sentence : shortcomings(figures, backend.arithmetic())) {
            ADD_FAILURE() << sentence << "\n" << figures.to_string();
        }
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
    ops::CpuBackendOptions options;
    options.arithmetic = ops::Arithmetic::fp32;
    const auto backend = ops::make_cpu_backend(options);
    ASSERT_TRUE(backend.ok()) << backend.error().message();
    GoldenFigures figures;
    check(**backend, figures);
    expect_everything_compared(figures);
}

INSTANTIATE_TEST_SUITE_P(Random, GoldenTest,
                         testing::Values(Case{"random_a", 512}, Case{"random_a", 64},
                                         Case{"random_b", 512}, Case{"random_b", 64}),
                         [](const auto& info) {
                             return std::string(info.param.checkpoint) + "_chunk" +
                                    std::to_string(info.param.chunk);
                         });

}  // namespace
}  // namespace percheron::tests
