// percheron serve: loads a model and answers clients until it is told to end.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <thread>

#include <CLI/CLI.hpp>
#include <pthread.h>
#include <sys/resource.h>

#include "percheron/engine.h"

#include "commands.h"
#include "core/logging.h"
#include "load_flags.h"
#include "number_checks.h"
#include "parallel/remote_engine.h"
#include "replay/replay_engine.h"
#include "server/server.h"
#include "tools/devices.h"
#include "tools/load_engine.h"
#include "tools/model_path.h"
#include "tools/model_source.h"

namespace percheron::apps {
namespace {

using server::ServedModel;
using server::Server;
using server::ServerLog;
using server::ServerOptions;

struct ServeOptions {
    LoadFlags flags;
    std::vector<std::string> rank_arguments;  // of those flags, for a rank
    std::string ranks = "auto";
    std::uint32_t rank_patience = 60;
    std::string replay;
    std::string log_format = "text";
    std::uint64_t deadline = 0;
    std::uint64_t keep_alive = 0;
    std::string api_key_file;
    ServerOptions server;
};

// Thousands of streams need more descriptors than a shell's usual limit.
void raise_descriptor_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

std::size_t most_connections() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 16384;
    const std::size_t spare = 64;
    return limit.rlim_cur > 2 * spare ? std::min<std::size_t>(limit.rlim_cur - spare, 16384)
                                      : spare;
}

// Takes SIGTERM and SIGINT on a thread of its own: the first drains, the second ends at once.
class SignalWatch {
  public:
    SignalWatch() {
        sigemptyset(&signals_);
        sigaddset(&signals_, SIGTERM);
        sigaddset(&signals_, SIGINT);
        pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    }
    void begin(Server& server) {
        std::thread([this, &server] {
            int signal = 0;
            sigwait(&signals_, &signal);
            if (!ready_.load()) std::_Exit(0);
            server.shut_down();
            sigwait(&signals_, &signal);
            std::_Exit(1);
        }).detach();
    }
    void ready() { ready_.store(true); }

  private:
    sigset_t signals_{};
    std::atomic<bool> ready_{false};
};

// A replay stands in for the network: the same limits, no weights.
Result<std::unique_ptr<Engine>> make_replay(const ServeOptions& options, const ServedModel& model) {
    EngineDescription description;
    description.model_name = model.name;
    description.vocabulary = model.vocabulary;
    description.context_tokens = options.flags.load.context.value_or(model.context_limit);
    if (description.context_tokens > model.context_limit) {
        return Error(ErrorCode::invalid_argument,
                     "--context " + std::to_string(description.context_tokens) +
                         " is more than the model's " + std::to_string(model.context_limit));
    }
    if (options.flags.load.thinking_budget || options.flags.load.kv_memory ||
        options.flags.load.weights_memory || options.flags.load.checkpoint_memory ||
        !options.flags.load.prefix_disk.empty() || options.flags.load.kv_dtype != "auto" ||
        options.flags.load.fp4_activations) {
        return Error(ErrorCode::invalid_argument,
                     "--thinking-budget, --kv-memory, --kv-dtype, --fp4-activations, "
                     "--weights-memory, --checkpoint-memory and --prefix-disk mean nothing with "
                     "--replay; leave them out");
    }
    description.max_running = options.flags.load.max_running.value_or(1024);
    description.kv_tokens = std::uint64_t{description.context_tokens} * description.max_running;
    description.stop_tokens = model.stop_tokens;
    description.vision = model.vision.has_value();
    PERCHERON_ASSIGN(
        ReplayScript script,
        ReplayScript::load(options.replay, model.format.tokenizer(), model.vocabulary));
    return make_replay_engine(std::move(script), description);
}

// Whether the engine gets a process of its own, so that a GPU's fault is not the server's end.
bool wants_rank(const ServeOptions& options) {
    return options.ranks == "process" ||
           (options.ranks == "auto" && tools::may_use_gpu(options.flags.load.device));
}

// The error that a rank could not be started again for.
class LastingFault {
  public:
    void set(const Error& error) {
        const std::lock_guard lock(mutex_);
        error_ = error;
    }
    Status status() const {
        const std::lock_guard lock(mutex_);
        // The flags were good when the server began: what the rank refuses now is work that failed.
        if (error_) return Error(ErrorCode::unavailable, error_->message());
        return {};
    }

  private:
    mutable std::mutex mutex_;
    std::optional<Error> error_;
};

Result<std::unique_ptr<Engine>> start_rank(const ServeOptions& options, Server& server,
                                           LastingFault& fault) {
    parallel::RemoteOptions remote;
    remote.arguments = {"rank", "--max-queued=" + std::to_string(options.server.max_queued)};
    remote.arguments.insert(remote.arguments.end(), options.rank_arguments.begin(),
                            options.rank_arguments.end());
    remote.patience = std::chrono::seconds(options.rank_patience);
    remote.on_stage = [&server](const std::string& stage) { server.note_stage(stage); };
    remote.on_gave_up = [&server, &fault](const Error& error) {
        fault.set(error);
        server.shut_down();
    };
    return parallel::start_remote_engine(std::move(remote));
}

// Says what omitted request fields mean.
void log_defaults(const ServedModel& model, const std::string& reasoning_effort) {
    char line[200];
    std::snprintf(line, sizeof line,
                  "omitted fields mean temperature=%g top_p=%g top_k=%d min_p=%g "
                  "repetition_penalty=%g reasoning_effort=%s",
                  static_cast<double>(model.defaults.temperature),
                  static_cast<double>(model.defaults.top_p), model.defaults.top_k,
                  static_cast<double>(model.defaults.min_p),
                  static_cast<double>(model.defaults.repetition_penalty), reasoning_effort.c_str());
    log_info(line);
}

void print_ready(const std::string& host, const Server& server, const EngineDescription& engine,
                 double seconds) {
    const bool bracketed = host.find(':') != std::string::npos;
    // Readers of the line know its first fields; a type that was asked for is told behind them.
    const bool is_told = !engine.kv_dtype.empty() && engine.kv_dtype != "bf16";
    const std::string kv_dtype = is_told ? " kv_dtype=" + engine.kv_dtype : "";
    std::printf("ready http://%s%s%s:%u model=%s context=%u kv_tokens=%llu seconds=%.2f%s\n",
                bracketed ? "[" : "", host.c_str(), bracketed ? "]" : "",
                static_cast<unsigned>(server.port()), engine.model_name.c_str(),
                static_cast<unsigned>(engine.context_tokens),
                static_cast<unsigned long long>(engine.kv_tokens), seconds, kv_dtype.c_str());
    std::fflush(stdout);
}

Status serve(ServeOptions options) {
    const auto started = std::chrono::steady_clock::now();
    raise_descriptor_limit();
    SignalWatch signals;
    // A file that may not grow is an error of that write, not the end of the server.
    std::signal(SIGXFSZ, SIG_IGN);
    ServerLog log(options.log_format == "json" ? server::LogFormat::json : server::LogFormat::text);
    set_log_sink(&log);
    options.server.log = &log;
    options.server.most_connections = most_connections();
    options.server.api_key_file = options.api_key_file;
    options.server.keep_alive = std::chrono::seconds(options.keep_alive);
    if (options.deadline > 0) options.server.deadline = std::chrono::seconds(options.deadline);
    const std::string host = options.server.host;

    LastingFault fault;  // outlives the engine that may set it
    PERCHERON_ASSIGN(const std::unique_ptr<Server> server, Server::listen(options.server));
    signals.begin(*server);
    PERCHERON_ASSIGN(options.flags.load.folder, tools::resolve_model(options.flags.model));
    PERCHERON_ASSIGN(const auto text, tools::text_folder(options.flags.load.folder));
    PERCHERON_ASSIGN(ServedModel model, ServedModel::load(text));
    if (text != options.flags.load.folder) {
        // A made-up model borrows the embedded one's tokenizer and template, nothing else.
        PERCHERON_ASSIGN(const model::ModelConfig config,
                         tools::read_model_config(options.flags.load.folder));
        model.name = options.flags.model;
        model.vocabulary = static_cast<std::uint32_t>(config.vocabulary);
        model.context_limit = static_cast<std::uint32_t>(config.context_limit);
        model.stop_tokens = config.stop_tokens;
    }
    if (!options.flags.load.model_name.empty()) model.name = options.flags.load.model_name;
    options.flags.load.model_name = model.name;
    // The server refuses what is too much for the queue before the engine sees it.
    options.flags.load.max_queued = options.server.max_queued;

    auto engine = !options.replay.empty() ? make_replay(options, model)
                  : wants_rank(options)
                      ? start_rank(options, *server, fault)
                      : tools::load_engine(options.flags.load, model.format.tokenizer());
    if (!engine.ok()) return engine.error();
    const EngineDescription description = (*engine)->description();
    log_defaults(model, options.server.reasoning_effort);
    server->serve(std::move(*engine), std::move(model));
    signals.ready();
    const auto now = std::chrono::steady_clock::now();
    print_ready(host, *server, description, std::chrono::duration<double>(now - started).count());
    server->wait();
    log_info("ended");
    return fault.status();
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
    const auto options = std::make_shared<ServeOptions>();
    CLI::App* command = app.add_subcommand(
        "serve",
        "Serve a model over HTTP: the APIs of OpenAI and Anthropic, metrics, web page.\n"
        "Example: percheron serve models/nano --port 8000 --api-key-file keys.txt");
    add_load_flags(*command, options->flags);
    add_serving_flags(*command, options->flags.load);
    command->add_option("--host", options->server.host, "Address to listen on")
        ->capture_default_str();
    command->add_option("--port", options->server.port, "Port to listen on; 0 takes any")
        ->capture_default_str();
    command->add_flag("--strict-model", options->server.strict_model,
                      "Refuse requests for other model names");
    command->add_option("--max-queued", options->server.max_queued, "Replies that may wait beyond")
        ->capture_default_str();
    command->add_option("--api-key-file", options->api_key_file,
                        "Keys, one a line (KEY or LABEL KEY); readable by its owner alone");
    command
        ->add_option("--reasoning-effort", options->server.reasoning_effort,
                     "For requests that name none")
        ->check(CLI::IsMember({"low", "high", "max"}))
        ->capture_default_str();
    command->add_option("--keepalive", options->keep_alive,
                        "Seconds of silence before a comment is sent on a stream; 0 = never");
    command->add_option("--max-body", options->server.max_body, "Largest request body")
        ->transform(CLI::AsSizeValue(false))
        ->check(
            CLI::Range(std::size_t{1024}, std::numeric_limits<std::size_t>::max(), "at least 1KiB"))
        ->default_str("64MiB");
    command
        ->add_option("--ranks", options->ranks,
                     "Where the network is computed: process (a process of its own, started again "
                     "when it dies), in-process, or auto (a GPU in a process, the CPU in this one)")
        ->check(CLI::IsMember({"auto", "process", "in-process"}))
        ->capture_default_str();
    command
        ->add_option("--rank-patience", options->rank_patience,
                     "Seconds that such a process may work on a step before it is taken for hung; "
                     "at least twenty of the longest step before")
        ->check(positive_number())
        ->capture_default_str();
    command->add_option("--deadline", options->deadline,
                        "Seconds a reply may take when its request sets no deadline_s; 0 = any");
    command->add_option("--log-format", options->log_format, "Of the log on stderr")
        ->check(CLI::IsMember({"text", "json"}))
        ->capture_default_str();
    command->add_option("--replay", options->replay,
                        "Take replies from this file instead of the network");
    command->callback([options, command, &exit_code] {
        options->rank_arguments = serving_arguments(*command);
        options->server.version = PERCHERON_VERSION;
        const Status status = serve(*options);
        set_log_sink(nullptr);
        if (status.ok()) return;
        say_fault("serve", status.error().message());
        exit_code = status.error().code() == ErrorCode::invalid_argument ? 2 : 1;
    });
}

}  // namespace percheron::apps
