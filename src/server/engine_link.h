// Between the engine's thread and the I/O thread: one wake-up a step, however many requests run.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "percheron/engine.h"

#include "server/asio.h"
#include "server/live_request.h"

namespace percheron::server {

// Whoever waits for the events of one request.  Called on the I/O thread.
class ReplyReceiver {
  public:
    using Clock = std::chrono::steady_clock;

    virtual ~ReplyReceiver() = default;
    virtual void on_admitted(const EngineEvents::Admitted& admitted, Clock::time_point now) = 0;
    virtual void on_progress(const EngineEvents::Progress& progress, Clock::time_point now) = 0;
    // A round of speculation, before the tokens it gave.
    virtual void on_draft(std::uint32_t choice, std::uint32_t drafted, std::uint32_t accepted) = 0;
    // Of the prompt's tokens, in order from the second on.
    virtual void on_prompt_scores(std::span<const EngineEvents::Logprobs> scores) = 0;
    // `logprobs` is empty or has an entry a token.
    virtual void on_tokens(std::uint32_t choice, std::span<const TokenId> ids,
                           std::span<const EngineEvents::Logprobs> logprobs,
                           Clock::time_point now) = 0;
    virtual void on_finished(const EngineEvents::Finished& finished, Clock::time_point now) = 0;
    // About once a second while the request is in the engine.
    virtual void on_tick(Clock::time_point now) = 0;
    virtual LiveRequest live(Clock::time_point now) const = 0;
};

// All members but on_events() and congested() belong to the I/O thread.
class EngineLink final : public EngineEventSink {
  public:
    explicit EngineLink(asio::any_io_executor io) : io_(std::move(io)) {}

    void attach(Engine& engine) { engine_ = &engine; }
    Engine* engine() const { return engine_; }

    Result<RequestId> submit(GenerationRequest request, std::shared_ptr<ReplyReceiver> receiver);
    void cancel(RequestId request, std::uint32_t choice = Engine::all_choices);
    void cancel_all();
    void tick();

    // Choices submitted and not ended.
    std::size_t in_flight() const { return in_flight_; }

    // The `most` oldest requests that the engine has not ended.
    LiveRequests live_requests(std::size_t most) const;

    void on_events(EngineEvents& events) override;
    bool congested() const override;

  private:
    struct Entry {
        std::shared_ptr<ReplyReceiver> receiver;
        std::uint32_t open_choices = 0;
        std::uint64_t number = 0;  // in the order of submission
    };

    void handle_one();
    void dispatch(EngineEvents& events);

    asio::any_io_executor io_;
    Engine* engine_ = nullptr;
    std::unordered_map<std::uint64_t, Entry> entries_;
    std::size_t in_flight_ = 0;
    std::uint64_t submitted_ = 0;

    std::mutex mutex_;
    std::deque<EngineEvents> arrived_;  // oldest first
    std::vector<EngineEvents> spare_;   // emptied, their memory kept
    bool wake_pending_ = false;
    std::atomic<std::size_t> unhandled_{0};  // tokens
};

}  // namespace percheron::server
