// A sink that keeps everything, checks the order of events, and lets a test wait.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "percheron/engine.h"

namespace percheron::engine::testing {

struct CollectedReply {
    std::optional<std::uint64_t> seed;  // set by its admission
    std::uint32_t cached = 0;
    std::vector<TokenId> tokens;
    std::vector<EngineEvents::Logprobs> logprobs;
    std::uint32_t drafted = 0;  // over its runs
    std::uint32_t accepted = 0;
    std::vector<EngineEvents::Logprobs> prompt_scores;  // of the first choice
    std::vector<EngineEvents::Progress> progress;       // the same
    std::optional<EngineEvents::Finished> finished;
};

class ReplyCollector final : public EngineEventSink {
  public:
    using Key = std::pair<std::uint64_t, std::uint32_t>;  // request, choice

    void on_events(EngineEvents& events) override {
        const std::lock_guard lock(mutex_);
        ++calls_;
        for (const EngineEvents::Admitted& admitted : events.admitted) {
            CollectedReply& reply = replies_[{to_int(admitted.request), admitted.choice}];
            blame(reply.seed.has_value(), "admitted twice");
            reply.seed = admitted.seed;
            reply.cached = admitted.cached_tokens;
        }
        for (const EngineEvents::Progress& progress : events.progress) {
            CollectedReply& reply = replies_[{to_int(progress.request), 0}];
            blame(!reply.seed, "progress before the admission");
            blame(!reply.tokens.empty(), "progress after the first token");
            blame(progress.cached != reply.cached, "progress with other cached tokens");
            blame(progress.done > progress.total, "more progress than there is");
            blame(!reply.progress.empty() && progress.done <= reply.progress.back().done,
                  "progress that does not rise");
            reply.progress.push_back(progress);
        }
        for (const EngineEvents::PromptScores& scores : events.prompt_scores) {
            CollectedReply& reply = replies_[{to_int(scores.request), 0}];
            blame(!reply.seed, "scores before the admission");
            blame(!reply.tokens.empty(), "scores after the first token");
            blame(scores.first != reply.prompt_scores.size() + 1, "scores with gaps");
            for (std::uint32_t i = 0; i < scores.count; ++i) {
                reply.prompt_scores.push_back(events.logprobs.at(scores.first_logprob + i));
            }
        }
        for (const EngineEvents::Tokens& run : events.runs) {
            CollectedReply& reply = replies_[{to_int(run.request), run.choice}];
            blame(!reply.seed, "tokens before the admission");
            blame(reply.finished.has_value(), "tokens after the end");
            reply.drafted += run.drafted;
            reply.accepted += run.accepted;
            for (std::uint32_t i = 0; i < run.count; ++i) {
                reply.tokens.push_back(events.tokens.at(run.first + i));
                if (run.has_logprobs) {
                    reply.logprobs.push_back(events.logprobs.at(run.first_logprob + i));
                }
            }
        }
        for (const EngineEvents::Finished& finished : events.finished) {
            CollectedReply& reply = replies_[{to_int(finished.request), finished.choice}];
            blame(!reply.seed && finished.reason != FinishReason::failed,
                  "an end before the admission");
            blame(reply.finished.has_value(), "finished twice");
            blame(finished.statistics.generated_tokens != reply.tokens.size(), "miscounted");
            blame((finished.reason == FinishReason::failed) != finished.error.has_value(),
                  "an error without failure or the other way round");
            blame(finished.statistics.cached_tokens != reply.cached, "cached tokens changed");
            if (finished.reason != FinishReason::failed) {
                blame(finished.statistics.drafted_tokens != reply.drafted ||
                          finished.statistics.accepted_tokens != reply.accepted,
                      "drafts miscounted");
            }
            reply.finished = finished;
            ++finished_;
        }
        changed_.notify_all();
    }

    // Blocks until `count` choices have finished.
    void wait_for(std::size_t count) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return finished_ >= count; });
    }
    // Blocks until `count` tokens have come, over all replies, or `ends` choices have finished.
    void wait_for_tokens(std::size_t count, std::size_t ends) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] {
            std::size_t tokens = 0;
            for (const auto& [key, reply] : replies_) {
                tokens += reply.tokens.size();
            }
            return tokens >= count || finished_ >= ends;
        });
    }
    CollectedReply reply(RequestId request, std::uint32_t choice = 0) const {
        const std::lock_guard lock(mutex_);
        const auto found = replies_.find({to_int(request), choice});
        return found == replies_.end() ? CollectedReply{} : found->second;
    }
    std::size_t finished() const {
        const std::lock_guard lock(mutex_);
        return finished_;
    }
    std::size_t calls() const {
        const std::lock_guard lock(mutex_);
        return calls_;
    }
    // What was wrong with the order of events; empty: nothing.
    std::string complaint() const {
        const std::lock_guard lock(mutex_);
        return complaint_;
    }

  private:
    void blame(bool wrong, const char* what) {
        if (wrong && complaint_.empty()) {
            complaint_ = what;
        }
    }

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::map<Key, CollectedReply> replies_;
    std::size_t finished_ = 0;
    std::size_t calls_ = 0;
    std::string complaint_;
};

}  // namespace percheron::engine::testing
