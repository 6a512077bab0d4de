#include "tools/bench_streams.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <random>
#include <unordered_map>

namespace percheron::tools {

namespace {

using Clock = std::chrono::steady_clock;

// Notes when the last stream got its first token, and what was generated from then on until the
// first stream ended.
class Stopwatch final : public EngineEventSink {
  public:
    explicit Stopwatch(std::uint32_t streams) : streams_(streams) {}

    void on_events(EngineEvents& events) override {
        const auto now = Clock::now();
        const std::lock_guard lock(mutex_);
        const bool all_decoding = started_.size() == streams_;
        for (const EngineEvents::Tokens& run : events.runs) {
            started_[to_int(run.request)] = true;
            if (all_decoding && finished_ == 0) {
                tokens_ += run.count;
                until_ = now;
            }
        }
        if (!all_decoding && started_.size() == streams_) {
            from_ = until_ = now;
        }
        for (EngineEvents::Finished& finished : events.finished) {
            ++finished_;
            if (finished.error) {
                failure_ = std::move(finished.error);
            }
        }
        changed_.notify_one();
    }

    void wait(std::uint32_t requests) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return finished_ == requests; });
    }
    Clock::time_point from() const { return from_; }
    double tokens_per_second() const {
        const double seconds = std::chrono::duration<double>(until_ - from_).count();
        return seconds > 0 ? static_cast<double>(tokens_) / seconds : 0.0;
    }
    const std::optional<Error>& failure() const { return failure_; }

  private:
    std::uint32_t streams_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::unordered_map<std::uint64_t, bool> started_;
    std::uint32_t finished_ = 0;
    std::uint64_t tokens_ = 0;
    Clock::time_point from_;
    Clock::time_point until_;
    std::optional<Error> failure_;
};

}  // namespace

Result<StreamsRun> run_streams(Engine& engine, std::uint32_t streams, std::uint32_t prompt_tokens,
                               std::uint32_t tokens, std::uint32_t ordinary_ids,
                               std::uint64_t seed) {
    std::mt19937_64 random(seed);
    Stopwatch stopwatch(streams);
    std::uint32_t accepted = 0;
    const auto start = Clock::now();
    std::optional<Error> refusal;
    for (std::uint32_t stream = 0; stream < streams && !refusal; ++stream) {
        GenerationRequest request;
        for (std::uint32_t i = 0; i < prompt_tokens; ++i) {
            request.prompt.push_back(TokenId(static_cast<int>(random() % ordinary_ids)));
        }
        request.sampling.temperature = 0;
        request.max_tokens = tokens;
        request.ignore_eos = true;
        const Result<RequestId> id = engine.submit(std::move(request), stopwatch);
        if (id.ok()) {
            ++accepted;
        } else {
            refusal = id.error();
        }
    }
    // The stopwatch lives until every accepted request has ended, also when one was refused.
    stopwatch.wait(accepted);
    if (refusal) {
        return *refusal;
    }
    if (stopwatch.failure()) {
        return *stopwatch.failure();
    }
    StreamsRun run;
    run.streams = streams;
    run.decode_tokens_per_second = stopwatch.tokens_per_second();
    run.prefill_tokens_per_second = static_cast<double>(streams) * prompt_tokens /
                                    std::chrono::duration<double>(stopwatch.from() - start).count();
    return run;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace percheron::tools
