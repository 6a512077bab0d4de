// What the routes share.  All of it belongs to the I/O thread once the server runs, but the text
// threads may read `model`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "grammar/grammar_compiler.h"
#include "server/asio.h"
#include "server/connection.h"
#include "server/engine_link.h"
#include "server/held_bytes.h"
#include "server/key_ring.h"
#include "server/metrics.h"
#include "server/response_store.h"
#include "server/served_model.h"
#include "server/server.h"

namespace percheron::server {

struct ServerState {
    explicit ServerState(ServerOptions options)
        : options(std::move(options)),
          text_threads(std::max(1u, this->options.text_threads)),
          link(io.get_executor()),
          held(std::max(this->options.request_memory, 2 * this->options.max_body)),
          responses(this->options.response_memory) {}

    ServerOptions options;
    asio::io_context io{1};
    asio::thread_pool text_threads;
    // One, apart from the text threads: a grammar that takes long to compile holds up no more than
    // other grammars.  Only it touches `grammars`, which is made with the first of them.
    asio::thread_pool grammar_thread{1};
    std::unique_ptr<grammar::GrammarCompiler> grammars;
    EngineLink link;
    HeldBytes held;
    ResponseStore responses;
    Metrics metrics;
    KeyRing keys;
    std::unique_ptr<const ServedModel> model;  // null until the server is ready
    std::unique_ptr<Engine> engine;
    std::string stage;  // of the start, for those who ask meanwhile; empty: not told
    bool draining = false;
    const Clock::time_point started = Clock::now();

    // Why a generating request cannot be taken now, if so.
    std::optional<ApiError> unavailable() const;
    // A new id for a request: 24 hex digits.
    std::string make_id();
    // Says once for each name that a field was ignored.
    void note_unknown_fields(std::string_view route, const std::vector<std::string>& names);
    void log_line(LogLevel level, std::string_view message, const std::vector<LogField>& fields);

  private:
    std::mt19937_64 ids_{std::random_device{}()};
    std::set<std::string> noted_fields_;
};

// Runs `work` on a thread of the pool; the coroutine goes on where it was.  `work` must not throw.
template <class Work>
asio::awaitable<void> on_pool(asio::thread_pool& pool, Work work) {
    co_await asio::co_spawn(
        pool.get_executor(),
        [](Work task) -> asio::awaitable<void> {
            task();
            co_return;
        }(std::move(work)),
        asio::use_awaitable);
}

template <class Work>
asio::awaitable<void> on_text_thread(ServerState& state, Work work) {
    return on_pool(state.text_threads, std::move(work));
}
template <class Work>
asio::awaitable<void> on_grammar_thread(ServerState& state, Work work) {
    return on_pool(state.grammar_thread, std::move(work));
}

}  // namespace percheron::server
