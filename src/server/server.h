// The server: HTTP in, an engine's replies out.
//
// listen() binds at once and answers /health with 503; serve() opens the other routes once the
// model is there.  All of it runs on one I/O thread, with text threads for templates, tokenizing
// and large JSON.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "percheron/engine.h"

#include "core/status.h"
#include "server/served_model.h"
#include "server/server_log.h"

namespace percheron::server {

struct ServerOptions {
    std::string host = "127.0.0.1";
    std::uint16_t port = 8000;  // 0: any free one
    std::string version = "0";
    bool strict_model = false;           // other model names than the served one are refused
    std::uint32_t max_queued = 1024;     // choices that may wait beyond those that run
    std::filesystem::path api_key_file;  // empty: no keys
    std::string reasoning_effort = "max";
    std::optional<std::chrono::seconds> deadline;
    std::chrono::seconds keep_alive{0};  // an SSE comment after so much silence; 0 = never
    std::size_t max_body = 64 * 1024 * 1024;
    // Bytes of requests held at a time, over all connections; at least twice max_body.
    std::size_t request_memory = std::size_t{1} << 30;
    // Bytes of replies of /v1/responses that are kept for later turns.
    std::size_t response_memory = std::size_t{256} << 20;
    std::size_t most_connections = 16384;
    std::chrono::seconds grace{30};        // running replies may take so long after a shutdown
    std::chrono::seconds header_time{30};  // a request's headers; also silence within its body
    std::chrono::seconds write_silence{60};
    unsigned text_threads = 2;
    ServerLog* log = nullptr;  // for the request log; nullptr: core's logger as text
};

class Server {
  public:
    // Errors: io (the address), invalid_argument (options, key file).
    static Result<std::unique_ptr<Server>> listen(ServerOptions options);
    ~Server();  // shuts down without grace if shut_down() has not come before

    std::uint16_t port() const;

    // What is being done until then, as /health tells it.  Any thread.
    void note_stage(std::string stage);
    // Opens the routes.  Call once.
    void serve(std::unique_ptr<Engine> engine, ServedModel model);

    // New requests get 503, running replies end, bounded by the grace.  Any thread; returns at
    // once.
    void shut_down();
    // Returns when a shutdown has completed.
    void wait();

  private:
    class State;
    explicit Server(std::unique_ptr<State> state);

    std::unique_ptr<State> state_;
};

}  // namespace percheron::server
