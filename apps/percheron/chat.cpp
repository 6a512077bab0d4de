// percheron chat: talk with a model in the terminal.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "percheron/engine.h"

#include "commands.h"
#include "load_flags.h"
#include "text/chat_prompt.h"
#include "text/reply_stream.h"
#include "tools/load_engine.h"
#include "tools/model_path.h"
#include "tools/model_source.h"

namespace percheron::apps {
namespace {

struct Arguments {
    LoadFlags flags;
    std::string system;
    std::string reasoning_effort;
    std::optional<std::uint32_t> max_tokens;
    std::optional<float> temperature;
    std::optional<float> top_p;
};

constexpr const char* help_text =
    "/reset  forget the conversation\n"
    "/exit   leave (so does the end of input)\n"
    "/help   this\n"
    "Ctrl-C  stops a reply\n";

// Ctrl-C while a reply runs.  Outside of one the signal keeps its usual meaning.
volatile std::sig_atomic_t interrupted = 0;

class InterruptGuard {
  public:
    InterruptGuard() {
        interrupted = 0;
        struct sigaction action = {};
        action.sa_handler = [](int) { interrupted = 1; };
        sigemptyset(&action.sa_mask);
        sigaction(SIGINT, &action, &before_);
    }
    ~InterruptGuard() { sigaction(SIGINT, &before_, nullptr); }
    InterruptGuard(const InterruptGuard&) = delete;
    InterruptGuard& operator=(const InterruptGuard&) = delete;

  private:
    struct sigaction before_ = {};
};

// Carries one choice's events from the engine's thread to the terminal's.
class Mailbox final : public EngineEventSink {
  public:
    void on_events(EngineEvents& events) override {
        const std::lock_guard lock(mutex_);
        tokens_.insert(tokens_.end(), events.tokens.begin(), events.tokens.end());
        for (EngineEvents::Finished& finished : events.finished) {
            finished_ = std::move(finished);
        }
        changed_.notify_one();
    }

    // Waits for news, but not for long: Ctrl-C sets a flag and wakes nobody.  True when the choice
    // has finished and `tokens` holds its last ones.
    bool take(std::vector<TokenId>& tokens) {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, std::chrono::milliseconds(50),
                          [this] { return !tokens_.empty() || finished_.has_value(); });
        tokens.swap(tokens_);
        tokens_.clear();
        return finished_.has_value();
    }
    const EngineEvents::Finished& finished() const { return *finished_; }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<TokenId> tokens_;
    std::optional<EngineEvents::Finished> finished_;
};

// Prints a reply as it comes, thinking dimmed where the terminal can, and keeps both texts.
class ReplyPrinter {
  public:
    explicit ReplyPrinter(bool terminal) : terminal_(terminal) {}

    void print(const std::vector<ReplyEvent>& events) {
        for (const ReplyEvent& event : events) {
            const bool thinking = event.kind == ReplyEvent::Kind::reasoning;
            if (!thinking && event.kind != ReplyEvent::Kind::content) {
                continue;
            }
            if (thinking != dimmed_) {
                dimmed_ = thinking;
                write(!reasoning_.empty() && !thinking ? "\n\n" : "");
                escape(thinking ? "\033[2m" : "\033[0m");
            }
            write(event.text);
            (thinking ? reasoning_ : content_) += event.text;
        }
        std::fflush(stdout);
    }
    void end(const std::string& summary) {
        escape("\033[0m");
        write(reasoning_.empty() && content_.empty() ? "" : "\n");
        escape("\033[2m");
        write(summary);
        escape("\033[0m");
        write("\n");
        std::fflush(stdout);
    }
    const std::string& reasoning() const { return reasoning_; }
    const std::string& content() const { return content_; }

  private:
    void escape(const char* sequence) {
        if (terminal_) {
            write(sequence);
        }
    }
    static void write(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

    bool terminal_;
    bool dimmed_ = false;
    std::string reasoning_;
    std::string content_;
};

const char* words_of(FinishReason reason) {
    switch (reason) {
        case FinishReason::stop_token:
            return "";
        case FinishReason::max_tokens:
            return ", cut at --max-tokens";
        case FinishReason::context:
            return ", the context is full";
        case FinishReason::cancelled:
            return ", stopped";
        case FinishReason::deadline:
            return ", out of time";
        case FinishReason::loop:
            return ", stopped in a loop";
        case FinishReason::failed:
            return ", failed";
    }
    return "";
}

// "[128 tokens at 85.2 tok/s; prompt of 31 at 702.1 tok/s; no drafts]"
std::string summary_of(const EngineEvents::Finished& finished) {
    const ChoiceStatistics& statistics = finished.statistics;
    const auto rate = [](double count, double seconds) {
        return seconds > 0 ? count / seconds : 0.0;
    };
    // The first token falls out of the prompt's last step.
    const double decoded =
        statistics.generated_tokens > 0 ? statistics.generated_tokens - 1.0 : 0.0;
    std::string drafts = "no drafts";
    if (statistics.drafted_tokens > 0) {
        char text[64];
        std::snprintf(text, sizeof text, "%.0f %% of %u drafts accepted",
                      100.0 * statistics.accepted_tokens / statistics.drafted_tokens,
                      statistics.drafted_tokens);
        drafts = text;
    }
    char text[256];
    std::snprintf(
        text, sizeof text, "[%u tokens at %.1f tok/s; prompt of %u at %.1f tok/s; %s%s]",
        statistics.generated_tokens, rate(decoded, statistics.decode_seconds),
        statistics.prompt_tokens,
        rate(statistics.prompt_tokens - statistics.cached_tokens, statistics.prefill_seconds),
        drafts.c_str(), words_of(finished.reason));
    return text;
}

class Conversation {
  public:
    Conversation(const Arguments& arguments, const model::ModelConfig& config,
                 const ChatFormat& format, Engine& engine)
        : arguments_(arguments), config_(config), format_(format), engine_(engine) {
        reset();
    }

    void reset() {
        messages_ = nlohmann::ordered_json::array();
        if (!arguments_.system.empty()) {
            messages_.push_back({{"role", "system"}, {"content", arguments_.system}});
        }
    }

    // One turn: what the user said, then the reply, printed and remembered.
    // False: there is none, and why has been said.
    bool say(const std::string& text, bool terminal) {
        messages_.push_back({{"role", "user"}, {"content", text}});
        const Status status = reply(terminal);
        if (!status.ok()) {
            messages_.erase(messages_.size() - 1);
            say_fault("chat", status.error().message());
        }
        return status.ok();
    }

  private:
    Status reply(bool terminal) {
        ChatOptions options;
        options.reasoning_effort = arguments_.reasoning_effort;
        PERCHERON_ASSIGN(const ChatPrompt prompt, format_.render(messages_, nullptr, options));
        GenerationRequest request;
        request.prompt = prompt.ids;
        request.sampling.temperature = arguments_.temperature.value_or(config_.default_temperature);
        request.sampling.top_p = arguments_.top_p.value_or(config_.default_top_p);
        request.max_tokens = arguments_.max_tokens;

        const InterruptGuard guard;
        Mailbox mailbox;
        PERCHERON_ASSIGN(const RequestId id, engine_.submit(std::move(request), mailbox));
        const ToolSchemas no_tools;
        ReplyOptions reply_options;
        reply_options.starts_in_reasoning = prompt.starts_in_reasoning;
        reply_options.parse_tool_calls = false;
        reply_options.stop_tokens = engine_.description().stop_tokens;
        ReplyStream stream(format_.tokenizer(), no_tools, reply_options);
        ReplyPrinter printer(terminal);
        std::vector<TokenId> tokens;
        std::vector<ReplyEvent> events;
        for (bool finished = false; !finished;) {
            finished = mailbox.take(tokens);
            events.clear();
            stream.push(tokens, events);
            if (finished) {
                const bool whole = mailbox.finished().reason == FinishReason::stop_token;
                stream.finish(whole ? ReplyStream::End::stopped : ReplyStream::End::cut, events);
            }
            printer.print(events);
            if (interrupted != 0) {
                engine_.cancel(id, Engine::all_choices);
            }
        }
        if (mailbox.finished().error) {
            return *mailbox.finished().error;
        }
        printer.end(summary_of(mailbox.finished()));
        nlohmann::ordered_json message = {{"role", "assistant"}, {"content", printer.content()}};
        if (!printer.reasoning().empty()) {
            message["reasoning_content"] = printer.reasoning();
        }
        messages_.push_back(std::move(message));
        return {};
    }

    const Arguments& arguments_;
    const model::ModelConfig& config_;
    const ChatFormat& format_;
    Engine& engine_;
    nlohmann::ordered_json messages_;
};

// True: every message got its reply.
Result<bool> talk(const Arguments& arguments) {
    PERCHERON_ASSIGN(const std::filesystem::path folder,
                     tools::resolve_model(arguments.flags.model));
    PERCHERON_ASSIGN(const model::ModelConfig config, tools::read_model_config(folder));
    PERCHERON_ASSIGN(const std::filesystem::path text, tools::text_folder(folder));
    PERCHERON_ASSIGN(const ChatFormat format, ChatFormat::load(text));
    tools::LoadOptions options = arguments.flags.load;
    options.folder = folder;
    options.max_running = 1;  // one conversation, one reply at a time
    PERCHERON_ASSIGN(const auto engine, tools::load_engine(options, format.tokenizer()));

    const bool terminal = isatty(STDOUT_FILENO) != 0;
    const bool typed = isatty(STDIN_FILENO) != 0;
    if (typed) {
        std::printf("%s\n", help_text);
    }
    Conversation conversation(arguments, config, format, *engine);
    std::string line;
    for (bool whole = true;;) {
        if (typed) {
            std::printf("> ");
            std::fflush(stdout);
        }
        if (!std::getline(std::cin, line) || line == "/exit" || line == "/quit") {
            return whole;
        }
        if (line == "/help") {
            std::printf("%s", help_text);
        } else if (line == "/reset") {
            conversation.reset();
        } else if (!line.empty()) {
            whole = conversation.say(line, terminal) && whole;
        }
    }
}

}  // namespace

void add_chat(CLI::App& app, int& exit_code) {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* command = app.add_subcommand("chat", "Talk with a model in the terminal");
    command->footer(
        "Each line is a message; /reset, /help and /exit are commands, Ctrl-C stops a reply.\n"
        "Example: percheron chat --reasoning-effort low\n"
        "Example: echo 'What is 2 + 2?' | percheron chat --temperature 0");
    add_load_flags(*command, arguments->flags);
    command->add_option("--system", arguments->system, "System message");
    command
        ->add_option("--reasoning-effort", arguments->reasoning_effort,
                     "How much to think: low, high or max (default: the template's)")
        ->check(CLI::IsMember({"low", "high", "max"}));
    command->add_option("--thinking-budget", arguments->flags.load.thinking_budget,
                        "Tokens of thinking before the answer must begin");
    command->add_option("--max-tokens", arguments->max_tokens,
                        "Tokens of a reply (default: what is left of the context)");
    command->add_option("--temperature", arguments->temperature,
                        "0 is greedy (default: the model's)");
    command->add_option("--top-p", arguments->top_p, "Nucleus (default: the model's)");
    command->callback([arguments, &exit_code] {
        const auto talked = talk(*arguments);
        if (!talked.ok()) say_fault("chat", talked.error().message());
        exit_code = talked.ok() && *talked ? 0 : 1;
    });
}

}  // namespace percheron::apps
