// percheron bench resend: time to the first token of a prompt, new and sent again.
#include <chrono>
#include <cstdio>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "load_flags.h"
#include "text/tokenizer.h"
#include "tools/bench_streams.h"
#include "tools/load_engine.h"
#include "tools/model_path.h"
#include "tools/model_source.h"

namespace percheron::apps {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
    LoadFlags flags;
    std::uint32_t prompt = 65536;
    std::uint32_t repeat = 5;
    double least = 200;  // cold over sent again
    bool json = false;
};

struct FirstToken {
    double seconds = 0;
    TokenId token{};
    std::uint32_t cached = 0;
};

// Waits for a reply of one token.
class OneToken final : public EngineEventSink {
  public:
    void on_events(EngineEvents& events) override {
        for (const EngineEvents::Tokens& run : events.runs) {
            first_.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
            first_.token = events.tokens[run.first];
        }
        for (EngineEvents::Finished& finished : events.finished) {
            first_.cached = finished.statistics.cached_tokens;
            // Whoever waits may be gone, and this with it, before set_value() returns.
            const auto end = end_;
            if (finished.error) {
                end->set_value(std::move(*finished.error));
            } else {
                end->set_value(first_);
            }
            return;
        }
    }
    Result<FirstToken> wait() { return end_->get_future().get(); }

  private:
    Clock::time_point start_ = Clock::now();
    FirstToken first_;
    std::shared_ptr<std::promise<Result<FirstToken>>> end_ =
        std::make_shared<std::promise<Result<FirstToken>>>();
};

Result<FirstToken> send(Engine& engine, const std::vector<TokenId>& prompt) {
    GenerationRequest request;
    request.prompt = prompt;
    request.sampling.temperature = 0;
    request.max_tokens = 1;
    OneToken sink;
    PERCHERON_ASSIGN([[maybe_unused]] const RequestId id, engine.submit(std::move(request), sink));
    return sink.wait();
}

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

    std::mt19937 random(1);
    std::vector<TokenId> prompt;
    while (prompt.size() < arguments.prompt) {
        const auto token = static_cast<TokenId>(random() % tokenizer.size());
        if (!tokenizer.is_added(token)) prompt.push_back(token);
    }
    PERCHERON_ASSIGN(const FirstToken cold, send(*engine, prompt));
    std::vector<double> again;
    for (std::uint32_t i = 0; i < arguments.repeat; ++i) {
        PERCHERON_ASSIGN(const FirstToken first, send(*engine, prompt));
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
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    command->add_option("--least", arguments->least, "How many times as fast it must be, or fail")
        ->capture_default_str();
    command->add_flag("--json", arguments->json, "One JSON object on stdout");
    command->callback([arguments, &exit_code] {
        if (const Status status = measure(*arguments); !status.ok()) {
            std::fprintf(stderr, "percheron bench resend: %s\n", status.error().message().c_str());
            exit_code = 1;
        }
    });
}

}  // namespace percheron::apps
