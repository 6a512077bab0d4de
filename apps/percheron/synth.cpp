// percheron synth: a checkpoint of random values.
#include "tools/synth.h"

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "byte_progress.h"
#include "commands.h"
#include "number_checks.h"
#include "tools/inflate.h"
#include "tools/model_path.h"
#include "tools/model_source.h"

namespace percheron::apps {
namespace {

struct Arguments {
    std::string out;
    std::string format = "bf16";
    std::uint64_t shard_size = Bytes{5} << 30;
    std::string inflated;  // model to make larger; empty: random values
    std::uint64_t size = 0;
    std::string drafter;  // kind of the drafter to write; empty: a model
    std::string target;   // the model it is for
    tools::SynthOptions options;
};

int fail(int code, const std::string& message) {
    say_fault("synth", message);
    return code;
}

int inflate(const Arguments& arguments) {
    const auto model = tools::resolve_model(arguments.inflated);
    if (!model.ok()) return fail(1, model.error().message());
    tools::InflateOptions options;
    options.size = arguments.size;
    options.shard_limit = arguments.shard_size;
    options.progress = ByteProgress("synth");
    const auto report = tools::inflate(*model, arguments.out, options);
    if (!report.ok()) return fail(1, report.error().message());
    std::printf("%s: %zu tensors, %.2f MiB in %zu file%s; computes what %s does\n",
                arguments.out.c_str(), report->tensors,
                static_cast<double>(report->bytes) / (1024.0 * 1024.0), report->files,
                report->files == 1 ? "" : "s", model->string().c_str());
    return 0;
}

int write_drafter(const Arguments& arguments) {
    const auto model = tools::resolve_model(arguments.target);
    if (!model.ok()) return fail(1, model.error().message());
    const auto config = tools::read_model_config(*model);
    if (!config.ok()) return fail(1, config.error().message());
    const auto drafter =
        checkpoint::make_synthetic_drafter(arguments.drafter, *config, arguments.options.spec.seed);
    if (!drafter.ok()) return fail(2, drafter.error().message());
    tools::SynthOptions options = arguments.options;
    options.progress = ByteProgress("synth");
    const auto report = tools::synth_drafter(arguments.out, *drafter, options);
    if (!report.ok()) return fail(1, report.error().message());
    std::printf("%s: a drafter for %s, %zu tensors, %.2f MiB\n", arguments.out.c_str(),
                model->string().c_str(), report->tensors,
                static_cast<double>(report->bytes) / (1024.0 * 1024.0));
    return 0;
}

int run(Arguments& arguments) {
    if (!arguments.drafter.empty()) return write_drafter(arguments);
    if (!arguments.inflated.empty()) return inflate(arguments);
    tools::SynthOptions& options = arguments.options;
    const auto format = checkpoint::spec_format(arguments.format);
    if (!format.ok()) return fail(2, format.error().message());
    options.spec.format = *format;
    if (const Status status = checkpoint::check_spec(options.spec); !status.ok()) {
        return fail(2, status.error().message());
    }
    if (arguments.shard_size == 0) return fail(2, "--shard-size must be more than nothing");
    options.shard_limit = arguments.shard_size;
    const auto embedded = tools::resolve_model("");
    if (embedded.ok()) options.tokenizer_from = *embedded;
    options.progress = ByteProgress("synth");
    const auto report = tools::synth(arguments.out, options);
    if (!report.ok()) return fail(1, report.error().message());
    std::printf("%s: %zu tensors, %.2f MiB in %zu file%s; %s\n", arguments.out.c_str(),
                report->tensors, static_cast<double>(report->bytes) / (1024.0 * 1024.0),
                report->files, report->files == 1 ? "" : "s",
                report->tokenizer ? "the embedded model's tokenizer was copied"
                : embedded.ok()   ? "no tokenizer, the embedded model's has more ids"
                                  : "no tokenizer, there is no embedded model here");
    return 0;
}

}  // namespace

void add_synth(CLI::App& app, int& exit_code) {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* command =
        app.add_subcommand("synth", "Write a checkpoint of random values, of any size and format");
    command->footer(
        "What is not named has the size of GLM-5.3-Flash.  The values depend on seed, tensor name\n"
        "and element only; synth:KEY=VALUE,... in place of a MODEL, with the flags' names as "
        "keys,\n"
        "is the same model without a file.\n\n"
        "Example: percheron synth small --layers 8 --experts 16 --hidden 512 --format w4a16\n"
        "         percheron synth large --inflate models/nano --size 2GiB\n"
        "         percheron synth drafter --drafter reference --for models/nano");
    command->add_option("OUT", arguments->out, "Folder to write; must hold no checkpoint")
        ->required();
    tools::SynthOptions& options = arguments->options;
    std::vector<CLI::Option*> described;  // flags that say what a model of random values is
    for (const checkpoint::SpecCount& count : checkpoint::spec_counts()) {
        described.push_back(command
                                ->add_option(std::string("--") + count.key,
                                             options.spec.*count.member, count.meaning)
                                ->capture_default_str());
    }
    described.push_back(
        command
            ->add_option(
                "--format", arguments->format,
                "bf16; w4a16 (experts), nvfp4 (experts and dense FFN), fp8 (those and more)")
            ->check(CLI::IsMember({"bf16", "fp8", "w4a16", "nvfp4"}))
            ->capture_default_str());
    command->add_option("--seed", options.spec.seed, "Seed of the values")->capture_default_str();
    auto* const size =
        command->add_option("--shard-size", arguments->shard_size, "Largest file, e.g. 5GiB");
    size->transform(CLI::AsSizeValue(false))->default_str("5GiB");
    command->add_option("--shards", options.shards, "Exactly so many files")
        ->check(positive_number())
        ->excludes(size);
    auto* const inflated = command->add_option(
        "--inflate", arguments->inflated,
        "Widen this model's feed-forwards with zeros: same tokens, more bytes a token");
    auto* const widened =
        command->add_option("--size", arguments->size, "Of the widened model at most, e.g. 2GiB")
            ->transform(CLI::AsSizeValue(false))
            ->needs(inflated);
    inflated->needs(widened);
    auto* const drafter = command->add_option(
        "--drafter", arguments->drafter,
        "Write a DFlash2 drafter: reference (windowed) or full (sees everything)");
    drafter->check(CLI::IsMember({"reference", "full"}))->excludes(inflated);
    command->add_option("--for", arguments->target, "Model the drafter is for (default: nano)")
        ->needs(drafter);
    described.push_back(
        command->add_flag("--split-pairs", options.split_pairs,
                          "Put the scales of weights into other files than the weights"));
    // A widened model and a drafter are what their model is.
    for (CLI::Option* const option : described) {
        inflated->excludes(option);
        drafter->excludes(option);
    }
    command->add_option("--threads", options.threads, "Threads, 0 for all processors")
        ->capture_default_str();
    command->callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

}  // namespace percheron::apps
