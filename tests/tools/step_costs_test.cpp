// The account of a step: bytes and operations are those of the shapes, experts those chosen.
#include "tools/step_costs.h"

#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "tools/machine_bench.h"
#include "tools/model_path.h"

namespace percheron::tools {
namespace {

TEST(StepCosts, CountWhatTheShapesSay) {
    StepBenchOptions options;
    options.model = resolve_model("").value().string();
    options.threads = 1;
    options.context = 70;
    options.repeat = 2;
    options.decode_rows = {1, 4};
    options.prefill_rows = {128};
    const auto steps = measure_steps(options).value();
    ASSERT_EQ(steps.size(), 3u);
    const auto checkpoint = checkpoint::Checkpoint::open(options.model).value();
    const model::ModelConfig& config = checkpoint->config();

    const auto head = checkpoint->matrix("lm_head", config.vocabulary, config.hidden).value();
    const std::string dense = "model.language_model.layers.0.mlp.";
    double dense_bytes = 0;
    for (const char* part : {"gate_proj", "up_proj"}) {
        dense_bytes += static_cast<double>(ops::stored_bytes(
            checkpoint->matrix(dense + part, config.dense_intermediate, config.hidden).value()));
    }
    dense_bytes += static_cast<double>(ops::stored_bytes(
        checkpoint->matrix(dense + "down_proj", config.hidden, config.dense_intermediate).value()));

    double one_row = 0;
    for (const StepCosts& step : steps) {
        const auto rows = static_cast<double>(step.rows);
        const auto& stages = step.stages;
        EXPECT_EQ(stages.at("kda_mixer").calls, 7u);
        EXPECT_EQ(stages.at("sparse_mixer").calls, 2u);
        EXPECT_EQ(stages.at("moe_ffn").calls, 8u);
        EXPECT_EQ(stages.at("mhc_turn").calls, 2u * 9u + 1u);
        EXPECT_DOUBLE_EQ(stages.at("head").bytes, static_cast<double>(ops::stored_bytes(head)));
        EXPECT_DOUBLE_EQ(stages.at("dense_ffn").bytes, dense_bytes);
        EXPECT_DOUBLE_EQ(
            stages.at("dense_ffn").operations,
            2.0 * 3.0 * rows * static_cast<double>(config.hidden * config.dense_intermediate));
        // Every row meets its four experts and the shared one.
        EXPECT_DOUBLE_EQ(
            stages.at("moe_ffn").operations,
            8.0 * 2.0 * rows *
                static_cast<double>(config.hidden * (3 * config.expert_intermediate *
                                                         (config.experts_per_token + 1) +
                                                     config.experts)));
        EXPECT_GE(step.experts, static_cast<double>(config.experts_per_token));
        EXPECT_LE(step.experts, static_cast<double>(config.experts));
        for (const auto& [name, stage] : stages) {
            EXPECT_GT(stage.seconds, 0) << name;
        }
        if (step.decode && step.rows == 1) {
            EXPECT_DOUBLE_EQ(step.experts, static_cast<double>(config.experts_per_token));
            EXPECT_DOUBLE_EQ(step.experts_expected, step.experts);
            one_row = stages.at("moe_ffn").bytes;
        } else {
            EXPECT_GT(stages.at("moe_ffn").bytes, one_row);
            EXPECT_GT(step.experts_expected, static_cast<double>(config.experts_per_token));
        }
    }
}

TEST(MachineBench, FindsAPositiveRateOfEachKind) {
    MachineBenchOptions options;
    options.threads = 1;
    options.buffer = Bytes{16} << 20;
    options.runs = 1;
    options.file = resolve_model("").value() / "model.safetensors";
    const MachineFigures figures = measure_machine(options).value();
    EXPECT_EQ(figures.reads.size(), 1u);
    EXPECT_FALSE(figures.gemms.empty());
    EXPECT_GT(figures.read_ceiling(), 0);
    EXPECT_GT(figures.gemm_ceiling(), 0);
    EXPECT_GT(figures.disk_bytes_per_second, 0);
    options.file = "/no/such/file";
    const auto missing = measure_machine(options);
    ASSERT_FALSE(missing.ok());
    EXPECT_NE(missing.error().message().find("/no/such/file"), std::string::npos);
}

}  // namespace
}  // namespace percheron::tools
