// percheron score: log-probabilities and top ids at every position of given token ids.
#include "tools/score.h"

#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "commands.h"
#include "core/files.h"
#include "tools/model_path.h"

namespace percheron::apps {
namespace {

struct Arguments {
    std::string model;
    std::string ids;
    std::string arithmetic = "default";
    std::string device = "auto";
    std::size_t top = 0;
    std::size_t threads = 0;
    bool json = false;
};

void print_table(const std::vector<tools::SequenceScore>& scores) {
    std::printf("%8s %8s %14s %12s %12s\n", "sequence", "ids", "logprob", "mean", "perplexity");
    double sum = 0;
    std::size_t count = 0;
    const auto line = [](const std::string& name, std::size_t ids, double total,
                         std::size_t scored) {
        const double mean = scored == 0 ? 0.0 : total / static_cast<double>(scored);
        std::printf("%8s %8zu %14.4f %12.6f %12.4f\n", name.c_str(), ids, total, mean,
                    std::exp(-mean));
    };
    std::size_t ids = 0;
    for (std::size_t i = 0; i < scores.size(); ++i) {
        const auto& logprobs = scores[i].logprobs;
        const double total = std::accumulate(logprobs.begin(), logprobs.end(), 0.0);
        line(std::to_string(i), scores[i].top.size(), total, logprobs.size());
        sum += total;
        count += logprobs.size();
        ids += scores[i].top.size();
    }
    line("all", ids, sum, count);
}

Status run(const Arguments& arguments) {
    PERCHERON_ASSIGN(const auto folder, tools::resolve_model(arguments.model));
    PERCHERON_ASSIGN(const std::string text, read_text_file(arguments.ids, Bytes{1} << 30));
    const auto sequences = tools::parse_sequences(text);
    if (!sequences.ok()) return sequences.error().in(arguments.ids);

    tools::ScoreOptions options;
    options.folder = folder;
    options.arithmetic =
        arguments.arithmetic == "fp32" ? ops::Arithmetic::fp32 : ops::Arithmetic::standard;
    options.top = arguments.top;
    options.threads = arguments.threads;
    options.device = arguments.device;
    if (isatty(STDERR_FILENO) != 0) {
        options.progress = [](std::size_t done, std::size_t total) {
            std::fprintf(stderr, "\r%zu of %zu positions%s", done, total,
                         done == total ? "\n" : "");
        };
    }
    PERCHERON_ASSIGN(const auto scores, tools::score(*sequences, options));
    if (arguments.json) {
        std::printf("%s\n", tools::to_json(scores).c_str());
    } else {
        print_table(scores);
    }
    return {};
}

}  // namespace

void add_score(CLI::App& app, int& exit_code) {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* command = app.add_subcommand(
        "score", "Log-probabilities and top ids at every position of given token ids");
    command->footer(
        "FILE is a JSON list of lists of token ids; no tokenizer is needed.  Each list is "
        "computed\n"
        "by itself as a prompt.  With --json:\n"
        "  {\"sequences\": [{\"logprobs\": [null, ...], \"top\": [[[id, logprob], ...], ...]}]}\n"
        "For ids x_0 .. x_{T-1}, logprobs has T entries: null, then at t the natural logarithm of\n"
        "the probability of x_t after x_0 .. x_{t-1}.  top has T entries: at t the N most likely\n"
        "ids to follow x_0 .. x_t, most likely first, ties to the lower id; so top[t-1] is the\n"
        "distribution that logprobs[t] is read from, and the last entry predicts what follows the\n"
        "list.  Probabilities are the softmax of the model's logits over its whole vocabulary,\n"
        "without temperature or mask.  Without --json: a line a sequence.\n\n"
        "--arithmetic default is what serving computes; fp32 rounds nothing to bf16, in products "
        "or\n"
        "caches, and is for comparing with other implementations.\n\n"
        "Example: percheron score models/nano --ids ids.json --top 5 --json");
    command->add_option("MODEL", arguments->model,
                        "Model folder or synth:KEY=VALUE,... (default: the embedded model)");
    command->add_option("--ids", arguments->ids, "FILE with the token ids")->required();
    command->add_option("--top", arguments->top, "Most likely ids a position (default 0)");
    command->add_flag("--json", arguments->json, "Every figure as JSON");
    command->add_option("--arithmetic", arguments->arithmetic, "fp32 or default")
        ->check(CLI::IsMember({"fp32", "default"}));
    command->add_option("--device", arguments->device, "auto, cpu, cuda or cuda:N")
        ->capture_default_str();
    command->add_option("--threads", arguments->threads, "Threads that compute (default: all)");
    command->callback(
        [arguments, &exit_code] { exit_code = exit_code_of(run(*arguments), "score"); });
}

}  // namespace percheron::apps
