// percheron bench machine: the ceilings that other figures are shares of.
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "number_checks.h"
#include "tools/machine_bench.h"

namespace percheron::apps {
namespace {

struct Arguments {
    tools::MachineBenchOptions options;
    std::string file;
    bool json = false;
};

void print(const tools::MachineFigures& figures) {
    std::printf("%zu processors, SIMD level %s\ncaches", figures.processors, figures.simd.c_str());
    for (const Bytes bytes : figures.caches) {
        std::printf(" %.0f KiB", static_cast<double>(bytes) / 1024);
    }
    std::printf("\n");
    for (const tools::ReadRate& rate : figures.reads) {
        std::printf("memory read, %2zu threads   %8.2f GB/s\n", rate.threads,
                    rate.bytes_per_second / 1e9);
    }
    for (const tools::GemmRate& rate : figures.gemms) {
        std::printf("%-40s %8.1f GFLOP/s\n", rate.by.c_str(), rate.operations_per_second / 1e9);
    }
    if (figures.disk_bytes_per_second > 0) {
        std::printf("disk read                 %8.2f GB/s\n", figures.disk_bytes_per_second / 1e9);
    }
}

void print_json(const tools::MachineFigures& figures) {
    nlohmann::ordered_json json = {{"processors", figures.processors},
                                   {"simd", figures.simd},
                                   {"simd_levels", figures.simd_levels},
                                   {"caches", figures.caches},
                                   {"reads", nlohmann::ordered_json::array()},
                                   {"gemms", nlohmann::ordered_json::array()},
                                   {"disk_bytes_per_second", figures.disk_bytes_per_second}};
    for (const tools::ReadRate& rate : figures.reads) {
        json["reads"].push_back(
            {{"threads", rate.threads}, {"bytes_per_second", rate.bytes_per_second}});
    }
    for (const tools::GemmRate& rate : figures.gemms) {
        json["gemms"].push_back(
            {{"by", rate.by}, {"operations_per_second", rate.operations_per_second}});
    }
    std::printf("%s\n", json.dump(2).c_str());
}

}  // namespace

void add_bench_machine(CLI::App& bench, int& exit_code) {
    const auto arguments = std::make_shared<Arguments>();
    CLI::App* const command = bench.add_subcommand(
        "machine",
        "Memory read rate by threads, matrix product rate, caches, SIMD level, disk read rate.\n"
        "Example: percheron bench machine --file models/nano/model.safetensors");
    command->add_option("--threads", arguments->options.threads, "At most, 0 for all processors")
        ->capture_default_str();
    command
        ->add_option("--buffer", arguments->options.buffer,
                     "Memory to read, e.g. 1GiB (default: eight times the last cache)")
        ->transform(CLI::AsSizeValue(false));
    command->add_option("--runs", arguments->options.runs, "Of each measurement; the best counts")
        ->check(positive_number())
        ->capture_default_str();
    command->add_option("--file", arguments->file, "Also read this file, past the page cache");
    command->add_flag("--json", arguments->json, "Print JSON");
    command->callback([arguments, &exit_code] {
        arguments->options.file = arguments->file;
        const auto figures = tools::measure_machine(arguments->options);
        if (!figures.ok()) {
            say_fault("bench machine", figures.error().message());
            exit_code = 1;
            return;
        }
        arguments->json ? print_json(*figures) : print(*figures);
    });
}

}  // namespace percheron::apps
