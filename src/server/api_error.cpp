#include "server/api_error.h"

#include <algorithm>
#include <array>

#include "server/sse.h"

namespace percheron::server {
namespace {

std::string_view type_of(int status) {
    switch (status) {
        case 401:
            return "authentication_error";
        case 403:
            return "permission_error";
        case 404:
            return "not_found_error";
        case 429:
            return "rate_limit_error";
        case 500:
            return "server_error";
        case 503:
            return "unavailable_error";
        default:
            return "invalid_request_error";
    }
}

std::string_view anthropic_type_of(int status) {
    switch (status) {
        case 401:
            return "authentication_error";
        case 403:
            return "permission_error";
        case 404:
            return "not_found_error";
        case 413:
            return "request_too_large";
        case 429:
            return "rate_limit_error";
        case 500:
            return "api_error";
        case 503:
            return "overloaded_error";
        default:
            return "invalid_request_error";
    }
}

// An engine's sentence about a field begins with the field's name.
std::string field_named_by(std::string_view message) {
    constexpr std::array<std::string_view, 16> fields{"temperature",
                                                      "top_p",
                                                      "min_p",
                                                      "top_k",
                                                      "repetition_penalty",
                                                      "logit_bias",
                                                      "seed",
                                                      "presence_penalty",
                                                      "frequency_penalty",
                                                      "top_logprobs",
                                                      "n",
                                                      "max_tokens",
                                                      "min_tokens",
                                                      "stop_token_ids",
                                                      "thinking_budget",
                                                      "loop_guard"};
    const std::string_view first = message.substr(0, message.find(' '));
    return std::find(fields.begin(), fields.end(), first) == fields.end() ? "" : std::string(first);
}

}  // namespace

std::string error_json(const ApiError& error, ErrorForm form) {
    const bool anthropic = form == ErrorForm::anthropic;
    std::string json =
        anthropic ? R"({"type":"error","error":{"message":)" : R"({"error":{"message":)";
    append_quoted(json, error.message);
    json += R"(,"type":)";
    append_quoted(json, anthropic ? anthropic_type_of(error.status) : type_of(error.status));
    json += R"(,"code":)";
    append_quoted(json, error.code);
    json += R"(,"param":)";
    if (error.param.empty()) {
        json += "null";
    } else {
        append_quoted(json, error.param);
    }
    json += "}}";
    return json;
}

HttpResponse error_response(const ApiError& error, ErrorForm form) {
    HttpResponse response;
    response.status = error.status;
    response.body = error_json(error, form);
    if (error.status == 429) response.headers.push_back({"Retry-After", "1"});
    if (error.status == 503) response.headers.push_back({"Retry-After", "5"});
    return response;
}

ApiError error_of_rendering(const Error& error) {
    // A sentence about a place begins with it.
    const std::string_view first =
        std::string_view(error.message()).substr(0, error.message().find(' '));
    const bool named = first.starts_with("messages[") || first.starts_with("tools[");
    ApiError answer =
        invalid_value(named ? std::string(first) : std::string("messages"), error.message());
    if (!error.reason().empty()) answer.code = error.reason();
    return answer;
}

ApiError error_of_engine(const Error& error) {
    ApiError answer;
    answer.message = error.message();
    answer.param = field_named_by(answer.message);
    switch (error.code()) {
        case ErrorCode::invalid_argument:
            answer.status = 400;
            answer.code = reasons::invalid_value;
            break;
        case ErrorCode::unsupported:
            answer.status = 400;
            answer.code = reasons::unsupported_parameter;
            break;
        case ErrorCode::out_of_memory:
            answer.status = 400;
            answer.code = reasons::context_length_exceeded;
            break;
        case ErrorCode::not_found:
        case ErrorCode::internal:
            answer.status = 500;
            answer.code = "internal_error";
            break;
        default:
            answer.status = 503;
            answer.code = reasons::engine_dead;
    }
    if (!error.reason().empty()) answer.code = error.reason();
    if (error.reason() == reasons::queue_full) answer.status = 429;
    if (error.reason() == reasons::engine_dead) answer.status = 503;
    return answer;
}

}  // namespace percheron::server
