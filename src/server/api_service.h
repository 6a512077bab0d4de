// The gate before the routes: keys, origins, unknown paths and methods, request ids, counting.
#pragma once

#include <optional>

#include "server/connection.h"
#include "server/routes.h"
#include "server/server_state.h"

namespace percheron::server {

class ApiService final : public HttpService {
  public:
    explicit ApiService(ServerState& state) : state_(state) {}

    std::optional<HttpResponse> refuse(const HttpRequest& request) override;
    asio::awaitable<void> serve(HttpExchange& exchange) override;
    HttpResponse fault_response(const HttpFault& fault, const HttpRequest& request) override;
    bool keeps_connections() const override { return !state_.draining; }

  private:
    // What refuse() answers, without the request's id.
    std::optional<HttpResponse> refusal(const HttpRequest& request);

    ServerState& state_;
};

}  // namespace percheron::server
