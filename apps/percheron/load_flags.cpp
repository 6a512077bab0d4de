#include "load_flags.h"

#include <algorithm>
#include <map>

#include <CLI/CLI.hpp>

#include "number_checks.h"

namespace percheron::apps {

void add_load_flags(CLI::App& command, LoadFlags& flags) {
    tools::LoadOptions& load = flags.load;
    command.add_option("MODEL", flags.model,
                       "Model folder or synth:KEY=VALUE,... (default: the embedded nano)");
    command.add_option("--device", load.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
    command.add_option("--threads", load.threads, "Threads that compute, 0 for all processors")
        ->capture_default_str();
    command
        .add_option("--context", load.context,
                    "Tokens of one request, prompt and reply (default: the smaller of the "
                    "model's limit and what fits)")
        ->check(positive_number());
    command
        .add_option("--kv-memory", load.kv_memory,
                    "Memory for pages, request slots and checkpoints, e.g. 8GiB (default: planned)")
        ->transform(CLI::AsSizeValue(false));
    command
        .add_option("--weights-memory", load.weights_memory,
                    "Memory for the weights, e.g. 96GiB: experts that do not fit are read from the "
                    "files when they are wanted (default: all weights)")
        ->transform(CLI::AsSizeValue(false));
    command
        .add_option("--kv-dtype", load.kv_dtype,
                    "Type of the cached latents and index keys: auto (bf16), bf16 or fp8 (half the "
                    "bytes a token, replies may differ)")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "bf16", "fp8"}));
    command.add_flag("--fp4-activations", load.fp4_activations,
                     "Round inputs of NVFP4 weights to FP4 as their input scales say (W4A4), where "
                     "the checkpoint has them; on the CPU this shows what it does to replies and "
                     "is slower (default: inputs stay BF16)");
    command
        .add_option(
            "--draft", load.draft.proposer,
            "Who guesses tokens ahead: auto, mtp (the model's own layer), dflash2 (a drafter of "
            "--draft-model), copy (the request's own text) or off; no token ever depends on it")
        ->capture_default_str();
    command.add_option("--draft-model", load.draft.model, "Folder of a DFlash2 or DFlash drafter");
    command
        .add_option("--draft-cache", load.draft.cache,
                    "Type of that drafter's keys and values: auto (that of --kv-dtype), bf16 or "
                    "fp8")
        ->capture_default_str()
        ->check(CLI::IsMember({"auto", "bf16", "fp8"}));
    command
        .add_option("--draft-window", load.draft.window,
                    "Positions that its layers see which see everything (default: all)")
        ->check(CLI::Range(64, 1 << 30));
    command
        .add_option_function<std::string>(
            "--draft-depth",
            [&load](const std::string& depth) {
                if (depth == "auto") {
                    load.draft.depth.reset();
                } else if (!CLI::detail::lexical_cast(depth, load.draft.depth.emplace())) {
                    throw CLI::ValidationError("--draft-depth", "is auto or a number");
                }
            },
            "Tokens guessed a step, auto or a number")
        ->default_str("auto");
    command.add_option("--seed", load.seed, "Makes the seeds of requests without one repeatable");
}

void add_serving_flags(CLI::App& command, tools::LoadOptions& load) {
    command
        .add_option("--model-name", load.model_name,
                    "Name clients see (default: MODEL's last folder)")
        ->check([](const std::string& name) -> std::string {
            const bool shown =
                !name.empty() && std::all_of(name.begin(), name.end(),
                                             [](unsigned char c) { return c > ' ' && c != 0x7f; });
            return shown ? "" : "must be a name without blanks";
        });
    command.add_option("--max-running", load.max_running, "Replies worked on at once")
        ->check(positive_number());
    command
        .add_option("--thinking-budget", load.thinking_budget,
                    "Tokens a reply may think when its request sets no thinking_budget")
        ->check(positive_number());
    command
        .add_option("--prefix-cache", load.prefix_cache,
                    "on: what prompts and replies share is computed once; off: never")
        ->transform(
            CLI::CheckedTransformer(std::map<std::string, bool>{{"on", true}, {"off", false}})
                .description("{on,off}"))
        ->default_str("on");
    command
        .add_option("--loop-guard", load.loop_guard,
                    "on: a reply that repeats itself without end is ended; off: it goes on")
        ->transform(
            CLI::CheckedTransformer(std::map<std::string, bool>{{"on", true}, {"off", false}})
                .description("{on,off}"))
        ->default_str("on");
    command
        .add_option("--checkpoint-memory", load.checkpoint_memory,
                    "Memory for the prefix cache's states, of --kv-memory (default: an eighth)")
        ->transform(CLI::AsSizeValue(false));
    CLI::Option* const disk =
        command.add_option("--prefix-disk", load.prefix_disk,
                           "Folder that keeps the prefix cache for the next start (default: none)");
    command
        .add_option("--prefix-disk-size", load.prefix_disk_size,
                    "Of all its files (default: 16GiB, at most half of the free disk)")
        ->transform(CLI::AsSizeValue(false))
        ->needs(disk);
}

std::vector<std::string> serving_arguments(const CLI::App& command) {
    CLI::App known;
    LoadFlags unused;
    add_load_flags(known, unused);
    add_serving_flags(known, unused.load);
    std::vector<std::string> arguments;
    std::string model;
    for (const CLI::Option* option : command.get_options()) {
        if (option->count() == 0 || known.get_option_no_throw(option->get_name()) == nullptr) {
            continue;
        }
        for (const std::string& value : option->results()) {
            if (option->get_positional()) {
                model = value;
            } else {
                arguments.push_back(option->get_name() + "=" + value);
            }
        }
    }
    if (!model.empty()) arguments.push_back(model);
    return arguments;
}

}  // namespace percheron::apps
