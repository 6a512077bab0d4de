#include "server/api_service.h"

#include <algorithm>
#include <charconv>

#include "core/logging.h"
#include "text/unicode.h"

namespace percheron::server {
namespace {

constexpr std::size_t longest_request_id = 128;

// The id a client gave, if it can be shown in a header and a log.
std::string request_id_of(const HttpRequest& request, ServerState& state) {
    for (const char* name : {"x-request-id", "x-correlation-id"}) {
        const std::string_view id = request.header(name);
        const bool shown =
            !id.empty() && id.size() <= longest_request_id &&
            std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 127; });
        if (shown) return std::string(id);
    }
    return "req-" + state.make_id();
}

// As it stands where '%' is not followed by two digits.
std::string percent_decoded(std::string_view text) {
    std::string decoded;
    for (std::size_t i = 0; i < text.size(); ++i) {
        unsigned char byte = 0;
        const char* const digits = text.data() + i + 1;
        if (text[i] == '%' && text.size() - i > 2 &&
            std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
            decoded += static_cast<char>(byte);
            i += 2;
        } else {
            decoded += text[i];
        }
    }
    return decoded;
}

// A page of another site may not use this server through its visitor's browser.
bool from_another_origin(const HttpRequest& request) {
    const std::string_view origin = request.header("Origin");
    if (origin.empty()) return false;
    const std::size_t scheme = origin.find("://");
    if (scheme == std::string_view::npos) return true;
    const std::string_view host = origin.substr(scheme + 3);
    return !equal_without_case(host, request.header("Host")) &&
           !equal_without_case(host, request.header("X-Forwarded-Host"));
}

// The name in a Host header, without its port and the brackets of an IPv6 address.
std::string_view name_of_host(std::string_view host) {
    if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
    return host.substr(0, host.find(':'));
}

// A server without keys on a loopback address is for this machine's own users.  Another site's name
// that its owner lets resolve to 127.0.0.1 would make their browsers talk to it as that site; such
// a request carries the site's name.
bool names_another_host(const HttpRequest& request, const ServerState& state) {
    if (state.keys.locked() || !is_loopback(state.options.host)) return false;
    const std::string_view host = request.header("Host");
    if (host.empty() && request.http_1_0) return false;
    return !is_loopback(name_of_host(host));
}

}  // namespace

std::optional<HttpResponse> ApiService::refuse(const HttpRequest& request) {
    std::optional<HttpResponse> response = refusal(request);
    if (response) response->headers.push_back({"x-request-id", request_id_of(request, state_)});
    return response;
}

std::optional<HttpResponse> ApiService::refusal(const HttpRequest& request) {
    const RouteMatch match = find_route(request.method, request.path);
    const bool open = match.route != nullptr && match.route->open;
    ApiError error;
    if (!open && !state_.keys.holder_of(request)) {
        error = {401, "invalid_api_key",
                 "this server needs an API key it knows; send it as "
                 "\"Authorization: Bearer KEY\"",
                 ""};
        const bool page = match.route != nullptr && match.route->handler == serve_page;
        HttpResponse response =
            page ? page_for_key(request.path) : error_response(error, match.error_form);
        response.headers.push_back({"WWW-Authenticate", "Bearer"});
        ++state_.metrics.http_replies[401];
        return response;
    }
    if (names_another_host(request, state_)) {
        error = {403, "forbidden_host",
                 "this server has no keys and answers only to localhost and loopback addresses; "
                 "use one of them in the URL, or start it with --api-key-file",
                 ""};
    } else if (from_another_origin(request)) {
        error = {403, "forbidden_origin", "requests from pages of other sites are not answered",
                 ""};
    } else if (match.allowed.empty()) {
        error = {404, "not_found", "there is no route " + with_replacements(request.path), ""};
    } else if (request.method == "OPTIONS") {
        HttpResponse response;
        response.status = 204;
        response.content_type.clear();
        response.headers.push_back({"Allow", match.allowed});
        ++state_.metrics.http_replies[204];
        return response;
    } else if (match.route == nullptr) {
        error = {405, "method_not_allowed", "the route " + request.path + " knows " + match.allowed,
                 ""};
    } else if (const auto expect = request.header("Expect");
               !expect.empty() && !equal_without_case(expect, "100-continue")) {
        error = {417, "invalid_value", "only \"Expect: 100-continue\" is understood", ""};
    } else {
        return std::nullopt;
    }
    ++state_.metrics.http_replies[error.status];
    HttpResponse response = error_response(error, match.error_form);
    if (error.status == 405) response.headers.push_back({"Allow", match.allowed});
    return response;
}

asio::awaitable<void> ApiService::serve(HttpExchange& exchange) {
    const HttpRequest& request = exchange.request();
    const RouteMatch match = find_route(request.method, request.path);
    RouteCall call{state_,
                   exchange,
                   request_id_of(request, state_),
                   state_.keys.holder_of(request).value_or(KeyHolder{}),
                   {},
                   match.route->error_form};
    if (match.route->path.back() == '/') {
        call.tail =
            percent_decoded(std::string_view(request.path).substr(match.route->path.size()));
    }
    exchange.add_header("x-request-id", call.request_id);
    std::string failure;
    try {
        co_await match.route->handler(call);
    } catch (const std::exception& error) {
        failure = error.what();
    }
    if (!failure.empty()) {
        log_error("a request failed by an exception: " + failure);
        exchange.respond(error_response(
            {500, "internal_error", "the server failed on this request; its log says why", ""},
            call.error_form));
    }
    ++state_.metrics.http_replies[exchange.status()];
}

HttpResponse ApiService::fault_response(const HttpFault& fault, const HttpRequest& request) {
    ++state_.metrics.http_replies[fault.status];
    HttpResponse response = error_response({fault.status, fault.code, fault.message, ""},
                                           find_route(request.method, request.path).error_form);
    response.headers.push_back({"x-request-id", request_id_of(request, state_)});
    return response;
}

}  // namespace percheron::server
