// Counters and histograms in Prometheus text: the names that dashboards and harnesses know under
// `vllm:` and again under `percheron:`, what only this server has under `percheron:` alone.
// Everything is there at zero from the first scrape.  I/O thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "percheron/engine.h"

namespace percheron::server {

class Histogram {
  public:
    explicit Histogram(std::vector<double> bounds)
        : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

    void observe(double value, std::uint64_t times = 1);
    void render(std::string& text, std::string_view name, std::string_view labels) const;

  private:
    std::vector<double> bounds_;
    std::vector<std::uint64_t> counts_;  // per bucket, not cumulative
    double sum_ = 0;
    std::uint64_t count_ = 0;
};

// What is known at the moment of a scrape and counted elsewhere.
struct MetricsMoment {
    EngineDescription engine;
    EngineStatus status;
    std::string model_name;
    double uptime_seconds = 0;
    std::uint64_t resident_bytes = 0;
    std::uint64_t request_bytes = 0;  // of requests, held now (held_bytes.h)
    std::uint64_t request_bytes_limit = 0;
};

struct Metrics {
    static constexpr std::size_t draft_positions = 16;
    static constexpr std::array<std::string_view, 5> finished_reasons{
        "stop", "length", "tool_calls", "abort", "error"};

    std::uint64_t prompt_tokens = 0;
    std::uint64_t generation_tokens = 0;
    std::uint64_t cache_queries = 0;  // prompt tokens looked up in the prefix cache
    std::uint64_t cache_hits = 0;     // of those, found
    std::uint64_t drafts = 0;
    std::uint64_t draft_tokens = 0;
    std::uint64_t accepted_tokens = 0;
    std::array<std::uint64_t, draft_positions> accepted_per_position{};
    std::array<std::uint64_t, finished_reasons.size()> finished{};
    // Ends that a user should hear of, by stop_reason.
    std::uint64_t loops = 0;
    std::uint64_t deadlines = 0;
    std::uint64_t disconnects = 0;
    std::map<int, std::uint64_t> http_replies;  // by status

    Histogram time_to_first_token{{0.001, 0.005, 0.01, 0.02, 0.04, 0.06,  0.08,
                                   0.1,   0.25,  0.5,  0.75, 1.0,  2.5,   5.0,
                                   7.5,   10.0,  20.0, 40.0, 80.0, 160.0, 640.0}};
    Histogram inter_token_latency{{0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075,
                                   0.1,   0.15,  0.2,   0.3,  0.4,   0.5,  0.75,
                                   1.0,   2.5,   5.0,   10.0, 20.0,  40.0, 80.0}};
    Histogram request_latency{{0.005, 0.02, 0.05,  0.1,   0.2,   0.3,   0.5,    0.8,   1.0,
                               1.5,   2.0,  2.5,   5.0,   10.0,  15.0,  20.0,   30.0,  40.0,
                               50.0,  60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0}};
    Histogram queue_time{
        {0.001, 0.01, 0.1, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0}};

    Metrics();

    void count_finished(std::string_view reason);
    void count_round(std::uint32_t drafted, std::uint32_t accepted);
    // What a choice's drafts have come to since `before`.
    void count_draft(const ChoiceStatistics& now, const ChoiceStatistics& before);

    std::string render(const MetricsMoment& moment) const;
};

}  // namespace percheron::server
