#include "server/server.h"

#include <future>
#include <thread>

#include "core/logging.h"
#include "server/api_service.h"
#include "server/http_server.h"
#include "server/rates.h"
#include "server/server_state.h"

namespace percheron::server {
namespace {

constexpr std::chrono::milliseconds tick_time{250};
constexpr int ticks_a_second = 4;
constexpr std::chrono::seconds last_words{2};  // for replies already written

ConnectionLimits limits_of(const ServerOptions& options) {
    ConnectionLimits limits;
    limits.http.body_bytes = options.max_body;
    limits.first_byte = options.header_time;
    limits.header = options.header_time;
    limits.body_silence = options.header_time;
    limits.write_silence = options.write_silence;
    return limits;
}

}  // namespace

class Server::State {
  public:
    explicit State(ServerOptions options)
        : shared(std::move(options)),
          service(shared),
          http(shared.io, limits_of(shared.options), shared.options.most_connections, shared.held,
               service),
          tick_timer(shared.io),
          rates(shared) {}

    void start() {
        asio::co_spawn(shared.io, tick(), asio::detached);
        io_thread = std::thread([this] {
            shared.io.run();
            finished.set_value();
        });
    }

    asio::awaitable<void> tick() {
        for (std::uint64_t count = 1;; ++count) {
            tick_timer.expires_after(tick_time);
            boost::system::error_code error;
            co_await tick_timer.async_wait(asio::redirect_error(asio::use_awaitable, error));
            http.tick();
            if (count % ticks_a_second == 0) every_second();
            if (shared.draining) drain();
        }
    }

    void every_second() {
        if (const Status status = shared.keys.refresh(); !status.ok()) {
            log_error(status.error().message() + "; the keys stay as they were");
        }
        shared.link.tick();
        rates.every_second();
    }

    // Ends when nothing runs, or when the grace is over and all that ran was told to stop.
    void drain() {
        const auto now = Clock::now();
        const bool idle = shared.link.in_flight() == 0 && !http.busy();
        if (!idle && now < grace_end) return;
        if (!idle && !cancelled) {
            cancelled = true;
            shared.link.cancel_all();
            return;
        }
        if (!idle && now < grace_end + last_words) return;
        http.stop_accepting();
        http.close_all();
        shared.io.stop();
    }

    void begin_draining(std::chrono::seconds grace) {
        asio::post(shared.io, [this, grace] {
            shared.draining = true;
            grace_end = std::min(grace_end, Clock::now() + grace);
            drain();
        });
    }

    ServerState shared;
    ApiService service;
    HttpServer http;
    asio::steady_timer tick_timer;
    Rates rates;
    Clock::time_point grace_end = Clock::time_point::max();
    bool cancelled = false;
    std::promise<void> finished;
    std::future<void> finished_future = finished.get_future();
    std::thread io_thread;
};

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<Server>> Server::listen(ServerOptions options) {
    auto state = std::make_unique<State>(std::move(options));
    const ServerOptions& chosen = state->shared.options;
    if (!chosen.api_key_file.empty()) {
        PERCHERON_ASSIGN(state->shared.keys, KeyRing::load(chosen.api_key_file));
    }
    PERCHERON_TRY(state->http.listen(chosen.host, chosen.port));
    if (!is_loopback(chosen.host) && !state->shared.keys.locked()) {
        log_warning("the server listens on " + chosen.host +
                    " without keys: anyone who reaches it may use it; set --api-key-file");
    }
    state->start();
    return std::unique_ptr<Server>(new Server(std::move(state)));
}

std::uint16_t Server::port() const {
    return state_->http.port();
}

void Server::serve(std::unique_ptr<Engine> engine, ServedModel model) {
    std::promise<void> done;
    asio::post(state_->shared.io, [&] {
        ServerState& shared = state_->shared;
        model.defaults.deadline = shared.options.deadline;
        shared.model = std::make_unique<const ServedModel>(std::move(model));
        shared.engine = std::move(engine);
        shared.link.attach(*shared.engine);
        done.set_value();
    });
    done.get_future().wait();
}

void Server::note_stage(std::string stage) {
    asio::post(state_->shared.io, [this, stage = std::move(stage)]() mutable {
        state_->shared.stage = std::move(stage);
    });
}

void Server::shut_down() {
    log_info("shutting down: running replies may end, new requests are refused");
    state_->begin_draining(state_->shared.options.grace);
}

void Server::wait() {
    state_->finished_future.wait();
}

Server::~Server() {
    state_->begin_draining(std::chrono::seconds(0));
    state_->io_thread.join();
    state_->shared.text_threads.join();
    state_->shared.grammar_thread.join();
    // The engine's thread ends before what it reports to.
    state_->shared.engine.reset();
}

}  // namespace percheron::server
