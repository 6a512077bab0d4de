#include "tools/top_history.h"

#include <utility>

namespace percheron::tools {
namespace {

constexpr double minute = 60;
constexpr std::size_t most_rates = 200;  // more than any sparkline shows

void add_rate(std::vector<double>& rates, double rate) {
    if (rates.size() == most_rates) rates.erase(rates.begin());
    rates.push_back(rate);
}

}  // namespace

void TopHistory::add(ServerSample sample, double seconds) {
    // Another run of the server counts from zero again.
    const bool restarted = state_.now && sample.uptime_seconds < state_.now->uptime_seconds;
    if (restarted) minute_.clear();
    minute_.push_back({seconds, sample});
    minute_.back().sample.requests.clear();
    while (minute_.front().seconds < seconds - minute)
        minute_.pop_front();
    add_rate(state_.prefill_rates, sample.prefill_per_second);
    add_rate(state_.decode_rates, sample.decode_per_second);
    state_.earlier = minute_.front().sample;
    state_.now = std::move(sample);
    state_.trouble.clear();
}

}  // namespace percheron::tools
