// percheron quantize: a checkpoint in smaller weight formats.
#include "tools/quantize.h"

#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>

#include "byte_progress.h"
#include "commands.h"
#include "tools/model_path.h"

namespace percheron::apps {
namespace {

struct Arguments {
    std::string model;
    std::string out;
    std::string format;
    std::string method = "rtn";
    std::string rest = "keep";
    std::uint64_t shard_size = std::uint64_t{5} << 30;
    std::size_t threads = 0;
};

constexpr double mebibyte = 1024.0 * 1024.0;

int fail(int code, const std::string& message) {
    std::fprintf(stderr, "percheron quantize: %s\n", message.c_str());
    return code;
}

// The formats named, or the sentence that says why they cannot be had.
Result<tools::QuantizeOptions> read_options(const Arguments& arguments) {
    tools::QuantizeOptions options;
    if (arguments.format == "nvfp4") {
        return Error(ErrorCode::unsupported, "--format nvfp4 is not built yet; use w4a16 or fp8");
    }
    if (arguments.method == "gptq") {
        return Error(ErrorCode::unsupported,
                     "--method gptq is not built yet; use rtn, which rounds to the nearest value");
    }
    options.experts =
        arguments.format == "fp8" ? ops::WeightFormat::fp8_block : ops::WeightFormat::w4a16;
    if (arguments.rest == "fp8") options.rest = ops::WeightFormat::fp8_block;
    if (arguments.shard_size == 0) {
        return Error(ErrorCode::invalid_argument, "--shard-size must be more than nothing");
    }
    options.shard_limit = arguments.shard_size;
    options.threads = arguments.threads;
    return options;
}

int run(const Arguments& arguments) {
    auto options = read_options(arguments);
    if (!options.ok()) return fail(2, options.error().message());
    const auto model = tools::resolve_model(arguments.model);
    if (!model.ok()) return fail(1, model.error().message());
    options->progress = ByteProgress("quantize");
    const auto report = tools::quantize(*model, arguments.out, *options);
    if (!report.ok()) return fail(1, report.error().message());
    std::printf("%-10s %8s %12s  %s\n", "format", "tensors", "MiB", "relative error");
    for (const auto& [name, format] : report->formats) {
        std::printf("%-10s %8zu %12.2f  ", name.c_str(), format.tensors,
                    static_cast<double>(format.bytes) / mebibyte);
        if (format.relative_error > 0) {
            std::printf("%.5f\n", format.relative_error);
        } else {
            std::printf("as stored\n");
        }
    }
    std::printf("%s: %.2f MiB of weights in %zu file%s\n", arguments.out.c_str(),
                static_cast<double>(report->bytes) / mebibyte, report->files,
                report->files == 1 ? "" : "s");
    return 0;
}

}  // namespace

void add_quantize(CLI::App& app, int& exit_code) {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* command =
        app.add_subcommand("quantize", "Write a checkpoint in smaller weight formats");
    command->footer(
        "Example: percheron quantize GLM-5.3-Flash GLM-5.3-Flash-W4A16 --format w4a16 --rest keep");
    command->add_option("MODEL", arguments->model, "Model folder to read")->required();
    command->add_option("OUT", arguments->out, "Folder to write; must hold no checkpoint")
        ->required();
    command->add_option("--format", arguments->format, "Format of the routed experts: w4a16 or fp8")
        ->required()
        ->check(CLI::IsMember({"w4a16", "nvfp4", "fp8"}));
    command
        ->add_option("--method", arguments->method,
                     "How values are chosen: rtn (nearest value, best scale per group)")
        ->check(CLI::IsMember({"rtn", "gptq"}))
        ->capture_default_str();
    command
        ->add_option("--rest", arguments->rest,
                     "Other matrices whose sizes are multiples of 128: keep, or fp8 "
                     "(embedding, head, MTP and vision included)")
        ->check(CLI::IsMember({"keep", "fp8"}))
        ->capture_default_str();
    command->add_option("--shard-size", arguments->shard_size, "Largest file, e.g. 5GiB")
        ->transform(CLI::AsSizeValue(false))
        ->default_str("5GiB");
    command->add_option("--threads", arguments->threads, "Threads, 0 for all processors")
        ->capture_default_str();
    command->callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

}  // namespace percheron::apps
