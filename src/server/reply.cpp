#include "server/reply.h"

#include <algorithm>

namespace percheron::server {
namespace {

struct EndNames {
    std::string_view finish_reason;
    std::string_view stop_reason;
};

EndNames names_of_end(const ReplySummary& summary, bool one_call_done, FinishReason reason) {
    if (one_call_done) return {"tool_calls", "tool_calls"};
    if (!summary.stop_string.empty()) return {"stop", "stop_string"};
    if (summary.stop_token_seen) reason = FinishReason::stop_token;
    switch (reason) {
        case FinishReason::max_tokens:
            return {"length", "max_tokens"};
        case FinishReason::context:
            return {"length", "context"};
        case FinishReason::deadline:
            return {"length", "deadline"};
        case FinishReason::loop:
            return {"stop", "loop"};
        default:
            break;
    }
    if (summary.only_complete_calls() && !summary.in_reasoning) return {"tool_calls", "tool_calls"};
    return {"stop", "eos"};
}

void add_round(ChoiceStatistics& drafts, std::uint32_t drafted, std::uint32_t accepted) {
    ++drafts.draft_rounds;
    drafts.drafted_tokens += drafted;
    drafts.accepted_tokens += accepted;
    auto& positions = drafts.accepted_per_position;
    positions.resize(std::max<std::size_t>(positions.size(), drafted));
    for (std::uint32_t i = 0; i < accepted; ++i)
        ++positions[i];
}

bool joins(const ReplyEvent& earlier, const ReplyEvent& later) {
    using Kind = ReplyEvent::Kind;
    return earlier.kind == later.kind && earlier.tool_index == later.tool_index &&
           (later.kind == Kind::reasoning || later.kind == Kind::content ||
            later.kind == Kind::tool_arguments);
}

}  // namespace

Reply::Reply(ReplySetup setup, const Tokenizer& tokenizer, EngineLink& link, Metrics& metrics)
    : setup_(std::move(setup)),
      tokenizer_(tokenizer),
      link_(link),
      metrics_(metrics),
      latest_sign_of_life_(setup_.received) {
    usage_.prompt_tokens = setup_.prompt_tokens;
    usage_.image_tokens = setup_.image_tokens;
    for (std::uint32_t index = 0; index < setup_.choices; ++index) {
        ReplyOptions options = setup_.stream_options;
        if (index > 0) options.call_id_prefix += std::to_string(index) + "_";
        choices_.push_back({ReplyStream(tokenizer_, *setup_.tools, std::move(options)),
                            0,
                            false,
                            false,
                            {},
                            {},
                            {},
                            {},
                            {}});
    }
    ended_choices_.resize(setup_.choices);
}

Status Reply::start(GenerationRequest request, ReplyWriter& writer, EndCallback ended) {
    writer_ = &writer;
    ended_ = std::move(ended);
    auto id = link_.submit(std::move(request), shared_from_this());
    if (!id.ok()) return id.error();
    request_ = *id;
    open_choices_ = setup_.choices;
    return {};
}

void Reply::detach() {
    if (ended()) return;
    writer_ = nullptr;
    client_left_ = true;
    link_.cancel(request_);
}

void Reply::abandon() {
    if (ended()) return;
    writer_ = nullptr;
    link_.cancel(request_);
}

void Reply::on_prompt_scores(std::span<const EngineEvents::Logprobs> scores) {
    if (writer_ != nullptr) writer_->prompt_scores(0, scores);
}

void Reply::on_admitted(const EngineEvents::Admitted& admitted, Clock::time_point now) {
    choices_[admitted.choice].seed = admitted.seed;
    latest_sign_of_life_ = now;
    if (begun_) return;
    begun_ = true;
    usage_.cached_tokens = admitted.cached_tokens;
    metrics_.prompt_tokens += setup_.prompt_tokens;
    if (setup_.use_cache) {
        metrics_.cache_queries += setup_.prompt_tokens;
        metrics_.cache_hits += admitted.cached_tokens;
    }
    if (writer_ != nullptr) writer_->begin();
}

void Reply::on_progress(const EngineEvents::Progress& progress, Clock::time_point now) {
    latest_sign_of_life_ = now;
    const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(now - setup_.received);
    if (writer_ != nullptr) {
        writer_->progress({progress.total, progress.cached, progress.done,
                           static_cast<std::uint64_t>(time.count())});
    }
}

void Reply::on_draft(std::uint32_t index, std::uint32_t drafted, std::uint32_t accepted) {
    add_round(choices_[index].drafts, drafted, accepted);
    metrics_.count_round(drafted, accepted);
}

void Reply::on_tokens(std::uint32_t index, std::span<const TokenId> ids,
                      std::span<const EngineEvents::Logprobs> logprobs, Clock::time_point now) {
    Choice& choice = choices_[index];
    if (choice.stopped || client_left_) return;
    const auto seconds = [](Clock::duration time) {
        return std::chrono::duration<double>(time).count();
    };
    if (first_token_ == Clock::time_point{}) {
        first_token_ = now;
        metrics_.time_to_first_token.observe(seconds(now - setup_.received));
    }
    if (choice.latest != Clock::time_point{}) {
        const auto count = static_cast<double>(ids.size());
        metrics_.inter_token_latency.observe(seconds(now - choice.latest) / count, ids.size());
    }
    choice.latest = latest_sign_of_life_ = now;

    take_tokens(choice, ids, logprobs);
    if (first_token_ == now) first_tokens_ = usage_.completion_tokens;
    if (!pieces_.empty() && writer_ != nullptr) writer_->pieces(index, pieces_, usage_);
    if (choice.stopped) link_.cancel(request_, index);
}

// Fills pieces_ with what the tokens add.
void Reply::take_tokens(Choice& choice, std::span<const TokenId> ids,
                        std::span<const EngineEvents::Logprobs> logprobs) {
    pieces_.clear();
    // With details or with a limit on calls each token is looked at by itself.
    if (setup_.token_details || setup_.one_tool_call) {
        take_detailed(choice, ids, logprobs);
    } else {
        events_.clear();
        const ReplyStream::Step step = choice.stream.push(ids, events_);
        choice.ids.insert(choice.ids.end(), ids.begin(),
                          ids.begin() + static_cast<std::ptrdiff_t>(step.consumed));
        choice.stopped = step.stop;
        collect(choice);
    }
    count(choice);
}

void Reply::take_detailed(Choice& choice, std::span<const TokenId> ids,
                          std::span<const EngineEvents::Logprobs> logprobs) {
    for (std::size_t i = 0; i < ids.size() && !choice.stopped; ++i) {
        events_.clear();
        const ReplyStream::Step step = choice.stream.push(ids.subspan(i, 1), events_);
        choice.stopped = step.stop;
        if (step.consumed > 0) {
            choice.ids.push_back(ids[i]);
            if (setup_.token_details) {
                TokenDetail detail{ids[i], std::nullopt};
                if (!logprobs.empty()) detail.logprobs = logprobs[i];
                choice.unclaimed.push_back(std::move(detail));
            }
        }
        collect(choice);
        if (setup_.one_tool_call && choice.stream.summary().complete_tool_calls > 0) {
            choice.one_call_done = choice.stopped = true;
        }
    }
}

// Moves events_ behind pieces_; the first that shows text takes the tokens that wait.
void Reply::collect(Choice& choice) {
    for (ReplyEvent& event : events_) {
        if (event.kind == ReplyEvent::Kind::tool_end) continue;
        if (pieces_.empty() || !joins(pieces_.back().event, event)) {
            pieces_.push_back({std::move(event), {}});
        } else {
            pieces_.back().event.text += event.text;
        }
        auto& tokens = pieces_.back().tokens;
        tokens.insert(tokens.end(), std::make_move_iterator(choice.unclaimed.begin()),
                      std::make_move_iterator(choice.unclaimed.end()));
        choice.unclaimed.clear();
    }
}

void Reply::count(Choice& choice) {
    const ReplySummary& summary = choice.stream.summary();
    const std::uint32_t fresh = summary.tokens - choice.counted.tokens;
    usage_.completion_tokens += fresh;
    usage_.reasoning_tokens += summary.reasoning_tokens - choice.counted.reasoning_tokens;
    metrics_.generation_tokens += fresh;
    choice.counted.tokens = summary.tokens;
    choice.counted.reasoning_tokens = summary.reasoning_tokens;
}

void Reply::on_finished(const EngineEvents::Finished& finished, Clock::time_point now) {
    Choice& choice = choices_[finished.choice];
    pieces_.clear();
    events_.clear();
    const bool stopped = choice.stopped || finished.reason == FinishReason::stop_token;
    choice.stream.finish(stopped ? ReplyStream::End::stopped : ReplyStream::End::cut, events_);
    collect(choice);
    count(choice);

    const ChoiceStatistics& statistics = finished.statistics;
    add_draft(usage_.draft, statistics);
    metrics_.count_draft(statistics, choice.drafts);
    choice.drafts = statistics;

    const ReplySummary& summary = choice.stream.summary();
    EndNames names = names_of_end(summary, choice.one_call_done, finished.reason);
    const bool failed = finished.reason == FinishReason::failed;
    const bool cancelled = finished.reason == FinishReason::cancelled && !choice.stopped;
    const ApiError failure =
        failed ? error_of_engine(finished.error.value_or(
                     Error(ErrorCode::unavailable, "the engine gave this reply up")))
               : ApiError{503, "shutting_down", "the server is shutting down", ""};
    if (failed) names = {"error", failure.code};
    if (cancelled) names = {"abort", client_left_ ? "client_closed" : "cancelled"};
    metrics_.count_finished(names.finish_reason);
    if (finished.reason == FinishReason::loop) ++metrics_.loops;
    if (finished.reason == FinishReason::deadline) ++metrics_.deadlines;

    EndedChoice& ended = ended_choices_[finished.choice];
    ended = {std::string(names.finish_reason),
             std::string(names.stop_reason),
             choice.seed,
             summary,
             statistics,
             std::move(choice.ids)};
    --open_choices_;

    if (writer_ != nullptr && !failed && !cancelled) {
        if (!pieces_.empty()) writer_->pieces(finished.choice, pieces_, usage_);
        const ChoiceEnd end{names.finish_reason, names.stop_reason, summary.stop_string,
                            choice.seed, std::move(choice.unclaimed)};
        writer_->end_choice(finished.choice, end, usage_);
        if (open_choices_ == 0) writer_->end(usage_);
    } else if (writer_ != nullptr) {
        std::exchange(writer_, nullptr)->fail(failure);
        if (open_choices_ > 0) link_.cancel(request_);
    }
    if (open_choices_ == 0) {
        metrics_.request_latency.observe(
            std::chrono::duration<double>(now - setup_.received).count());
        // By the engine's clock: its events come when a step ends, and that may be the first one.
        const auto first = std::min_element(
            ended_choices_.begin(), ended_choices_.end(), [](const auto& one, const auto& other) {
                return one.statistics.queue_seconds < other.statistics.queue_seconds;
            });
        metrics_.queue_time.observe(first->statistics.queue_seconds);
        if (client_left_) ++metrics_.disconnects;
        if (ended_) std::exchange(ended_, nullptr)(*this);
    }
}

LiveRequest Reply::live(Clock::time_point now) const {
    using Phase = LiveRequest::Phase;
    LiveRequest live;
    live.id = setup_.id;
    live.route = setup_.route;
    live.prompt_tokens = usage_.prompt_tokens;
    live.cached_tokens = usage_.cached_tokens;
    live.generated_tokens = usage_.completion_tokens;
    live.choices = setup_.choices;
    live.seconds = std::chrono::duration<double>(now - setup_.received).count();
    bool thinking = false;
    for (std::size_t index = 0; index < choices_.size(); ++index) {
        const Choice& choice = choices_[index];
        const bool open = ended_choices_[index].finish.empty();
        thinking = thinking || (open && choice.stream.summary().in_reasoning);
        live.rounds += choice.drafts.draft_rounds;
        live.drafted += choice.drafts.drafted_tokens;
        live.accepted += choice.drafts.accepted_tokens;
    }
    if (first_token_ == Clock::time_point{}) {
        live.phase = begun_ ? Phase::prefill : Phase::queued;
        return live;
    }
    live.phase = thinking ? Phase::thinking : Phase::answer;
    const double time = std::chrono::duration<double>(now - first_token_).count();
    const std::uint32_t later = usage_.completion_tokens - first_tokens_;
    live.tokens_per_second = time > 0 ? later / time : 0.0;
    return live;
}

void Reply::on_tick(Clock::time_point now) {
    if (setup_.keep_alive.count() == 0 || writer_ == nullptr) return;
    if (now - latest_sign_of_life_ >= setup_.keep_alive) {
        latest_sign_of_life_ = now;
        writer_->keep_alive();
    }
}

}  // namespace percheron::server
