#include "first_token.h"

#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <utility>

namespace percheron::apps {
namespace {

using Clock = std::chrono::steady_clock;

// Waits for a reply of one token.
class OneToken final : public EngineEventSink {
  public:
    void on_events(EngineEvents& events) override {
        for (const EngineEvents::Tokens& run : events.runs) {
            first_.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
            first_.token = events.tokens[run.first];
        }
        for (EngineEvents::Finished& finished : events.finished) {
            first_.cached = finished.statistics.cached_tokens;
            // Whoever waits may be gone, and this with it, before set_value() returns.
            const auto end = end_;
            if (finished.error) {
                end->set_value(std::move(*finished.error));
            } else {
                end->set_value(first_);
            }
            return;
        }
    }
    Result<FirstToken> wait() { return end_->get_future().get(); }

  private:
    Clock::time_point start_ = Clock::now();
    FirstToken first_;
    std::shared_ptr<std::promise<Result<FirstToken>>> end_ =
        std::make_shared<std::promise<Result<FirstToken>>>();
};

}  // namespace

Result<FirstToken> first_token_of(Engine& engine, const std::vector<TokenId>& prompt) {
    GenerationRequest request;
    request.prompt = prompt;
    request.sampling.temperature = 0;
    request.max_tokens = 1;
    OneToken sink;
    PERCHERON_ASSIGN([[maybe_unused]] const RequestId id, engine.submit(std::move(request), sink));
    return sink.wait();
}

std::vector<TokenId> ordinary_prompt(const Tokenizer& tokenizer, std::uint32_t tokens) {
    std::mt19937 random(1);
    std::vector<TokenId> prompt;
    while (prompt.size() < tokens) {
        const auto token = static_cast<TokenId>(random() % tokenizer.size());
        if (!tokenizer.is_added(token)) prompt.push_back(token);
    }
    return prompt;
}

}  // namespace percheron::apps
