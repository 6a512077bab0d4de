// percheron draft measure: how often drafts hold, on given texts, and what they gain.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "commands.h"
#include "core/files.h"
#include "core/visible_text.h"
#include "load_flags.h"
#include "number_checks.h"
#include "text/tokenizer.h"
#include "tools/bench_streams.h"
#include "tools/draft_measure.h"
#include "tools/model_path.h"
#include "tools/model_source.h"

namespace percheron::apps {
namespace {

using tools::MeasuredRun;
using tools::Rounds;
using tools::RoundsOf;

struct Arguments {
    LoadFlags flags;
    std::string prompts;
    std::vector<std::string> settings;
    tools::MeasureOptions measure;
    std::uint32_t tokens = 512;  // of a text for agreement; 0: none
    bool json = false;
};

using Agreements = std::map<std::string, tools::Agreement>;

void print_agreement(const Agreements& agreements, float temperature) {
    if (agreements.empty()) return;
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
    for (const auto& [kind, agreement] : agreements) {
        line(visible_text(kind), agreement);
        all.add(agreement);
    }
    line("all", all);
}

std::string name_of(const RoundsOf& what) {
    std::string name = what.kind;
    if (!what.language.empty()) name += " " + what.language;
    if (what.depth > 0) name += " @" + std::to_string(what.depth);
    return visible_text(name);
}

std::string name_of(const tools::DraftWish& wish) {
    return wish.proposer + (wish.depth ? ":" + std::to_string(*wish.depth) : "");
}

std::vector<const Rounds*> runs_of(const std::vector<MeasuredRun>& runs, std::size_t setting,
                                   const RoundsOf& what) {
    std::vector<const Rounds*> result;
    for (const MeasuredRun& run : runs) {
        if (run.setting == setting) result.push_back(&run.rounds.at(what));
    }
    return result;
}

// Tokens a second over those of the first setting in the same run: the median, and half of what
// lies between the quarters.
std::string ratio_of(const std::vector<const Rounds*>& runs,
                     const std::vector<const Rounds*>& first) {
    std::vector<double> ratios;
    for (std::size_t run = 0; run < runs.size(); ++run) {
        if (first[run]->rate() > 0) ratios.push_back(runs[run]->rate() / first[run]->rate());
    }
    if (ratios.empty()) return "-";
    std::sort(ratios.begin(), ratios.end());
    const double spread =
        (ratios[ratios.size() * 3 / 4 - (ratios.size() * 3 / 4 == ratios.size() ? 1 : 0)] -
         ratios[ratios.size() / 4]) /
        2;
    char text[40];
    std::snprintf(text, sizeof text, "%.3f+-%.3f", tools::median(ratios), spread);
    return text;
}

// Mean tokens a round less those of the first setting, reply by reply.
std::string gain_of(const Rounds& rounds, const Rounds& first) {
    if (rounds.tokens_a_round.size() != first.tokens_a_round.size() || rounds.rounds == 0 ||
        first.rounds == 0) {
        return "-";
    }
    std::vector<double> differences;
    double sum = 0;
    for (std::size_t i = 0; i < rounds.tokens_a_round.size(); ++i) {
        differences.push_back(rounds.tokens_a_round[i] - first.tokens_a_round[i]);
        sum += differences.back();
    }
    char text[40];
    std::snprintf(text, sizeof text, "%+.3f+-%.3f", sum / double(differences.size()),
                  tools::noise_of_halves(differences));
    return text;
}

void print_rounds(const Arguments& arguments, const std::vector<MeasuredRun>& runs) {
    const auto& settings = arguments.measure.settings;
    std::printf(
        "rounds of generated replies, %u at a time, temperature %g; tokens a round with the one "
        "behind the drafts\n",
        arguments.measure.streams, static_cast<double>(arguments.measure.temperature));
    std::printf("%-22s %-8s %9s %9s %13s %7s %8s %8s %7s %6s %14s  %s\n", "kind", "draft",
                "generated", "tok/s", "over first", "rounds", "drafted", "accepted", "tokens", "+-",
                "over first", "drafts by; accepted by position, of rounds");
    for (const auto& [what, ignored] : runs.front().rounds) {
        const auto first = runs_of(runs, 0, what);
        for (std::size_t setting = 0; setting < settings.size(); ++setting) {
            const auto these = runs_of(runs, setting, what);
            std::vector<double> rates;
            for (const Rounds* rounds : these)
                rates.push_back(rounds->rate());
            const Rounds& rounds = *these.back();
            std::printf("%-22s %-8s %9llu %9.1f %13s %7llu %8llu %8llu %7.3f %6.3f %14s ",
                        name_of(what).c_str(), name_of(settings[setting]).c_str(),
                        static_cast<unsigned long long>(rounds.generated), tools::median(rates),
                        ratio_of(these, first).c_str(),
                        static_cast<unsigned long long>(rounds.rounds),
                        static_cast<unsigned long long>(rounds.drafted),
                        static_cast<unsigned long long>(rounds.accepted), rounds.mean_tokens(),
                        rounds.noise(), gain_of(rounds, *first.back()).c_str());
            for (const auto& [proposer, drafted] : rounds.drafted_by) {
                if (drafted > 0)
                    std::printf(" %s %llu", proposer.c_str(),
                                static_cast<unsigned long long>(drafted));
            }
            std::printf(";");
            for (const std::uint64_t accepted : rounds.accepted_per_position) {
                std::printf(" %.3f",
                            static_cast<double>(accepted) /
                                static_cast<double>(std::max<std::uint64_t>(rounds.rounds, 1)));
            }
            std::printf("\n");
        }
    }
}

void print_json(const Arguments& arguments, const Agreements& agreements,
                const std::vector<MeasuredRun>& runs) {
    nlohmann::ordered_json json = {{"temperature", arguments.measure.temperature},
                                   {"streams", arguments.measure.streams},
                                   {"agreement", nlohmann::ordered_json::object()},
                                   {"runs", nlohmann::ordered_json::array()}};
    for (const auto& [kind, agreement] : agreements) {
        const auto n = static_cast<double>(std::max<std::uint64_t>(agreement.positions, 1));
        json["agreement"][kind] = {{"positions", agreement.positions},
                                   {"greedy", agreement.greedy / n},
                                   {"coupled", agreement.coupled / n},
                                   {"classical", agreement.classical / n},
                                   {"bound", agreement.bound / n}};
    }
    for (const MeasuredRun& run : runs) {
        for (const auto& [what, rounds] : run.rounds) {
            json["runs"].push_back({{"run", run.run},
                                    {"setting", name_of(arguments.measure.settings[run.setting])},
                                    {"kind", what.kind},
                                    {"language", what.language},
                                    {"depth", what.depth},
                                    {"replies", rounds.replies},
                                    {"generated", rounds.generated},
                                    {"tokens_per_second", rounds.rate()},
                                    {"seconds", rounds.seconds},
                                    {"cpu_seconds", rounds.cpu_seconds},
                                    {"timed_tokens", rounds.timed_tokens},
                                    {"rounds", rounds.rounds},
                                    {"drafted", rounds.drafted},
                                    {"accepted", rounds.accepted},
                                    {"tokens_a_round", rounds.mean_tokens()},
                                    {"noise", rounds.noise()},
                                    {"accepted_per_position", rounds.accepted_per_position},
                                    {"drafted_by", rounds.drafted_by}});
        }
    }
    std::printf("%s\n", json.dump(1).c_str());
}

Status measure_agreement(const Arguments& arguments, const std::vector<tools::MeasuredText>& texts,
                         Agreements& agreements) {
    tools::AgreementOptions options;
    options.load = arguments.measure.load;
    options.temperature = arguments.measure.temperature;
    options.top_p = arguments.measure.top_p;
    options.tokens = arguments.tokens;
    PERCHERON_ASSIGN(const auto runner, tools::AgreementRunner::load(options));
    for (std::size_t i = 0; runner != nullptr && i < texts.size(); ++i) {
        PERCHERON_TRY(runner->run(texts[i].ids, agreements[texts[i].kind]));
    }
    return {};
}

Status run(Arguments arguments) {
    PERCHERON_ASSIGN(const auto folder, tools::resolve_model(arguments.flags.model));
    PERCHERON_ASSIGN(const auto text, tools::text_folder(folder));
    PERCHERON_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(text / "tokenizer.json"));
    PERCHERON_ASSIGN(const std::string lines, read_text_file(arguments.prompts, Bytes{1} << 30));
    const auto texts = tools::parse_measured_texts(lines, tokenizer);
    if (!texts.ok()) return texts.error().in(arguments.prompts);
    tools::MeasureOptions& measure = arguments.measure;
    measure.load = arguments.flags.load;
    measure.load.folder = folder;
    for (const std::string& setting : arguments.settings) {
        PERCHERON_ASSIGN(tools::DraftWish wish, tools::parse_setting(setting));
        if (wish.proposer == "auto" || wish.proposer == "dflash2") {
            wish.model = measure.load.draft.model;
        }
        measure.settings.push_back(std::move(wish));
    }
    if (measure.settings.empty()) measure.settings = {measure.load.draft};
    const bool terminal = isatty(STDERR_FILENO) != 0;
    Agreements agreements;
    if (arguments.tokens > 0) {
        PERCHERON_TRY(measure_agreement(arguments, *texts, agreements));
    }
    PERCHERON_ASSIGN(
        const std::vector<MeasuredRun> runs,
        tools::measure_rounds(*texts, measure, tokenizer, [terminal](std::string_view done) {
            if (!terminal) return;
            std::fprintf(stderr, "\r%.*s   ", static_cast<int>(done.size()), done.data());
        }));
    if (terminal) std::fprintf(stderr, "\n");
    if (arguments.json) {
        print_json(arguments, agreements, runs);
        return {};
    }
    print_agreement(agreements, measure.temperature);
    print_rounds(arguments, runs);
    return {};
}

void add_options(CLI::App& command, Arguments& arguments) {
    tools::MeasureOptions& measure = arguments.measure;
    add_load_flags(command, arguments.flags);
    command
        .add_option("--prompts", arguments.prompts,
                    "File with a line {\"kind\": ..., \"text\": ...} or {\"kind\": ..., \"ids\": "
                    "[...]} a text, or {\"kind\": ..., \"prompt\": ...}; \"language\" too")
        ->required();
    command
        .add_option("--settings", arguments.settings,
                    "Who drafts and how deep, to be compared: off, auto, copy:4, mtp:2, ... "
                    "(default: as --draft and --draft-depth say)")
        ->delimiter(',');
    command.add_option("--temperature", measure.temperature, "Of draws; 0 is greedy")
        ->capture_default_str()
        ->check(CLI::NonNegativeNumber);
    command.add_option("--top-p", measure.top_p, "Of draws")->capture_default_str();
    command.add_option("--tokens", arguments.tokens, "Of a text at most; 0 leaves agreement out")
        ->capture_default_str()
        ->check(CLI::Range(0, 65536));
    command
        .add_option("--prompt-tokens", measure.prompts,
                    "Of a text before the reply; several are counted apart")
        ->delimiter(',')
        ->capture_default_str()
        ->check(positive_number());
    command.add_option("--reply-tokens", measure.replies, "Of a reply")
        ->capture_default_str()
        ->check(positive_number());
    command.add_option("--streams", measure.streams, "Replies at a time")
        ->capture_default_str()
        ->check(positive_number());
    command.add_option("--runs", measure.runs, "Of every setting, in turn; medians count")
        ->capture_default_str()
        ->check(positive_number());
    command.add_flag("--interleaved", measure.interleaved,
                     "Load all settings at once and let them reply in turn, wave by wave, so that "
                     "a slow second hits all alike");
    command.add_flag("--json", arguments.json, "Print JSON");
}

}  // namespace

void add_draft(CLI::App& app, int& exit_code) {
    CLI::App* draft = app.add_subcommand("draft", "Work on drafters: measure.");
    draft->require_subcommand(1);
    const auto arguments = std::make_shared<Arguments>();
    CLI::App* command = draft->add_subcommand(
        "measure",
        "Measure how often drafts hold and what they gain, by kind of text, language, depth of "
        "context and position: the MTP layer's agreement along the texts, and rounds of replies "
        "that go on from their beginnings.\n"
        "Example: percheron draft measure --prompts texts.jsonl --settings off,mtp:2,auto");
    add_options(*command, *arguments);
    command->callback(
        [arguments, &exit_code] { exit_code = exit_code_of(run(*arguments), "draft"); });
}

}  // namespace percheron::apps
