// percheron eval: accuracy of a model on fixed tasks, alone or paired against another model.
#include <chrono>
#include <cstdio>
#include <unordered_set>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "command_line.h"
#include "commands.h"
#include "core/visible_text.h"
#include "text/chat_prompt.h"
#include "tools/drawn_tasks.h"
#include "tools/eval_tasks.h"
#include "tools/figure_text.h"
#include "tools/load_engine.h"
#include "tools/model_path.h"
#include "tools/model_source.h"
#include "tools/quality_card.h"
#include "tools/task_record.h"

namespace percheron::apps {
namespace {

struct EvalArguments {
    tools::LoadOptions load;
    std::string model;
    std::string against;
    std::string items;
    std::size_t drawn = 0;  // items of each vision task
    std::uint64_t drawn_seed = 1;
    std::string record;          // where outcomes are kept; empty: nowhere
    std::string against_record;  // the same for `against`
    std::vector<std::string> tasks;
    tools::TaskPart part;
    std::optional<std::size_t> limit;
    tools::TaskRunOptions run;
    std::optional<double> max_difference;  // points
    bool card = false;
    bool json = false;
};

// One line that is rewritten on a terminal, a line every ten seconds elsewhere.
class Progress {
  public:
    explicit Progress(std::size_t total) : total_(total), terminal_(isatty(STDERR_FILENO) != 0) {}
    ~Progress() {
        if (terminal_) std::fputs("\r\033[K", stderr);
    }

    void operator()(std::size_t done) {
        const auto now = Clock::now();
        const double since_print = std::chrono::duration<double>(now - printed_).count();
        if (since_print < (terminal_ ? 0.2 : 10.0)) return;
        printed_ = now;
        const double seconds = std::chrono::duration<double>(now - start_).count();
        const double rate = static_cast<double>(done) / seconds;
        const double left = static_cast<double>(total_ - done) / rate;
        fmt::print(stderr, "{}{} of {} items, {:.1f} items/s, {:.0f} s left{}",
                   terminal_ ? "\r\033[K" : "", done, total_, rate, left, terminal_ ? "" : "\n");
    }

  private:
    using Clock = std::chrono::steady_clock;
    std::size_t total_;
    bool terminal_;
    Clock::time_point start_ = Clock::now();
    Clock::time_point printed_ = start_;
};

// Whether `model` answers each item.  Items that ask the same are asked once, and those
// `record_file` knows not at all.
Result<std::vector<bool>> ask_model(const EvalArguments& arguments, const std::string& model,
                                    const std::string& record_file,
                                    std::span<const tools::TaskItem> items) {
    tools::LoadOptions load = arguments.load;
    PERCHERON_ASSIGN(load.folder, tools::resolve_model(model));
    tools::TaskRecord record;
    if (!record_file.empty()) {
        PERCHERON_ASSIGN(std::string asked,
                         tools::asked_model(load.folder, arguments.run.max_tokens));
        if (load.fp4_activations) asked += ", inputs in FP4";
        PERCHERON_ASSIGN(record, tools::TaskRecord::open(record_file, asked));
    }
    std::vector<std::uint64_t> keys;
    std::vector<tools::TaskItem> open;
    std::vector<std::uint64_t> open_keys;
    std::unordered_set<std::uint64_t> chosen;
    for (const auto& item : items) {
        const std::uint64_t key = tools::item_key(item);
        keys.push_back(key);
        if (record.outcome(key) || !chosen.insert(key).second) continue;
        open.push_back(item);
        open_keys.push_back(key);
    }
    if (!open.empty()) {
        PERCHERON_ASSIGN(const auto text, tools::text_folder(load.folder));
        PERCHERON_ASSIGN(const ChatFormat format, ChatFormat::load(text));
        load.max_running = arguments.run.streams;
        PERCHERON_ASSIGN(const std::unique_ptr<Engine> engine,
                         tools::load_engine(load, format.tokenizer()));
        Progress progress(open.size());
        std::size_t done = 0;
        PERCHERON_TRY(tools::run_tasks(*engine, format, open, arguments.run,
                                       [&](std::size_t index, bool right) {
                                           progress(++done);
                                           return record.add(open_keys[index], right);
                                       }));
    }
    std::vector<bool> right;
    for (const std::uint64_t key : keys)
        right.push_back(*record.outcome(key));
    return right;
}

// A row that sums all items, under the tasks' own.
template <class Row, class Function>
std::vector<Row> with_total(std::vector<tools::TaskItem> items, const Function& rows_of) {
    std::vector<Row> rows = rows_of(items);
    for (auto& item : items)
        item.task = "all";
    const std::vector<Row> total = rows_of(items);
    if (rows.size() > 1) rows.insert(rows.end(), total.begin(), total.end());
    return rows;
}

Result<int> run(const EvalArguments& arguments) {
    if (arguments.card && arguments.against.empty()) {
        return Error(ErrorCode::invalid_argument,
                     "--card writes how MODEL differs from its source; name that with --against");
    }
    std::vector<tools::TaskItem> items;
    if (!arguments.items.empty()) {
        PERCHERON_ASSIGN(items, tools::read_task_items(arguments.items));
    }
    for (auto& item : tools::draw_task_items(arguments.drawn, arguments.drawn_seed)) {
        items.push_back(std::move(item));
    }
    if (items.empty()) {
        return Error(ErrorCode::invalid_argument,
                     "there is nothing to ask: give --items FILE, --drawn N or both");
    }
    PERCHERON_ASSIGN(items,
                     tools::choose_task_items(std::move(items), arguments.tasks, arguments.limit));
    items = tools::part_of_items(std::move(items), arguments.part);
    if (items.empty()) return Error(ErrorCode::invalid_argument, "this part holds no item");
    std::vector<bool> base;
    if (!arguments.against.empty()) {
        PERCHERON_ASSIGN(base,
                         ask_model(arguments, arguments.against, arguments.against_record, items));
    }
    PERCHERON_ASSIGN(const std::vector<bool> right,
                     ask_model(arguments, arguments.model, arguments.record, items));

    nlohmann::ordered_json report = nlohmann::ordered_json::array();
    int exit_code = 0;
    if (arguments.against.empty()) {
        const auto rows = with_total<tools::TaskScore>(
            items, [&](const auto& chosen) { return tools::score_tasks(chosen, right); });
        if (!arguments.json) fmt::print("{:<16}{:>7}{:>10}\n", "task", "items", "accuracy");
        for (const auto& row : rows) {
            report.push_back(
                {{"task", row.task}, {"items", row.items}, {"accuracy", row.accuracy()}});
            if (arguments.json) continue;
            fmt::print("{:<16}{:>7}{:>9.2f}%\n", visible_text(row.task), row.items,
                       100 * row.accuracy());
        }
    } else {
        const auto rows = with_total<tools::TaskDifference>(
            items, [&](const auto& chosen) { return tools::compare_tasks(chosen, base, right); });
        if (!arguments.json) {
            fmt::print("{:<16}{:>7}{:>10}{:>10}   {}\n", "task", "items", "against", "model",
                       "difference (95 % band), points");
        }
        if (arguments.card) {
            std::string source = arguments.items;
            if (arguments.drawn > 0) {
                source += (source.empty() ? "" : " and ") + std::to_string(arguments.drawn) +
                          " drawn items a task";
            }
            PERCHERON_ASSIGN(const auto folder, tools::resolve_model(arguments.model));
            PERCHERON_TRY(tools::add_tasks_to_card(
                folder, {command_line(), arguments.against, source, rows}));
        }
        for (const auto& row : rows) {
            const bool wide = arguments.max_difference &&
                              100 * std::abs(row.difference) > *arguments.max_difference;
            if (wide) exit_code = 1;
            report.push_back({{"task", row.task},
                              {"items", row.items},
                              {"against", row.base},
                              {"model", row.model},
                              {"difference", row.difference},
                              {"band", row.band ? nlohmann::ordered_json(*row.band)
                                                : nlohmann::ordered_json()}});
            if (arguments.json) continue;
            const auto band = row.band ? std::optional(100 * *row.band) : std::nullopt;
            fmt::print("{:<16}{:>7}{:>9.2f}%{:>9.2f}%   {}{}\n", visible_text(row.task), row.items,
                       100 * row.base, 100 * row.model,
                       tools::banded_text(100 * row.difference, band, 2, true),
                       wide ? "   too wide" : "");
        }
    }
    if (arguments.json) fmt::print("{}\n", report.dump(2, ' ', true));
    return exit_code;
}

}  // namespace

void add_eval(CLI::App& app, int& exit_code) {
    auto* command =
        app.add_subcommand("eval", "Accuracy on fixed tasks, alone or against another model");
    auto arguments = std::make_shared<EvalArguments>();
    command->add_option("model", arguments->model,
                        "Model folder or synth:KEY=VALUE,... (default: the embedded nano)");
    command->add_option("--items", arguments->items, "JSON lines of items, plain or zstd");
    command
        ->add_option("--drawn", arguments->drawn,
                     "Draw this many items of each vision task (colour, count, position, shape)")
        ->check(CLI::Range(0, 1 << 20));
    command->add_option("--drawn-seed", arguments->drawn_seed, "Seed of the drawn items")
        ->capture_default_str();
    command->add_option("--against", arguments->against,
                        "Second model folder: prints the paired difference MODEL - AGAINST");
    command->add_flag("--fp4-activations", arguments->load.fp4_activations,
                      "Round inputs of NVFP4 weights to FP4 (W4A4)");
    command->add_option("--task", arguments->tasks, "Only this task (repeatable)");
    command->add_option("--limit", arguments->limit, "At most this many items a task");
    command
        ->add_option_function<std::string>(
            "--part",
            [arguments](const std::string& text) {
                const auto part = tools::parse_task_part(text);
                if (!part.ok()) throw CLI::ValidationError("--part", part.error().message());
                arguments->part = *part;
            },
            "Only every N-th item from the I-th on")
        ->type_name("I/N");
    command->add_option("--record", arguments->record,
                        "Keep each outcome in this file and ask nothing it already knows");
    command->add_option("--against-record", arguments->against_record,
                        "The same for the model of --against");
    command->add_option("--streams", arguments->run.streams, "Requests in flight")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    command->add_option("--max-tokens", arguments->run.max_tokens, "Tokens of a reply at most")
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
    command->add_option("--max-difference", arguments->max_difference,
                        "With --against: exit 1 when a task differs by more points than this");
    command->add_option("--threads", arguments->load.threads,
                        "Compute threads (default: one a core)");
    command->add_flag("--card", arguments->card,
                      "With --against: put the figures into MODEL's quality.json and QUALITY.md");
    command->add_flag("--json", arguments->json, "Print JSON");
    command->footer(
        "Example: percheron eval --items bench/nano_tasks/items.jsonl.zst --limit 50\n"
        "         percheron eval --drawn 200 --task \"vision count\"\n"
        "Greedy decoding; a reply counts when its text after the reasoning is the wanted one.\n"
        "A long run that was stopped goes on with the same --record; parts run on several "
        "machines\n"
        "(--part 1/2, --part 2/2) are joined by putting their records in one file.");
    command->callback([arguments, &exit_code] {
        const auto result = run(*arguments);
        if (!result.ok()) {
            fmt::print(stderr, "percheron eval: {}\n", result.error().message());
            exit_code = 1;
            return;
        }
        exit_code = *result;
    });
}

}  // namespace percheron::apps
