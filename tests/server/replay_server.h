// The real server over a replay of lines a test writes, on a port of its own.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "percheron/engine.h"

#include "replay/replay_engine.h"
#include "server/http_client.h"
#include "server/server.h"

namespace percheron::test {

using Lines = std::vector<Json>;  // of a replay file

struct ReplayServerOptions {
    server::ServerOptions server;
    std::uint32_t context = 4096;
    std::uint32_t max_running = 1024;
    bool vision = true;  // the engine takes images
    // Puts another engine before the replay.
    std::function<std::unique_ptr<Engine>(std::unique_ptr<Engine>)> wrap;
};

inline std::filesystem::path nano_folder() {
    return std::filesystem::path(PERCHERON_SOURCE_DIR) / "models" / "nano";
}

class ReplayServer {
  public:
    explicit ReplayServer(const Lines& lines, ReplayServerOptions options = {}) {
        options.server.port = 0;
        options.server.version = "test";
        auto listening = server::Server::listen(options.server);
        EXPECT_TRUE(listening.ok()) << listening.error().message();
        server_ = std::move(*listening);
        auto model = server::ServedModel::load(nano_folder());
        EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message());
        std::string text;
        for (const Json& line : lines)
            text += line.dump() + "\n";
        auto script = ReplayScript::parse(text, model->format.tokenizer(), model->vocabulary);
        EXPECT_TRUE(script.ok()) << (script.ok() ? "" : script.error().message());
        EngineDescription description;
        description.model_name = model->name;
        description.vocabulary = model->vocabulary;
        description.context_tokens = options.context;
        description.max_running = options.max_running;
        description.kv_tokens = std::uint64_t{options.context} * options.max_running;
        description.stop_tokens = model->stop_tokens;
        description.vision = options.vision;
        std::unique_ptr<Engine> engine = make_replay_engine(std::move(*script), description);
        if (options.wrap) engine = options.wrap(std::move(engine));
        server_->serve(std::move(engine), std::move(*model));
    }

    std::uint16_t port() const { return server_->port(); }
    server::Server& server() { return *server_; }
    HttpClient connect() const { return HttpClient(port()); }

    ClientReply get(std::string_view path, std::string_view headers = {}) const {
        return connect().request("GET", path, {}, headers);
    }
    ClientReply chat(const Json& body, std::string_view headers = {}) const {
        return connect().request("POST", "/v1/chat/completions", body.dump(), headers);
    }

    // The value of one metric line; -1 when there is none.
    double metric(const std::string& name) const {
        const std::string text = get("/metrics").body;
        const std::size_t at = text.find("\n" + name + "{");
        if (at == std::string::npos) return -1;
        return std::atof(text.c_str() + text.find("} ", at) + 2);
    }

    // Waits until nothing runs or waits in the engine.
    void settle() const {
        while (true) {
            const Json status = get("/status").json();
            if (status["running"] == 0 && status["waiting"] == 0) return;
            std::this_thread::yield();
        }
    }

  private:
    std::unique_ptr<server::Server> server_;
};

inline Json user_message(const std::string& text) {
    return Json::array({{{"role", "user"}, {"content", text}}});
}

}  // namespace percheron::test
