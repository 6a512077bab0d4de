#include "server/rates.h"

namespace percheron::server {
namespace {

constexpr int period_seconds = 10;

double share(std::uint64_t part, std::uint64_t whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

}  // namespace

Rates::Counters Rates::counters() const {
    const Metrics& metrics = state_.metrics;
    return {metrics.prompt_tokens, metrics.generation_tokens, metrics.cache_queries,
            metrics.cache_hits,    metrics.draft_tokens,      metrics.accepted_tokens};
}

void Rates::every_second() {
    if (!state_.engine || ++seconds_ < period_seconds) return;
    seconds_ = 0;
    const Counters now = counters();
    const Counters before = std::exchange(before_, now);
    const std::uint64_t prompt = now.prompt - before.prompt;
    const std::uint64_t generated = now.generated - before.generated;
    const EngineStatus status = state_.engine->status();
    if (prompt == 0 && generated == 0 && status.running == 0 && status.waiting == 0) return;
    state_.log_line(
        LogLevel::info, "rates",
        {{"running", std::uint64_t{status.running}},
         {"waiting", std::uint64_t{status.waiting}},
         {"prefill_tok_s", static_cast<double>(prompt) / period_seconds},
         {"decode_tok_s", static_cast<double>(generated) / period_seconds},
         {"acceptance", share(now.accepted - before.accepted, now.drafted - before.drafted)},
         {"cache_hits", share(now.hits - before.hits, now.queries - before.queries)},
         {"kv_used",
          share(status.kv_tokens_total - status.kv_tokens_free, status.kv_tokens_total)}});
}

}  // namespace percheron::server
