// GET routes that say how things are.
#include <chrono>
#include <cmath>
#include <fstream>

#include <unistd.h>

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

constexpr std::size_t most_requests_shown = 100;

std::string_view name_of(LiveRequest::Phase phase) {
    switch (phase) {
        case LiveRequest::Phase::queued:
            return "queued";
        case LiveRequest::Phase::prefill:
            return "prefill";
        case LiveRequest::Phase::thinking:
            return "thinking";
        case LiveRequest::Phase::answer:
            return "answer";
    }
    return "";
}

double uptime_seconds(const ServerState& state) {
    return std::chrono::duration<double>(Clock::now() - state.started).count();
}

// Of this process; 0 where the system does not tell.
std::uint64_t resident_bytes() {
    std::ifstream file("/proc/self/statm");
    std::uint64_t mapped_pages = 0;
    std::uint64_t resident_pages = 0;
    file >> mapped_pages >> resident_pages;
    return resident_pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

double rounded(double value) {
    return std::round(value * 100) / 100;
}

Json request_rows(const LiveRequests& requests) {
    Json rows = Json::array();
    for (const LiveRequest& request : requests.oldest) {
        rows.push_back({{"id", request.id},
                        {"route", request.route},
                        {"phase", name_of(request.phase)},
                        {"prompt_tokens", request.prompt_tokens},
                        {"cached_tokens", request.cached_tokens},
                        {"generated_tokens", request.generated_tokens},
                        {"choices", request.choices},
                        {"seconds", rounded(request.seconds)},
                        {"tok_s", rounded(request.tokens_per_second)},
                        {"rounds", request.rounds},
                        {"drafted", request.drafted},
                        {"accepted", request.accepted}});
    }
    return rows;
}

// Null where the prefix cache has no files.
Json prefix_disk(const PrefixDiskStatus& disk) {
    if (!disk.on) return nullptr;
    return {{"entries", disk.entries},
            {"bytes", disk.bytes},
            {"limit_bytes", disk.limit_bytes},
            {"queued_bytes", disk.queued_bytes},
            {"written", disk.bytes_written},
            {"restored", disk.bytes_restored},
            {"restores", disk.restores},
            {"evictions", disk.evictions},
            {"refused", disk.refused},
            {"dropped", disk.dropped},
            {"paused", disk.paused}};
}

Json rank_rows(const std::vector<RankStatus>& ranks) {
    Json rows = Json::array();
    for (const RankStatus& rank : ranks) {
        rows.push_back({{"rank", rank.rank},
                        {"pid", rank.process},
                        {"up", rank.up},
                        {"stage", rank.stage},
                        {"restarts", rank.restarts},
                        {"last_end", rank.last_end}});
    }
    return rows;
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
    MetricsMoment moment;
    if (state.engine) {
        moment.engine = state.engine->description();
        moment.status = state.engine->status();
        moment.model_name = state.model->name;
    }
    moment.uptime_seconds = uptime_seconds(state);
    moment.resident_bytes = resident_bytes();
    moment.request_bytes = state.held.total();
    moment.request_bytes_limit = state.held.limit();
    response.body = state.metrics.render(moment);
    call.exchange.respond(std::move(response));
    co_return;
}

asio::awaitable<void> serve_status(RouteCall& call) {
    const ServerState& state = call.state;
    if (!state.engine) {
        call.exchange.respond(error_response(*state.unavailable()));
        co_return;
    }
    const EngineStatus status = state.engine->status();
    const LiveRequests requests = state.link.live_requests(most_requests_shown);
    respond_json(call.exchange, {{"model", state.model->name},
                                 {"context_tokens", state.engine->description().context_tokens},
                                 {"uptime_seconds", rounded(uptime_seconds(state))},
                                 {"running", status.running},
                                 {"waiting", status.waiting},
                                 {"reprefill_pending", status.reprefill_pending},
                                 {"kv_tokens_free", status.kv_tokens_free},
                                 {"kv_tokens_total", status.kv_tokens_total},
                                 {"kv_dtype", state.engine->description().kv_dtype},
                                 {"checkpoints", status.checkpoints},
                                 {"prefill_tok_s", rounded(status.prefill_tokens_per_second)},
                                 {"decode_tok_s", rounded(status.decode_tokens_per_second)},
                                 {"prefix_disk", prefix_disk(status.prefix_disk)},
                                 {"steps", status.steps},
                                 {"alive", status.alive},
                                 {"draining", state.draining},
                                 {"requests", request_rows(requests)},
                                 {"requests_left_out", requests.left_out},
                                 {"ranks", rank_rows(status.ranks)}});
}

asio::awaitable<void> serve_version(RouteCall& call) {
    respond_json(call.exchange, {{"version", call.state.options.version}, {"server", "percheron"}});
    co_return;
}

}  // namespace percheron::server
