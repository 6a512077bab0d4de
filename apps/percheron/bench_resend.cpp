// percheron bench resend: time to the first token of a prompt, new and sent again.
#include <cstdio>
#include <memory>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "first_token.h"
#include "load_flags.h"
#include "number_checks.h"
#include "text/tokenizer.h"
#include "tools/bench_streams.h"
#include "tools/load_engine.h"
#include "tools/model_path.h"
#include "tools/model_source.h"

namespace percheron::apps {
namespace {

struct Arguments {
    LoadFlags flags;
    std::uint32_t prompt = 65536;
    std::uint32_t repeat = 5;
    double least = 200;  // cold over sent again
    bool json = false;
};

Status measure(const Arguments& arguments) {
    PERCHERON_ASSIGN(const std::filesystem::path folder,
                     tools::resolve_model(arguments.flags.model));
    PERCHERON_ASSIGN(const std::filesystem::path text, tools::text_folder(folder));
    PERCHERON_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(text / "tokenizer.json"));
    tools::LoadOptions options = arguments.flags.load;
    options.folder = folder;
    options.context = options.context.value_or(arguments.prompt + 1);
    options.max_running = 2;
    PERCHERON_ASSIGN(const auto engine, tools::load_engine(options, tokenizer));

    const std::vector<TokenId> prompt = ordinary_prompt(tokenizer, arguments.prompt);
    PERCHERON_ASSIGN(const FirstToken cold, first_token_of(*engine, prompt));
    std::vector<double> again;
    for (std::uint32_t i = 0; i < arguments.repeat; ++i) {
        PERCHERON_ASSIGN(const FirstToken first, first_token_of(*engine, prompt));
        if (first.token != cold.token) {
            return Error(ErrorCode::internal, "the prompt sent again gave another first token");
        }
        if (first.cached != (arguments.prompt - 1) / 64 * 64) {
            return Error(ErrorCode::internal, "only " + std::to_string(first.cached) +
                                                  " tokens of the prompt were found again");
        }
        again.push_back(first.seconds);
    }
    const double median = tools::median(again);
    const double ratio = cold.seconds / median;
    if (arguments.json) {
        std::printf("%s\n", nlohmann::ordered_json{{"model", engine->description().model_name},
                                                   {"prompt", arguments.prompt},
                                                   {"cold_seconds", cold.seconds},
                                                   {"again_seconds", median},
                                                   {"runs", again},
                                                   {"ratio", ratio}}
                                .dump(2)
                                .c_str());
    } else {
        std::printf(
            "%s, prompt %u: first token after %.3f s, sent again after %.2f ms "
            "(median of %u): %.0f times as fast, limit %.0f  %s\n",
            engine->description().model_name.c_str(), arguments.prompt, cold.seconds, median * 1e3,
            arguments.repeat, ratio, arguments.least, ratio >= arguments.least ? "ok" : "BELOW");
    }
    if (ratio < arguments.least) {
        return Error(ErrorCode::internal, "sent again it should be faster");
    }
    return {};
}

}  // namespace

void add_bench_resend(CLI::App& bench, int& exit_code) {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* command = bench.add_subcommand(
        "resend", "Time to the first token of a prompt, new and sent again, without a server");
    command->footer("Example: percheron bench resend --prompt 16384 --least 0");
    add_load_flags(*command, arguments->flags);
    command->add_option("--prompt", arguments->prompt, "Tokens of the prompt")
        ->check(CLI::Range(65u, 1u << 20))
        ->capture_default_str();
    command->add_option("--repeat", arguments->repeat, "Times it is sent again; the median counts")
        ->check(positive_number())
        ->capture_default_str();
    command->add_option("--least", arguments->least, "How many times as fast it must be, or fail")
        ->capture_default_str();
    command->add_flag("--json", arguments->json, "One JSON object on stdout");
    command->callback(
        [arguments, &exit_code] { exit_code = exit_code_of(measure(*arguments), "bench resend"); });
}

}  // namespace percheron::apps
