// GET routes that say how things are.
#include <cmath>

#include "server/api_error.h"
#include "server/json_body.h"
#include "server/routes.h"

namespace percheron::server {
namespace {

void respond_json(HttpExchange& exchange, const Json& json, int status = 200) {
    HttpResponse response;
    response.status = status;
    response.body = json.dump(-1, ' ', false, Json::error_handler_t::replace);
    exchange.respond(std::move(response));
}

Json model_object(const ServerState& state) {
    const ServedModel& model = *state.model;
    return {
        {"id", model.name},         {"object", "model"},
        {"created", model.created}, {"owned_by", "percheron"},
        {"root", model.root},       {"max_model_len", state.engine->description().context_tokens}};
}

double rounded(double value) {
    return std::round(value * 100) / 100;
}

}  // namespace

asio::awaitable<void> serve_health(RouteCall& call) {
    if (const auto error = call.state.unavailable()) {
        call.exchange.respond(error_response(*error));
        co_return;
    }
    respond_json(call.exchange, {{"status", "ok"}, {"service", "percheron"}});
}

asio::awaitable<void> serve_models(RouteCall& call) {
    if (!call.state.model) {
        call.exchange.respond(error_response(*call.state.unavailable()));
        co_return;
    }
    respond_json(call.exchange,
                 {{"object", "list"}, {"data", Json::array({model_object(call.state)})}});
}

asio::awaitable<void> serve_model(RouteCall& call) {
    if (!call.state.model) {
        call.exchange.respond(error_response(*call.state.unavailable()));
        co_return;
    }
    if (call.tail != call.state.model->name) {
        call.exchange.respond(error_response(
            {404, "model_not_found",
             "this server serves " + call.state.model->name + " and no other model", "model"}));
        co_return;
    }
    respond_json(call.exchange, model_object(call.state));
}

asio::awaitable<void> serve_metrics(RouteCall& call) {
    ServerState& state = call.state;
    HttpResponse response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    const EngineDescription description =
        state.engine ? state.engine->description() : EngineDescription{};
    const EngineStatus status = state.engine ? state.engine->status() : EngineStatus{};
    response.body =
        state.metrics.render(description, status, state.model ? state.model->name : std::string());
    call.exchange.respond(std::move(response));
    co_return;
}

asio::awaitable<void> serve_status(RouteCall& call) {
    if (!call.state.engine) {
        call.exchange.respond(error_response(*call.state.unavailable()));
        co_return;
    }
    const EngineStatus status = call.state.engine->status();
    respond_json(call.exchange, {{"running", status.running},
                                 {"waiting", status.waiting},
                                 {"reprefill_pending", status.reprefill_pending},
                                 {"kv_tokens_free", status.kv_tokens_free},
                                 {"kv_tokens_total", status.kv_tokens_total},
                                 {"checkpoints", status.checkpoints},
                                 {"prefill_tok_s", rounded(status.prefill_tokens_per_second)},
                                 {"decode_tok_s", rounded(status.decode_tokens_per_second)},
                                 {"steps", status.steps},
                                 {"alive", status.alive},
                                 {"draining", call.state.draining},
                                 {"ranks", Json::array()}});
}

asio::awaitable<void> serve_version(RouteCall& call) {
    respond_json(call.exchange, {{"version", call.state.options.version}, {"server", "percheron"}});
    co_return;
}

}  // namespace percheron::server
