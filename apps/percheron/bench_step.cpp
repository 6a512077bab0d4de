// percheron bench step: what a step costs, stage by stage, beside what the machine could do.
#include <algorithm>
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "number_checks.h"
#include "tools/machine_bench.h"
#include "tools/model_path.h"
#include "tools/step_costs.h"

namespace percheron::apps {
namespace {

struct Arguments {
    tools::StepBenchOptions options;
    std::string model;
    bool json = false;
};

// The least time that bytes and operations allow.
double floor_of(double bytes, double operations, const tools::MachineFigures& machine) {
    return std::max(bytes / machine.read_ceiling(), operations / machine.gemm_ceiling());
}

void print(const tools::StepCosts& step, const tools::MachineFigures& machine) {
    std::printf("\n%s, %zu rows: %.3f ms", step.decode ? "decode" : "prefill", step.rows,
                1e3 * step.seconds);
    if (step.experts > 0) {
        std::printf("; %.1f different experts a layer, %.1f expected of an even choice",
                    step.experts, step.experts_expected);
    }
    std::printf("\n  %-14s %6s %10s %10s %10s %9s\n", "stage", "calls", "MB", "MFLOP", "us",
                "ceiling");
    tools::StageCost all;
    const auto line = [&](const char* name, const tools::StageCost& stage) {
        std::printf("  %-14s %6zu %10.3f %10.2f %10.1f %8.1f%%\n", name, stage.calls,
                    stage.bytes / 1e6, stage.operations / 1e6, 1e6 * stage.seconds,
                    100 * floor_of(stage.bytes, stage.operations, machine) / stage.seconds);
    };
    for (const auto& [name, stage] : step.stages) {
        line(name.c_str(), stage);
        all.calls += stage.calls;
        all.bytes += stage.bytes;
        all.operations += stage.operations;
        all.seconds += stage.seconds;
    }
    line("all", all);
}

nlohmann::ordered_json json_of(const tools::StepCosts& step, const tools::MachineFigures& machine) {
    nlohmann::ordered_json json = {{"class", step.decode ? "decode" : "prefill"},
                                   {"rows", step.rows},
                                   {"seconds", step.seconds},
                                   {"experts", step.experts},
                                   {"experts_expected", step.experts_expected},
                                   {"stages", nlohmann::ordered_json::object()}};
    for (const auto& [name, stage] : step.stages) {
        json["stages"][name] = {
            {"calls", stage.calls},
            {"bytes", stage.bytes},
            {"operations", stage.operations},
            {"seconds", stage.seconds},
            {"ceiling", floor_of(stage.bytes, stage.operations, machine) / stage.seconds}};
    }
    return json;
}

Status run(Arguments& arguments) {
    PERCHERON_ASSIGN(const auto folder, tools::resolve_model(arguments.model));
    arguments.options.model = folder.string();
    tools::MachineBenchOptions machine_options;
    machine_options.threads = arguments.options.threads;
    PERCHERON_ASSIGN(const tools::MachineFigures machine, tools::measure_machine(machine_options));
    PERCHERON_ASSIGN(const std::vector<tools::StepCosts> steps,
                     tools::measure_steps(arguments.options));
    if (arguments.json) {
        nlohmann::ordered_json json = {{"read_bytes_per_second", machine.read_ceiling()},
                                       {"gemm_operations_per_second", machine.gemm_ceiling()},
                                       {"steps", nlohmann::ordered_json::array()}};
        for (const tools::StepCosts& step : steps) {
            json["steps"].push_back(json_of(step, machine));
        }
        std::printf("%s\n", json.dump(2).c_str());
        return {};
    }
    std::printf("%s on %zu threads; ceilings %.2f GB/s and %.1f GFLOP/s\n", folder.string().c_str(),
                machine.processors, machine.read_ceiling() / 1e9, machine.gemm_ceiling() / 1e9);
    for (const tools::StepCosts& step : steps) {
        print(step, machine);
    }
    return {};
}

}  // namespace

void add_bench_step(CLI::App& bench, int& exit_code) {
    const auto arguments = std::make_shared<Arguments>();
    CLI::App* const command = bench.add_subcommand(
        "step",
        "Bytes, operations, time and share of the machine's ceiling, stage by stage, of decode and "
        "prefill steps on the CPU.\nExample: percheron bench step models/nano --decode 1,8");
    command->add_option("MODEL", arguments->model,
                        "Model folder or synth:KEY=VALUE,... (default: the embedded nano)");
    tools::StepBenchOptions& options = arguments->options;
    command->add_option("--threads", options.threads, "Threads, 0 for all processors")
        ->capture_default_str();
    command->add_option("--decode", options.decode_rows, "Rows of decode steps, a stream each")
        ->delimiter(',')
        ->check(positive_number())
        ->capture_default_str();
    command->add_option("--prefill", options.prefill_rows, "Rows of prefill steps, one prompt each")
        ->delimiter(',')
        ->check(positive_number())
        ->capture_default_str();
    command->add_option("--context", options.context, "Positions in front of decode steps")
        ->capture_default_str();
    command->add_option("--repeat", options.repeat, "Steps whose mean counts")
        ->check(positive_number())
        ->capture_default_str();
    command->add_flag("--json", arguments->json, "Print JSON");
    command->footer(
        "A stage's ceiling is the larger of its bytes over the read rate and its operations over "
        "the\nproduct rate of this machine, both measured first.  A model that fits the caches can "
        "be\nfaster than its bytes allow from memory.");
    command->callback(
        [arguments, &exit_code] { exit_code = exit_code_of(run(*arguments), "bench step"); });
}

}  // namespace percheron::apps
