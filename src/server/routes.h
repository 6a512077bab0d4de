// Every route of the server: what is answered where, and by whom.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/connection.h"
#include "server/key_ring.h"
#include "server/server_state.h"

namespace percheron::server {

// One request on its way through a route.
struct RouteCall {
    ServerState& state;
    HttpExchange& exchange;
    std::string request_id;  // the client's x-request-id, or a new one
    KeyHolder key;
    std::string tail;  // of a prefix route: what follows the prefix, decoded
    ErrorForm error_form = ErrorForm::openai;
};

using RouteHandler = asio::awaitable<void> (*)(RouteCall&);

struct Route {
    std::string_view method;  // GET routes answer HEAD too
    std::string_view path;    // ends with '/': everything below
    RouteHandler handler;
    bool open = false;  // without a key: liveness, and the page's script and style
    ErrorForm error_form = ErrorForm::openai;
};

// The route of a path, and whether the path exists with other methods.
struct RouteMatch {
    const Route* route = nullptr;
    std::string allowed;  // the methods the path knows, "GET, HEAD"; empty: no such path
    ErrorForm error_form = ErrorForm::openai;
};
std::span<const Route> all_routes();
RouteMatch find_route(std::string_view method, std::string_view path);

// info_routes.cpp
asio::awaitable<void> serve_health(RouteCall& call);
asio::awaitable<void> serve_models(RouteCall& call);
asio::awaitable<void> serve_model(RouteCall& call);
asio::awaitable<void> serve_metrics(RouteCall& call);
asio::awaitable<void> serve_status(RouteCall& call);
asio::awaitable<void> serve_version(RouteCall& call);
// tokenize_routes.cpp
asio::awaitable<void> serve_tokenize(RouteCall& call);
asio::awaitable<void> serve_detokenize(RouteCall& call);
asio::awaitable<void> serve_tokenizer_info(RouteCall& call);
// page_route.cpp
asio::awaitable<void> serve_page(RouteCall& call);
// The page as the answer to a browser that has no key yet: the page asks for it.
HttpResponse page_for_key(std::string_view path);
// chat_route.cpp
asio::awaitable<void> serve_chat(RouteCall& call);
// messages_route.cpp
asio::awaitable<void> serve_messages(RouteCall& call);
asio::awaitable<void> serve_count_tokens(RouteCall& call);
// responses_route.cpp
asio::awaitable<void> serve_responses(RouteCall& call);
asio::awaitable<void> serve_response(RouteCall& call);
asio::awaitable<void> delete_response(RouteCall& call);
// completion_route.cpp
asio::awaitable<void> serve_completion(RouteCall& call);

}  // namespace percheron::server
