#include "server/server_state.h"

#include "core/logging.h"

namespace percheron::server {
namespace {

constexpr std::size_t most_noted_fields = 1000;
constexpr std::size_t longest_noted_field = 64;

}  // namespace

std::optional<ApiError> ServerState::unavailable() const {
    if (draining) return ApiError{503, "shutting_down", "the server is shutting down", ""};
    if (!model || !engine) {
        const std::string now = stage.empty() ? "" : " (" + stage + ")";
        return ApiError{503, "starting",
                        "the model is still being loaded" + now + "; try again soon", ""};
    }
    const EngineStatus status = engine->status();
    if (!status.alive) {
        return ApiError{503, "engine_dead", "the engine has stopped: " + status.failure, ""};
    }
    return std::nullopt;
}

std::string ServerState::make_id() {
    constexpr std::string_view digits = "0123456789abcdef";
    std::string id;
    std::uint64_t bits = 0;
    for (int i = 0; i < 24; ++i) {
        if (i % 16 == 0) bits = ids_();
        id += digits[bits & 15];
        bits >>= 4;
    }
    return id;
}

void ServerState::note_unknown_fields(std::string_view route,
                                      const std::vector<std::string>& names) {
    for (const std::string& name : names) {
        if (noted_fields_.size() >= most_noted_fields) return;
        const std::string shown = name.substr(0, longest_noted_field);
        if (!noted_fields_.insert(shown).second) continue;
        log_line(LogLevel::warning, "a request field has no effect here and is ignored",
                 {{"route", std::string(route)}, {"field", shown}});
    }
}

void ServerState::log_line(LogLevel level, std::string_view message,
                           const std::vector<LogField>& fields) {
    if (options.log != nullptr) {
        options.log->write(level, message, fields);
    } else {
        log(level, render_fields(LogFormat::text, message, fields));
    }
}

}  // namespace percheron::server
