// One accepted request on its way through the engine: parses the tokens of its choices, stops them
// where the text says so, counts, and tells its writer.
//
// Lives until the engine has ended every choice, also when the client is gone before.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/engine_link.h"
#include "server/metrics.h"
#include "server/reply_writer.h"
#include "text/reply_stream.h"
#include "text/tokenizer.h"
#include "text/tool_schema.h"

namespace percheron::server {

// What one choice had come to when it ended; for the request log.
struct EndedChoice {
    std::string finish;
    std::string stop_reason;
    std::uint64_t seed = 0;
    ReplySummary summary;
    ChoiceStatistics statistics;
    std::vector<TokenId> ids;
};

struct ReplySetup {
    std::string id;     // of the reply
    std::string route;  // that the request came by
    std::uint32_t choices = 1;
    std::uint32_t prompt_tokens = 0;
    std::uint32_t image_tokens = 0;  // of the prompt's
    bool use_cache = true;
    bool token_details = false;  // pieces carry their tokens
    bool one_tool_call = false;  // the reply ends after its first call
    ReplyOptions stream_options;
    std::shared_ptr<const ToolSchemas> tools;
    std::chrono::steady_clock::time_point received;
    std::chrono::seconds keep_alive{0};
};

class Reply final : public ReplyReceiver, public std::enable_shared_from_this<Reply> {
  public:
    Reply(ReplySetup setup, const Tokenizer& tokenizer, EngineLink& link, Metrics& metrics);

    // Called once, after every choice has ended: with the choices, after the writer.
    using EndCallback = std::function<void(const Reply&)>;

    // Hands the request to the engine.  `writer` must stay until `ended` was called or detach().
    Status start(GenerationRequest request, ReplyWriter& writer, EndCallback ended);
    // The client is gone: nothing is written any more and the engine is told to stop.
    void detach();
    // The writer wants no more, though its client is there: the engine is told to stop.
    void abandon();

    bool ended() const { return open_choices_ == 0; }
    const ReplySetup& setup() const { return setup_; }
    const std::vector<EndedChoice>& choices() const { return ended_choices_; }
    const ReplyUsage& usage() const { return usage_; }
    bool client_left() const { return client_left_; }
    std::chrono::steady_clock::time_point first_token() const { return first_token_; }

    void on_admitted(const EngineEvents::Admitted& admitted, Clock::time_point now) override;
    void on_progress(const EngineEvents::Progress& progress, Clock::time_point now) override;
    void on_draft(std::uint32_t choice, std::uint32_t drafted, std::uint32_t accepted) override;
    void on_prompt_scores(std::span<const EngineEvents::Logprobs> scores) override;
    void on_tokens(std::uint32_t choice, std::span<const TokenId> ids,
                   std::span<const EngineEvents::Logprobs> logprobs,
                   Clock::time_point now) override;
    void on_finished(const EngineEvents::Finished& finished, Clock::time_point now) override;
    void on_tick(Clock::time_point now) override;
    LiveRequest live(Clock::time_point now) const override;

  private:
    struct Choice {
        ReplyStream stream;
        std::uint64_t seed = 0;
        bool stopped = false;  // by text; what the engine still sends is forgotten
        bool one_call_done = false;
        std::vector<TokenDetail> unclaimed;  // tokens that no piece has taken yet
        std::vector<TokenId> ids;
        ReplySummary counted;     // what is already in usage_
        ChoiceStatistics drafts;  // what is already in the metrics
        Clock::time_point latest;
    };

    void take_tokens(Choice& choice, std::span<const TokenId> ids,
                     std::span<const EngineEvents::Logprobs> logprobs);
    void take_detailed(Choice& choice, std::span<const TokenId> ids,
                       std::span<const EngineEvents::Logprobs> logprobs);
    void collect(Choice& choice);
    void count(Choice& choice);
    void stop_choice(std::uint32_t index);

    ReplySetup setup_;
    const Tokenizer& tokenizer_;
    EngineLink& link_;
    Metrics& metrics_;
    ReplyWriter* writer_ = nullptr;
    EndCallback ended_;
    RequestId request_{};

    std::vector<Choice> choices_;
    std::vector<EndedChoice> ended_choices_;
    std::uint32_t open_choices_ = 0;
    bool begun_ = false;
    bool client_left_ = false;
    ReplyUsage usage_;
    Clock::time_point first_token_{};
    std::uint32_t first_tokens_ = 0;  // that came with the first one
    Clock::time_point latest_sign_of_life_;

    // Kept from step to step for their memory.
    std::vector<ReplyEvent> events_;
    std::vector<ReplyPiece> pieces_;
};

}  // namespace percheron::server
