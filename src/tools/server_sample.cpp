#include "tools/server_sample.h"

#include <cmath>

#include <nlohmann/json.hpp>

namespace percheron::tools {
namespace {

using SortedJson = nlohmann::json;

// What every server of this version has: without it the other end is something else.
constexpr const char* mark = "percheron:uptime_seconds";

double number(const SortedJson& object, const char* name) {
    const auto found = object.find(name);
    const double value = found != object.end() && found->is_number() ? found->get<double>() : 0;
    return std::isfinite(value) ? value : 0;
}

std::string text(const SortedJson& object, const char* name) {
    const auto found = object.find(name);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

RequestSample read_request(const SortedJson& row) {
    RequestSample request;
    request.id = text(row, "id");
    request.route = text(row, "route");
    request.phase = text(row, "phase");
    request.prompt_tokens = number(row, "prompt_tokens");
    request.cached_tokens = number(row, "cached_tokens");
    request.generated_tokens = number(row, "generated_tokens");
    request.choices = number(row, "choices");
    request.seconds = number(row, "seconds");
    request.tokens_per_second = number(row, "tok_s");
    request.drafted = number(row, "drafted");
    request.accepted = number(row, "accepted");
    return request;
}

void read_status(const SortedJson& status, ServerSample& sample) {
    sample.model = text(status, "model");
    sample.context_tokens = number(status, "context_tokens");
    sample.draining = status.value("draining", SortedJson(false)) == SortedJson(true);
    sample.requests_left_out = number(status, "requests_left_out");
    const SortedJson rows = status.value("requests", SortedJson::array());
    if (!rows.is_array()) return;
    for (const SortedJson& row : rows) {
        if (sample.requests.size() == ServerSample::most_requests) return;
        if (row.is_object()) sample.requests.push_back(read_request(row));
    }
}

}  // namespace

std::optional<double> share_of(double part, double whole) {
    if (!(whole > 0)) return std::nullopt;
    return part / whole;
}

Result<ServerSample> read_sample(std::string_view metrics_text, std::string_view status_text) {
    auto parsed = MetricsText::parse(metrics_text);
    if (!parsed.ok()) return parsed.error().in("/metrics");
    const MetricsText& metrics = *parsed;
    if (!metrics.value(mark)) {
        return Error(ErrorCode::unsupported,
                     std::string("/metrics has no ") + mark +
                         ": this is not percheron serve, or an older one; update the server");
    }
    const SortedJson status = SortedJson::parse(status_text, nullptr, false);
    if (!status.is_object()) return Error(ErrorCode::corrupt, "/status is not a JSON object");

    const auto figure = [&](const char* name) {
        const double value = metrics.value(std::string("percheron:") + name).value_or(0);
        return std::isfinite(value) ? value : 0;
    };
    ServerSample sample;
    sample.uptime_seconds = figure("uptime_seconds");
    sample.running = figure("num_requests_running");
    sample.waiting = figure("num_requests_waiting");
    sample.prefill_per_second = figure("prefill_tokens_per_second");
    sample.decode_per_second = figure("decode_tokens_per_second");
    sample.kv_used = figure("kv_tokens_used");
    sample.kv_total = figure("kv_tokens_total");
    sample.checkpoints = figure("checkpoints");
    sample.resident_bytes = figure("resident_memory_bytes");
    sample.cache_hits = figure("prefix_cache_hits_total");
    sample.cache_queries = figure("prefix_cache_queries_total");
    sample.accepted = figure("spec_decode_num_accepted_tokens_total");
    sample.drafted = figure("spec_decode_num_draft_tokens_total");
    sample.images_encoded = figure("images_encoded_total");
    sample.images_reused = figure("images_reused_total");
    sample.loops = figure("loops_total");
    sample.disconnects = figure("disconnects_total");
    sample.preemptions = figure("preemptions_total");
    sample.replies = metrics.by_label("percheron:http_replies_total", "status");
    sample.first_token = metrics.histogram("percheron:time_to_first_token_seconds");
    sample.between_tokens = metrics.histogram("percheron:inter_token_latency_seconds");
    sample.whole_request = metrics.histogram("percheron:e2e_request_latency_seconds");
    read_status(status, sample);
    return sample;
}

}  // namespace percheron::tools
