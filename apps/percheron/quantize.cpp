// percheron quantize: a checkpoint in smaller weight formats.
#include "tools/quantize.h"

#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "byte_progress.h"
#include "command_line.h"
#include "commands.h"
#include "measured_quality.h"
#include "number_checks.h"
#include "tools/model_path.h"
#include "tools/model_source.h"
#include "tools/quality_card.h"

namespace percheron::apps {
namespace {

struct Arguments {
    std::string model;
    std::string out;
    std::string format;
    std::string method;
    std::string rest = "keep";
    std::vector<std::string> include;
    std::vector<std::string> keep;
    std::string calibration;
    std::string held_out;
    tools::CalibrationLimits limits;
    tools::Calibration settings;
    std::uint64_t shard_size = std::uint64_t{5} << 30;
    std::size_t threads = 0;
};

constexpr double mebibyte = 1024.0 * 1024.0;

int fail(int code, const std::string& message) {
    say_fault("quantize", message);
    return code;
}

Error wrong(const std::string& message) {
    return Error(ErrorCode::invalid_argument, message);
}

// What was asked for, or the sentence that says why it cannot be had.
Result<tools::QuantizeOptions> read_options(const Arguments& arguments) {
    tools::QuantizeOptions options;
    options.format = arguments.format == "fp8"     ? ops::WeightFormat::fp8_block
                     : arguments.format == "nvfp4" ? ops::WeightFormat::nvfp4
                                                   : ops::WeightFormat::w4a16;
    const bool texts = !arguments.calibration.empty();
    if (arguments.method == "gptq" && !texts) {
        return wrong("--method gptq needs texts; name them with --calibration FILE.jsonl");
    }
    if (texts && arguments.method == "rtn") {
        return wrong("--method rtn reads no texts; leave out --calibration or --method");
    }
    if (texts && options.format == ops::WeightFormat::fp8_block) {
        return wrong(
            "--format fp8 is rounded to the nearest value and reads no texts; leave out "
            "--calibration");
    }
    if (arguments.shard_size == 0) return wrong("--shard-size must be more than nothing");
    if (arguments.rest == "fp8") options.rest = ops::WeightFormat::fp8_block;
    options.include = arguments.include;
    options.keep = arguments.keep;
    options.shard_limit = arguments.shard_size;
    options.threads = arguments.threads;
    return options;
}

void print_report(const tools::QuantizeReport& report, const std::string& out) {
    std::printf("%-10s %8s %12s  %s\n", "format", "tensors", "MiB", "relative error");
    for (const auto& [name, format] : report.formats) {
        std::printf("%-10s %8zu %12.2f  ", name.c_str(), format.tensors,
                    static_cast<double>(format.bytes) / mebibyte);
        if (format.relative_error > 0) {
            std::printf("%.5f\n", format.relative_error);
        } else {
            std::printf("as stored\n");
        }
    }
    if (!report.layers.empty()) {
        std::printf("\n%zu text%s of %zu tokens; errors of the matrices' outputs on them:\n",
                    report.calibration_texts, report.calibration_texts == 1 ? "" : "s",
                    report.calibration_tokens);
        std::printf("%5s %8s %12s %12s %22s\n", "layer", "matrices", "error", "to nearest",
                    "rows of an expert");
    }
    for (const tools::QuantizeReport::Layer& layer : report.layers) {
        const auto error = [](const std::optional<double>& value) {
            return value ? fmt::format("{:.5f}", *value) : std::string("not measured");
        };
        std::printf("%5zu %8zu %12s %12s", layer.index, layer.matrices, error(layer.error).c_str(),
                    error(layer.nearest_error).c_str());
        if (!layer.expert_rows.empty()) {
            const auto [least, most] =
                std::minmax_element(layer.expert_rows.begin(), layer.expert_rows.end());
            std::printf(" %10llu to %8llu", static_cast<unsigned long long>(*least),
                        static_cast<unsigned long long>(*most));
        }
        std::printf("\n");
    }
    if (!report.uncovered.empty()) {
        std::printf("\n%zu matrices had too few rows and were rounded to the nearest:\n",
                    report.uncovered.size());
        for (const std::string& name : report.uncovered)
            std::printf("  %s\n", name.c_str());
    }
    std::printf("%s: %.2f MiB of weights in %zu file%s\n", out.c_str(),
                static_cast<double>(report.bytes) / mebibyte, report.files,
                report.files == 1 ? "" : "s");
}

Status quantize(const Arguments& arguments, tools::QuantizeOptions options) {
    PERCHERON_ASSIGN(const auto model, tools::resolve_model(arguments.model));
    PERCHERON_ASSIGN(const model::ModelConfig config, tools::read_model_config(model));
    if (!arguments.calibration.empty()) {
        options.calibration = arguments.settings;
        PERCHERON_ASSIGN(options.calibration->texts,
                         tools::read_calibration(arguments.calibration, model, config.vocabulary,
                                                 arguments.limits));
    }
    // Read before the work, so that a mistake in the file does not come at its end.
    std::vector<tools::CalibrationText> held_out;
    if (!arguments.held_out.empty()) {
        PERCHERON_ASSIGN(held_out, tools::read_calibration(arguments.held_out, model,
                                                           config.vocabulary, arguments.limits));
        PERCHERON_ASSIGN(const std::filesystem::path text, tools::text_folder(model));
        PERCHERON_TRY(Tokenizer::load(text / "tokenizer.json"));
    }
    if (options.calibration) {
        const std::size_t both = tools::texts_in_both(options.calibration->texts, held_out);
        if (both > 0) {
            return wrong(fmt::format(
                "--held-out {}: {} of its {} texts are among those of --calibration, and would "
                "say nothing about others; leave them out of one of the files",
                arguments.held_out, both, held_out.size()));
        }
    }
    const ByteProgress progress("quantize");
    options.progress = progress;
    options.finish = [&](const tools::QuantizeReport& report) -> Status {
        print_report(report, arguments.out);
        tools::QualityCard card;
        card.command = command_line();
        card.source = arguments.model;
        card.source_bytes = report.source_bytes;
        card.report = &report;
        card.format = arguments.format;
        std::size_t matrices = 0;
        for (const tools::QuantizeReport::Layer& layer : report.layers)
            matrices += layer.matrices;
        card.method = matrices > 0 ? "gptq" : "rtn";
        if (!held_out.empty()) {
            card.texts = arguments.held_out;
            PERCHERON_ASSIGN(card.quality, measure_quality(model, arguments.out, held_out, "auto",
                                                           arguments.threads));
        }
        PERCHERON_TRY(tools::write_card(arguments.out, card));
        if (!held_out.empty()) print_quality(card.quality);
        return {};
    };
    const auto report = tools::quantize(model, arguments.out, options);
    return report.ok() ? Status() : Status(report.error());
}

int run(const Arguments& arguments) {
    auto options = read_options(arguments);
    if (!options.ok()) return fail(2, options.error().message());
    const Status done = quantize(arguments, std::move(options).value());
    return done.ok() ? 0 : fail(1, done.error().message());
}

}  // namespace

void add_quantize(CLI::App& app, int& exit_code) {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* command =
        app.add_subcommand("quantize", "Write a checkpoint in smaller weight formats");
    command->footer(
        "FILE.jsonl has a text a line: {\"messages\": [...], \"tools\": [...]}, {\"prompt\": ...}, "
        "{\"text\": ...}\nor {\"ids\": [...]}.  PATTERN is a module and what lies below it, a "
        "shell "
        "pattern for a whole name,\nor re:EXPRESSION.  A run that was stopped goes on when it is "
        "repeated.\n\n"
        "Example: percheron quantize GLM-5.3-Flash GLM-5.3-Flash-W4A16 --format w4a16 "
        "--calibration texts.jsonl");
    command->add_option("MODEL", arguments->model, "Model folder or synth:KEY=VALUE,... to read")
        ->required();
    command->add_option("OUT", arguments->out, "Folder to write; must hold no checkpoint")
        ->required();
    command->add_option("--format", arguments->format, "Format: w4a16, nvfp4 or fp8")
        ->required()
        ->check(CLI::IsMember({"w4a16", "nvfp4", "fp8"}));
    command
        ->add_option("--method", arguments->method,
                     "How values are chosen: rtn (nearest value) or gptq (by what --calibration's "
                     "texts make of them; the default where there are texts)")
        ->check(CLI::IsMember({"rtn", "gptq"}));
    command->add_option("--calibration", arguments->calibration, "FILE.jsonl of texts for gptq");
    command->add_option("--held-out", arguments->held_out,
                        "FILE.jsonl of other texts, on which OUT is compared with MODEL for its "
                        "QUALITY.md");
    command
        ->add_option("--include", arguments->include,
                     "PATTERN of matrices that get --format (default: the routed experts)")
        ->allow_extra_args(false);
    command->add_option("--keep", arguments->keep, "PATTERN of matrices that stay as they are")
        ->allow_extra_args(false);
    command
        ->add_option("--rest", arguments->rest,
                     "Other matrices whose sizes are multiples of 128: keep, or fp8 "
                     "(embedding, head, MTP and vision included)")
        ->check(CLI::IsMember({"keep", "fp8"}))
        ->capture_default_str();
    command->add_flag("--all-experts", arguments->settings.all_experts,
                      "Calibrate every expert with every row, not with those routed to it");
    command
        ->add_option("--least-rows", arguments->settings.least_rows,
                     "Rows that a matrix needs to be calibrated")
        ->capture_default_str();
    command
        ->add_option("--damping", arguments->settings.damping,
                     "Share of the mean square added to every input's")
        ->check(CLI::Range(1e-6, 1e3))
        ->capture_default_str();
    command->add_option("--calibration-tokens", arguments->limits.tokens, "Tokens of all texts")
        ->check(positive_number())
        ->capture_default_str();
    command->add_option("--calibration-length", arguments->limits.length, "Tokens of a text")
        ->check(positive_number())
        ->capture_default_str();
    command->add_option("--shard-size", arguments->shard_size, "Largest file, e.g. 5GiB")
        ->transform(CLI::AsSizeValue(false))
        ->default_str("5GiB");
    command->add_option("--threads", arguments->threads, "Threads, 0 for all processors")
        ->capture_default_str();
    command->callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

}  // namespace percheron::apps
