// percheron bench: measurements that print their figure beside the limit it must reach.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "commands.h"
#include "number_checks.h"
#include "tools/bench_load.h"
#include "tools/spawned_server.h"

namespace percheron::apps {
namespace {

using Json = nlohmann::ordered_json;
using tools::LoadReport;
using tools::LoadTest;
using tools::SpawnedServer;

struct LoadBench {
    LoadTest test;
    std::string model;  // empty: the embedded one
    bool spawn = false;
    std::uint32_t tokens = 2000;  // a stream
    std::uint32_t tokens_a_step = 1;
    bool json = false;
    double least_events = 0;
    double least_tokens = 0;
    double least_of_mean = 0;
};

// A replayed step costs nothing, so that whoever is admitted first would have the whole machine to
// itself and be done before the last request is read: with prompts that take this long, all are
// read before the first token comes, and the streams run together.
constexpr std::chrono::milliseconds prefill{1000};

// A replay in which every reply is the same digits, each one token, `tokens_a_step` a step.
class DigitReplay {
  public:
    DigitReplay(std::uint32_t tokens, std::uint32_t tokens_a_step) {
        std::mt19937 random(1);
        Json steps = Json::array({"</think>"});
        for (std::uint32_t made = 0; made < tokens;) {
            std::string step;
            for (std::uint32_t i = 0; i < tokens_a_step && made < tokens; ++i, ++made) {
                step += static_cast<char>('0' + random() % 10);
            }
            content_ += step;
            steps.push_back(step);
        }
        char name[] = "/tmp/percheron-replay-XXXXXX";
        const int file = ::mkstemp(name);
        path_ = name;
        if (file >= 0) ::close(file);
        std::ofstream(path_)
            << Json{{"match", ""}, {"prefill_ms", prefill.count()}, {"steps", steps}}.dump()
            << "\n";
    }
    ~DigitReplay() { std::filesystem::remove(path_); }
    DigitReplay(const DigitReplay&) = delete;
    DigitReplay& operator=(const DigitReplay&) = delete;

    const std::string& path() const { return path_; }
    const std::string& content() const { return content_; }

  private:
    std::string path_;
    std::string content_;
};

void print_row(const char* name, double figure, double limit, const char* unit) {
    std::printf("  %-22s %12.1f %-10s", name, figure, unit);
    if (limit > 0) std::printf(" limit >= %.1f  %s", limit, figure >= limit ? "ok" : "BELOW");
    std::printf("\n");
}

void print_report(const LoadBench& bench, const LoadReport& report) {
    std::printf("%u streams, %u tokens each, %u a step: %.2f s\n", report.streams, bench.tokens,
                bench.tokens_a_step, report.seconds);
    print_row("events", report.events_per_second, bench.least_events, "events/s");
    print_row("tokens", report.tokens_per_second, bench.least_tokens, "tok/s");
    print_row("slowest stream", report.slowest_of_mean * 100, bench.least_of_mean * 100,
              "% of mean");
    std::printf("  %-22s %12.1f ms median, %.1f ms 90 %%, %.1f ms 99 %%\n", "first event",
                report.time_to_first_event_ms[0], report.time_to_first_event_ms[1],
                report.time_to_first_event_ms[2]);
    if (report.server_cpu_us_per_event) {
        print_row("server CPU", *report.server_cpu_us_per_event, 0, "us/event");
    }
    if (report.failed > 0) {
        std::printf("  %u streams failed; the first: %s\n", report.failed,
                    report.first_failure.c_str());
    }
}

Json json_report(const LoadBench& bench, const LoadReport& report) {
    Json json{{"streams", report.streams},
              {"tokens_a_stream", bench.tokens},
              {"tokens_a_step", bench.tokens_a_step},
              {"failed", report.failed},
              {"events", report.events},
              {"tokens", report.tokens},
              {"seconds", report.seconds},
              {"events_per_second", report.events_per_second},
              {"tokens_per_second", report.tokens_per_second},
              {"slowest_of_mean", report.slowest_of_mean},
              {"first_event_ms",
               {{"median", report.time_to_first_event_ms[0]},
                {"p90", report.time_to_first_event_ms[1]},
                {"p99", report.time_to_first_event_ms[2]}}}};
    if (report.server_cpu_us_per_event) {
        json["server_cpu_us_per_event"] = *report.server_cpu_us_per_event;
    }
    return json;
}

bool reached(const LoadBench& bench, const LoadReport& report) {
    return report.failed == 0 && report.events_per_second >= bench.least_events &&
           report.tokens_per_second >= bench.least_tokens &&
           report.slowest_of_mean >= bench.least_of_mean;
}

Result<bool> run_load(LoadBench bench) {
    std::unique_ptr<DigitReplay> replay;
    std::unique_ptr<SpawnedServer> server;
    if (bench.spawn) {
        replay = std::make_unique<DigitReplay>(bench.tokens, bench.tokens_a_step);
        const std::string context = std::to_string(bench.tokens + 1024);
        std::vector<std::string> arguments{"--replay",      replay->path(),
                                           "--context",     context,
                                           "--max-running", std::to_string(bench.test.streams)};
        if (!bench.model.empty()) arguments.push_back(bench.model);
        PERCHERON_ASSIGN(server, SpawnedServer::start(arguments));
        bench.test.port = server->port();
        bench.test.server_process = server->process();
        bench.test.expected_content = replay->content();
        bench.test.prefill = prefill;
    }
    bench.test.body = Json{{"model", "any"},
                           {"messages", {{{"role", "user"}, {"content", "Say some digits."}}}},
                           {"max_tokens", bench.tokens + 1},
                           {"stream", true},
                           {"stream_options", {{"include_usage", true}}}}
                          .dump();
    PERCHERON_ASSIGN(const LoadReport report, tools::run_load_test(bench.test));
    if (bench.json) {
        std::printf("%s\n", json_report(bench, report).dump(2).c_str());
    } else {
        print_report(bench, report);
    }
    return reached(bench, report);
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
    const auto bench = std::make_shared<LoadBench>();
    CLI::App* command =
        app.add_subcommand("bench", "Measure the machine, a model's steps, a server");
    command->require_subcommand(1);
    add_bench_machine(*command, exit_code);
    add_bench_step(*command, exit_code);
    add_bench_resend(*command, exit_code);
    add_bench_restore(*command, exit_code);
    CLI::App* load = command->add_subcommand(
        "load",
        "Open many streams at once, check their text, print rates.\n"
        "Example: percheron bench load --spawn --streams 256 --tokens-per-step 4");
    load->add_option("--host", bench->test.host, "Name or address of a running server")
        ->capture_default_str();
    load->add_option("--port", bench->test.port, "Its port")->capture_default_str();
    load->add_option("--pid", bench->test.server_process, "Its process, to read its CPU time");
    load->add_option("--api-key", bench->test.api_key, "Key to send");
    load->add_flag("--spawn", bench->spawn, "Start a server over a replay of digits instead");
    load->add_option("--model", bench->model, "Model folder for --spawn");
    load->add_option("--streams", bench->test.streams, "Streams open at once")
        ->check(CLI::Range(1, 20000))
        ->capture_default_str();
    load->add_option("--tokens", bench->tokens, "Tokens a stream")
        ->check(positive_number())
        ->capture_default_str();
    load->add_option("--tokens-per-step", bench->tokens_a_step, "Tokens a step, with --spawn")
        ->check(positive_number())
        ->capture_default_str();
    load->add_option("--at-least-events", bench->least_events, "Fail below this many events/s");
    load->add_option("--at-least-tokens", bench->least_tokens, "Fail below this many tok/s");
    load->add_option("--at-least-of-mean", bench->least_of_mean,
                     "Fail when the slowest stream is below this share of the mean, 0 to 1");
    load->add_flag("--json", bench->json, "Print JSON");
    load->callback([bench, &exit_code] {
        const Result<bool> result = run_load(*bench);
        if (!result.ok()) say_fault("bench load", result.error().message());
        exit_code = result.ok() && *result ? 0 : 1;
    });
}

}  // namespace percheron::apps
