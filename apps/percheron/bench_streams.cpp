// percheron bench streams: decode rate by the number of streams, in process.
#include "tools/bench_streams.h"

#include <cstdio>
#include <map>
#include <memory>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "load_flags.h"
#include "number_checks.h"
#include "text/tokenizer.h"
#include "tools/load_engine.h"
#include "tools/model_path.h"
#include "tools/model_source.h"

namespace percheron::apps {
namespace {

struct Arguments {
    LoadFlags flags;
    std::vector<std::uint32_t> streams = {1, 8};
    std::uint32_t prompt = 64;
    std::uint32_t tokens = 128;
    std::uint32_t repeat = 5;
    bool json = false;
};

// The ids below the first control token are ordinary text.
std::uint32_t ordinary_ids(const Tokenizer& tokenizer) {
    std::uint32_t id = 0;
    while (id < tokenizer.size() && !tokenizer.is_added(TokenId(static_cast<int>(id)))) {
        ++id;
    }
    return id;
}

void print(const Arguments& arguments, const std::string& model,
           std::map<std::uint32_t, std::vector<tools::StreamsRun>>& runs) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    double first = 0;
    if (!arguments.json) {
        std::printf("%s, prompt %u, %u tokens a stream, greedy, threads %u, median of %u\n",
                    model.c_str(), arguments.prompt, arguments.tokens, arguments.flags.load.threads,
                    arguments.repeat);
        std::printf("%8s %14s %12s %10s %16s\n", "streams", "decode tok/s", "a stream", "ratio",
                    "prefill tok/s");
    }
    for (const std::uint32_t streams : arguments.streams) {
        std::vector<double> decode;
        std::vector<double> prefill;
        for (const tools::StreamsRun& run : runs[streams]) {
            decode.push_back(run.decode_tokens_per_second);
            prefill.push_back(run.prefill_tokens_per_second);
        }
        const double rate = tools::median(decode);
        first = first == 0 ? rate : first;
        if (!arguments.json) {
            std::printf("%8u %14.1f %12.1f %10.2f %16.1f\n", streams, rate, rate / streams,
                        rate / first, tools::median(prefill));
        }
        rows.push_back({{"streams", streams},
                        {"decode_tokens_per_second", rate},
                        {"ratio", rate / first},
                        {"prefill_tokens_per_second", tools::median(prefill)},
                        {"runs", decode}});
    }
    if (arguments.json) {
        std::printf("%s\n", nlohmann::ordered_json{{"model", model},
                                                   {"prompt", arguments.prompt},
                                                   {"tokens", arguments.tokens},
                                                   {"repeat", arguments.repeat},
                                                   {"rows", rows}}
                                .dump(2)
                                .c_str());
    }
}

Status measure(Arguments& arguments) {
    PERCHERON_ASSIGN(const std::filesystem::path folder,
                     tools::resolve_model(arguments.flags.model));
    PERCHERON_ASSIGN(const std::filesystem::path text, tools::text_folder(folder));
    PERCHERON_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(text / "tokenizer.json"));
    arguments.flags.load.folder = folder;
    tools::LoadOptions options = arguments.flags.load;
    options.prefix_cache = false;  // every run computes its prompts
    PERCHERON_ASSIGN(const auto engine, tools::load_engine(options, tokenizer));
    // Interleaved, so that a slow minute of the machine hits every row alike.
    std::map<std::uint32_t, std::vector<tools::StreamsRun>> runs;
    for (std::uint32_t repeat = 0; repeat < arguments.repeat; ++repeat) {
        for (const std::uint32_t streams : arguments.streams) {
            PERCHERON_ASSIGN(const tools::StreamsRun run,
                             tools::run_streams(*engine, streams, arguments.prompt,
                                                arguments.tokens, ordinary_ids(tokenizer), repeat));
            runs[streams].push_back(run);
        }
    }
    print(arguments, engine->description().model_name, runs);
    return {};
}

}  // namespace

void add_bench_streams(CLI::App& app, int& exit_code) {
    auto arguments = std::make_shared<Arguments>();
    const auto benches =
        app.get_subcommands([](const CLI::App* command) { return command->get_name() == "bench"; });
    CLI::App* bench = benches.empty() ? app.add_subcommand("bench", "Measure") : benches.front();
    bench->require_subcommand(1);
    CLI::App* command =
        bench->add_subcommand("streams", "Decode rate by the number of streams, without a server");
    command->footer("Example: percheron bench streams --streams 1,2,4,8 --repeat 5");
    // What the network gives, without luck.
    arguments->flags.load.draft.proposer = "off";
    add_load_flags(*command, arguments->flags);
    command->add_option("--streams", arguments->streams, "Numbers of streams; the first is ratio 1")
        ->delimiter(',')
        ->capture_default_str();
    command->add_option("--prompt", arguments->prompt, "Tokens of a prompt")->capture_default_str();
    command->add_option("--tokens", arguments->tokens, "Tokens of a reply, at least 2")
        ->capture_default_str();
    command->add_option("--repeat", arguments->repeat, "Runs of each row; the median counts")
        ->check(positive_number())
        ->capture_default_str();
    command->add_flag("--json", arguments->json, "One JSON object on stdout");
    command->callback([arguments, &exit_code] {
        exit_code = exit_code_of(measure(*arguments), "bench streams");
    });
}

}  // namespace percheron::apps
