// What a server says of itself at one moment: the figures that `percheron top` shows, read from
// /metrics and /status.  docs/WATCHING.md defines each.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"
#include "tools/metrics_text.h"

namespace percheron::tools {

// A request that runs or waits.
struct RequestSample {
    std::string id;
    std::string route;
    std::string phase;
    double prompt_tokens = 0;
    double cached_tokens = 0;
    double generated_tokens = 0;
    double choices = 0;
    double seconds = 0;
    double tokens_per_second = 0;
    double drafted = 0;
    double accepted = 0;
};

struct ServerSample {
    static constexpr std::size_t most_requests = 1000;

    std::string model;
    double context_tokens = 0;
    double uptime_seconds = 0;
    bool draining = false;

    double running = 0;
    double waiting = 0;
    double prefill_per_second = 0;
    double decode_per_second = 0;
    double kv_used = 0;
    double kv_total = 0;
    double checkpoints = 0;
    double resident_bytes = 0;

    // Counted since the server's start.
    double cache_hits = 0;
    double cache_queries = 0;
    double accepted = 0;
    double drafted = 0;
    double images_encoded = 0;
    double images_reused = 0;
    double loops = 0;
    double disconnects = 0;
    double preemptions = 0;
    std::vector<std::pair<std::string, double>> replies;  // (status, count)
    HistogramSample first_token;
    HistogramSample between_tokens;
    HistogramSample whole_request;

    std::vector<RequestSample> requests;  // oldest first
    double requests_left_out = 0;
};

// Errors: corrupt (not Prometheus text, not JSON); unsupported (another kind of server).
Result<ServerSample> read_sample(std::string_view metrics, std::string_view status);

// part / whole, nothing when there is no whole.
std::optional<double> share_of(double part, double whole);

}  // namespace percheron::tools
