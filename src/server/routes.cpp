#include "server/routes.h"

#include <array>

namespace percheron::server {
namespace {

constexpr std::array<Route, 22> routes{{
    {"GET", "/health", serve_health, true},
    {"GET", "/v1/models", serve_models},
    {"GET", "/models", serve_models},
    {"GET", "/v1/models/", serve_model},
    {"GET", "/metrics", serve_metrics},
    {"GET", "/status", serve_status},
    {"GET", "/version", serve_version},
    {"GET", "/tokenizer_info", serve_tokenizer_info},
    {"POST", "/tokenize", serve_tokenize},
    {"POST", "/detokenize", serve_detokenize},
    {"POST", "/v1/chat/completions", serve_chat},
    {"POST", "/chat/completions", serve_chat},
    {"POST", "/v1/completions", serve_completion},
    {"POST", "/completions", serve_completion},
    {"POST", "/v1/messages", serve_messages, false, ErrorForm::anthropic},
    {"POST", "/v1/messages/count_tokens", serve_count_tokens, false, ErrorForm::anthropic},
    {"POST", "/v1/responses", serve_responses},
    {"GET", "/v1/responses/", serve_response},
    {"DELETE", "/v1/responses/", delete_response},
    {"GET", "/", serve_page},
    {"GET", "/dashboard", serve_page},
    {"GET", "/assets/", serve_page, true},
}};

bool answers(const Route& route, std::string_view path) {
    if (route.path.size() > 1 && route.path.back() == '/') {
        return path.size() > route.path.size() && path.substr(0, route.path.size()) == route.path;
    }
    return path == route.path;
}

}  // namespace

std::span<const Route> all_routes() {
    return routes;
}

RouteMatch find_route(std::string_view method, std::string_view path) {
    RouteMatch match;
    if (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
    for (const Route& route : routes) {
        if (!answers(route, path)) continue;
        match.error_form = route.error_form;
        if (!match.allowed.empty()) match.allowed += ", ";
        match.allowed += route.method == "GET" ? "GET, HEAD" : std::string(route.method);
        if (method == route.method || (method == "HEAD" && route.method == "GET")) {
            match.route = &route;
        }
    }
    if (!match.allowed.empty()) match.allowed += ", OPTIONS";
    return match;
}

}  // namespace percheron::server
