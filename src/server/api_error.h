// Errors as clients see them, with codes that never change.
#pragma once

#include <string>
#include <string_view>

#include "percheron/engine.h"

#include "core/status.h"
#include "server/http_message.h"

namespace percheron::server {

// `code` is one of: invalid_value, invalid_json, invalid_http, unsupported_parameter,
// context_length_exceeded, request_too_large, vision_unavailable, model_not_found, not_found,
// method_not_allowed, invalid_api_key, forbidden_origin, forbidden_host, request_timeout,
// client_closed (400, 401, 403, 404, 405, 408, 413, 415, 431); queue_full (429); numerical_fault,
// no_token_left, replay_exhausted, internal_error (500); engine_dead, starting, shutting_down
// (503).
struct ApiError {
    int status = 400;
    std::string code = "invalid_value";
    std::string message;
    std::string param;  // the request's field it is about; may be empty
};

// Whose clients a route talks to.
enum class ErrorForm {
    openai,     // {"error": {"message", "type", "code", "param"}}
    anthropic,  // {"type": "error", "error": {"type", "message", "code", "param"}}
};

// param is null when there is none.
std::string error_json(const ApiError& error, ErrorForm form = ErrorForm::openai);
HttpResponse error_response(const ApiError& error, ErrorForm form = ErrorForm::openai);

// What an engine's refusal, or the error of a reply that failed, means to a client.
ApiError error_of_engine(const Error& error);

// Why messages could not be made a prompt (ChatFormat::render).
ApiError error_of_rendering(const Error& error);

inline ApiError invalid_value(std::string param, std::string message) {
    return {400, "invalid_value", std::move(message), std::move(param)};
}
inline ApiError unsupported_parameter(std::string param, std::string message) {
    return {400, "unsupported_parameter", std::move(message), std::move(param)};
}

}  // namespace percheron::server
