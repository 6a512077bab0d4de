// percheron draft measure: how often drafts hold, on given texts.
#include <cstdio>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "commands.h"
#include "core/files.h"
#include "load_flags.h"
#include "number_checks.h"
#include "text/tokenizer.h"
#include "tools/draft_measure.h"
#include "tools/model_path.h"
#include "tools/model_source.h"

namespace percheron::apps {
namespace {

struct Arguments {
    LoadFlags flags;
    std::string prompts;
    tools::MeasureOptions measure;
};

void print_agreement(const tools::DraftMeasure& measure, float temperature) {
    if (measure.agreement.empty()) return;
    std::printf("agreement of the MTP layer's first draft, temperature %g\n",
                static_cast<double>(temperature));
    std::printf("%-16s %10s %8s %8s %10s %8s\n", "kind", "positions", "greedy", "coupled",
                "classical", "bound");
    tools::Agreement all;
    const auto line = [](const std::string& kind, const tools::Agreement& agreement) {
        const auto n = static_cast<double>(std::max<std::uint64_t>(agreement.positions, 1));
        std::printf("%-16s %10llu %8.3f %8.3f %10.3f %8.3f\n", kind.c_str(),
                    static_cast<unsigned long long>(agreement.positions), agreement.greedy / n,
                    agreement.coupled / n, agreement.classical / n, agreement.bound / n);
    };
    for (const auto& [kind, agreement] : measure.agreement) {
        line(kind, agreement);
        all.add(agreement);
    }
    line("all", all);
}

void print_rounds(const tools::DraftMeasure& measure) {
    std::printf("rounds of generated replies; tokens a round with the one behind the drafts\n");
    std::printf("%-16s %9s %9s %8s %9s %9s %8s %7s  %s\n", "kind", "generated", "tok/s", "rounds",
                "drafted", "accepted", "tokens", "+-", "accepted by position, of rounds");
    for (const auto& [kind, rounds] : measure.rounds) {
        const double rate =
            rounds.seconds > 0 ? static_cast<double>(rounds.generated) / rounds.seconds : 0;
        std::printf("%-16s %9llu %9.1f %8llu %9llu %9llu %8.3f %7.3f ", kind.c_str(),
                    static_cast<unsigned long long>(rounds.generated), rate,
                    static_cast<unsigned long long>(rounds.rounds),
                    static_cast<unsigned long long>(rounds.drafted),
                    static_cast<unsigned long long>(rounds.accepted), rounds.mean_tokens(),
                    rounds.noise());
        for (const std::uint64_t accepted : rounds.accepted_per_position) {
            std::printf(" %.3f",
                        static_cast<double>(accepted) /
                            static_cast<double>(std::max<std::uint64_t>(rounds.rounds, 1)));
        }
        std::printf("\n");
    }
}

Status run(Arguments arguments) {
    PERCHERON_ASSIGN(const auto folder, tools::resolve_model(arguments.flags.model));
    PERCHERON_ASSIGN(const auto text, tools::text_folder(folder));
    PERCHERON_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(text / "tokenizer.json"));
    PERCHERON_ASSIGN(const std::string lines, read_text_file(arguments.prompts, Bytes{1} << 30));
    const auto texts = tools::parse_measured_texts(lines, tokenizer);
    if (!texts.ok()) return texts.error().in(arguments.prompts);
    arguments.measure.load = arguments.flags.load;
    arguments.measure.load.folder = folder;
    const bool terminal = isatty(STDERR_FILENO) != 0;
    PERCHERON_ASSIGN(const tools::DraftMeasure measure,
                     tools::measure_drafts(
                         *texts, arguments.measure, tokenizer, [terminal](std::string_view done) {
                             if (!terminal) return;
                             std::fprintf(stderr, "\r%.*s   ", static_cast<int>(done.size()),
                                          done.data());
                         }));
    if (terminal) std::fprintf(stderr, "\n");
    print_agreement(measure, arguments.measure.temperature);
    print_rounds(measure);
    return {};
}

}  // namespace

void add_draft(CLI::App& app, int& exit_code) {
    CLI::App* draft = app.add_subcommand("draft", "Work on drafters: measure.");
    draft->require_subcommand(1);
    const auto arguments = std::make_shared<Arguments>();
    CLI::App* command = draft->add_subcommand(
        "measure",
        "Measure how often drafts hold, by kind of text and position: the MTP layer's agreement "
        "along the texts, and rounds of replies that go on from their beginnings.\n"
        "Example: percheron draft measure --prompts texts.jsonl --draft mtp --draft-depth 3");
    add_load_flags(*command, arguments->flags);
    command
        ->add_option("--prompts", arguments->prompts,
                     "File with a line {\"kind\": ..., \"text\": ...} or {\"kind\": ..., \"ids\": "
                     "[...]} a text, or {\"kind\": ..., \"prompt\": ...}")
        ->required();
    command->add_option("--temperature", arguments->measure.temperature, "Of draws; 0 is greedy")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    command->add_option("--top-p", arguments->measure.top_p, "Of draws")->capture_default_str();
    command
        ->add_option("--tokens", arguments->measure.tokens,
                     "Of a text at most; 0 leaves agreement out")
        ->capture_default_str()
        ->check(CLI::Range(0, 65536));
    command->add_option("--prompt-tokens", arguments->measure.prompt, "Of a text before the reply")
        ->capture_default_str()
        ->check(positive_number());
    command->add_option("--reply-tokens", arguments->measure.replies, "Of a reply")
        ->capture_default_str()
        ->check(positive_number());
    command->callback([arguments, &exit_code] {
        if (const Status status = run(*arguments); !status.ok()) {
            std::fprintf(stderr, "percheron draft: %s\n", status.error().message().c_str());
            exit_code = 1;
        }
    });
}

}  // namespace percheron::apps
