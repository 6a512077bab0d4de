#include "replay/replay_engine.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>

#include "core/throughput.h"

namespace percheron {
namespace {

using Clock = std::chrono::steady_clock;

// What the sink has not yet handled is looked at again after this long.
constexpr std::chrono::microseconds congestion_pause{200};

// One choice of a request, from submit to its end.
struct Choice {
    RequestId request{};
    std::uint32_t index = 0;
    std::shared_ptr<const GenerationRequest> parameters;
    std::shared_ptr<const ReplayReply> reply;
    EngineEventSink* sink = nullptr;
    std::uint64_t seed = 0;
    std::uint32_t token_limit = 0;
    bool limited_by_context = false;

    bool admitted = false;
    bool cancelled = false;
    std::uint32_t next_step = 0;
    Clock::time_point submitted;
    Clock::time_point admitted_at;
    Clock::time_point first_step;
    Clock::time_point due;  // of the next step; max() when it hangs
    ChoiceStatistics statistics;
};

bool drafts(const Choice& choice) {
    return choice.reply->has_draft && choice.parameters->draft;
}

double seconds(Clock::duration duration) {
    return std::chrono::duration<double>(duration).count();
}

class ReplayEngine final : public Engine {
  public:
    ReplayEngine(ReplayScript script, EngineDescription description)
        : script_(std::move(script)), description_(std::move(description)) {
        status_.kv_tokens_total = status_.kv_tokens_free = description_.kv_tokens;
        thread_ = std::thread([this] { run(); });
    }

    ~ReplayEngine() override {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        changed_.notify_one();
        thread_.join();
    }

    const EngineDescription& description() const override { return description_; }

    EngineStatus status() const override {
        const std::lock_guard lock(mutex_);
        EngineStatus status = status_;
        const Clock::time_point now = Clock::now();
        status.prefill_tokens_per_second = prefilled_.per_second(now);
        status.decode_tokens_per_second = decoded_.per_second(now);
        status.waiting += static_cast<std::uint32_t>(arrivals_.size());
        return status;
    }

    Result<RequestId> submit(GenerationRequest request, EngineEventSink& sink) override;
    void cancel(RequestId request, std::uint32_t choice) override;

  private:
    void run();
    void take_arrivals();
    void take_cancellations();
    void admit(Clock::time_point now);
    void step(Clock::time_point now);
    bool step_choice(Choice& choice, Clock::time_point now);
    void tell_progress(const Choice& choice, std::uint32_t done);
    void emit_prompt_scores(const Choice& choice);
    void emit_tokens(Choice& choice, std::uint32_t first, std::uint32_t count);
    void finish(Choice& choice, FinishReason reason, Clock::time_point now);
    EngineEvents& events_of(EngineEventSink* sink);
    void deliver();
    bool congested() const;
    Clock::time_point next_wake() const;
    void publish();

    ReplayScript script_;
    EngineDescription description_;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::unique_ptr<Choice>> arrivals_;
    std::vector<std::pair<RequestId, std::uint32_t>> cancellations_;
    bool stopping_ = false;
    EngineStatus status_;
    Throughput prefilled_{Clock::now()};
    Throughput decoded_{Clock::now()};
    std::uint64_t next_request_ = 1;
    std::mt19937_64 seeds_{std::random_device{}()};

    // The engine thread's own.
    std::multimap<int, std::unique_ptr<Choice>, std::greater<>> waiting_;
    std::vector<std::unique_ptr<Choice>> running_;
    std::vector<std::pair<EngineEventSink*, EngineEvents>> outgoing_;
    std::uint64_t steps_ = 0;
    std::uint64_t unpublished_prompt_tokens_ = 0;
    std::uint64_t unpublished_tokens_ = 0;
    std::thread thread_;
};

Result<RequestId> ReplayEngine::submit(GenerationRequest request, EngineEventSink& sink) {
    if (request.prompt.empty() || request.choices == 0) {
        return Error(ErrorCode::invalid_argument, "a request needs a prompt and a choice",
                     reasons::invalid_value);
    }
    if (request.grammar != nullptr) {
        return Error(ErrorCode::unsupported,
                     "a replay answers from its file and holds its replies to no grammar",
                     reasons::unsupported_parameter);
    }
    const auto prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
    if (request.prompt.size() >= description_.context_tokens) {
        return Error(ErrorCode::invalid_argument,
                     "the prompt of " + std::to_string(prompt_tokens) +
                         " tokens leaves nothing of the context of " +
                         std::to_string(description_.context_tokens),
                     reasons::context_length_exceeded);
    }
    if (request.thinking_budget) {
        return Error(ErrorCode::unsupported,
                     "thinking_budget has no meaning for replayed replies; leave it out",
                     reasons::unsupported_parameter);
    }
    if (request.loop_guard.value_or(false)) {
        return Error(ErrorCode::unsupported,
                     "loop_guard has no meaning for replayed replies; leave it out",
                     reasons::unsupported_parameter);
    }
    if (!request.images.empty() && !description_.vision) {
        return Error(ErrorCode::unsupported, "images need a model with a vision part; send text",
                     reasons::unsupported_parameter);
    }
    auto replies = script_.take(request.last_message, request.choices);
    if (replies.empty()) {
        return Error(ErrorCode::not_found, "the replay file has no reply left for this request",
                     reasons::replay_exhausted);
    }
    const std::uint32_t room = description_.context_tokens - prompt_tokens;
    const std::uint32_t limit = std::min(request.max_tokens.value_or(room), room);
    const bool by_context = request.max_tokens.value_or(room + 1) > room;
    const auto shared = std::make_shared<const GenerationRequest>(std::move(request));
    const Clock::time_point now = Clock::now();

    RequestId id{};
    {
        const std::lock_guard lock(mutex_);
        id = RequestId{next_request_++};
        // Seeds stay below 2^53, so that every JSON reader gives them back whole.
        const std::uint64_t seed = shared->sampling.seed.value_or(seeds_() >> 11);
        for (std::uint32_t index = 0; index < shared->choices; ++index) {
            auto choice = std::make_unique<Choice>();
            choice->request = id;
            choice->index = index;
            choice->parameters = shared;
            choice->reply = std::move(replies[index]);
            choice->sink = &sink;
            choice->seed = seed;
            choice->token_limit = limit;
            choice->limited_by_context = by_context;
            choice->submitted = now;
            choice->statistics.prompt_tokens = prompt_tokens;
            arrivals_.push_back(std::move(choice));
        }
    }
    changed_.notify_one();
    return id;
}

void ReplayEngine::cancel(RequestId request, std::uint32_t choice) {
    {
        const std::lock_guard lock(mutex_);
        cancellations_.emplace_back(request, choice);
    }
    changed_.notify_one();
}

void ReplayEngine::run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        take_arrivals();
        take_cancellations();
        lock.unlock();
        const Clock::time_point now = Clock::now();
        admit(now);
        step(now);
        deliver();
        lock.lock();
        publish();
        if (stopping_ || !arrivals_.empty() || !cancellations_.empty()) continue;
        if (congested()) {
            changed_.wait_for(lock, congestion_pause);
            continue;
        }
        const Clock::time_point wake = next_wake();
        if (wake == Clock::time_point::max()) {
            changed_.wait(lock);
        } else if (wake > Clock::now()) {
            changed_.wait_until(lock, wake);
        }
    }
}

void ReplayEngine::take_arrivals() {
    for (auto& choice : arrivals_) {
        const int priority = choice->parameters->priority;
        waiting_.emplace(priority, std::move(choice));
    }
    arrivals_.clear();
}

void ReplayEngine::take_cancellations() {
    for (const auto& [request, index] : cancellations_) {
        const auto mark = [&, request = request, index = index](Choice& choice) {
            if (choice.request == request && (index == all_choices || index == choice.index)) {
                choice.cancelled = true;
            }
        };
        for (auto& [priority, choice] : waiting_)
            mark(*choice);
        for (auto& choice : running_)
            mark(*choice);
    }
    cancellations_.clear();
}

void ReplayEngine::admit(Clock::time_point now) {
    for (auto entry = waiting_.begin(); entry != waiting_.end();) {
        Choice& choice = *entry->second;
        const auto& deadline = choice.parameters->deadline;
        const bool ended = choice.cancelled || (deadline && *deadline <= now);
        if (!ended && running_.size() >= description_.max_running) {
            ++entry;
            continue;
        }
        choice.admitted = true;
        choice.admitted_at = now;
        choice.statistics.queue_seconds = seconds(now - choice.submitted);
        choice.due = now + choice.reply->prefill + choice.reply->delay;
        events_of(choice.sink).admitted.push_back({choice.request, choice.index, 0, choice.seed});
        tell_progress(choice, 0);
        running_.push_back(std::move(entry->second));
        entry = waiting_.erase(entry);
    }
}

void ReplayEngine::step(Clock::time_point now) {
    const std::size_t before = running_.size();
    std::erase_if(running_, [&](auto& choice) { return step_choice(*choice, now); });
    if (before > 0) ++steps_;
}

// Does what is due for one choice.  True: it has ended.
bool ReplayEngine::step_choice(Choice& choice, Clock::time_point now) {
    if (choice.cancelled) {
        finish(choice, FinishReason::cancelled, now);
        return true;
    }
    const auto& deadline = choice.parameters->deadline;
    if (deadline && *deadline <= now) {
        finish(choice, FinishReason::deadline, now);
        return true;
    }
    if (choice.due > now) return false;
    if (choice.next_step == 0) {
        choice.first_step = now;
        choice.statistics.prefill_seconds = seconds(now - choice.admitted_at);
        // The choices of a request share one prompt.
        if (choice.index == 0) {
            unpublished_prompt_tokens_ += choice.statistics.prompt_tokens;
            tell_progress(choice, choice.statistics.prompt_tokens);
            emit_prompt_scores(choice);
        }
    }

    const ReplayReply& reply = *choice.reply;
    ChoiceStatistics& statistics = choice.statistics;
    if (choice.next_step < reply.step_ends.size()) {
        const std::uint32_t first =
            choice.next_step == 0 ? 0 : reply.step_ends[choice.next_step - 1];
        const std::uint32_t last = reply.step_ends[choice.next_step++];
        if (drafts(choice)) {
            statistics.proposer = "replay";
            ++statistics.draft_rounds;
            statistics.drafted_tokens += reply.drafted_a_step;
            statistics.accepted_tokens += reply.accepted_a_step;
            auto& positions = statistics.accepted_per_position;
            if (positions.size() < reply.drafted_a_step) positions.resize(reply.drafted_a_step);
            for (std::uint32_t i = 0; i < reply.accepted_a_step; ++i)
                ++positions[i];
        }
        const GenerationRequest& parameters = *choice.parameters;
        const auto is_stop = [&](TokenId id) {
            const auto in = [&](const std::vector<TokenId>& ids) {
                return std::find(ids.begin(), ids.end(), id) != ids.end();
            };
            return in(description_.stop_tokens) || in(parameters.extra_stop_tokens);
        };
        for (std::uint32_t at = first; at < last; ++at) {
            const std::uint32_t generated = ++statistics.generated_tokens;
            const bool stop = !parameters.ignore_eos && generated > parameters.min_tokens &&
                              is_stop(reply.tokens[at]);
            if (stop || generated == choice.token_limit) {
                emit_tokens(choice, first, at + 1 - first);
                finish(choice,
                       stop                        ? FinishReason::stop_token
                       : choice.limited_by_context ? FinishReason::context
                                                   : FinishReason::max_tokens,
                       now);
                return true;
            }
        }
        emit_tokens(choice, first, last - first);
        choice.due = std::max(choice.due + reply.delay, now);
        if (choice.next_step < reply.step_ends.size()) return false;
    }
    switch (reply.end) {
        case ReplayReply::End::stop:
            finish(choice, FinishReason::stop_token, now);
            return true;
        case ReplayReply::End::length:
            finish(choice, FinishReason::max_tokens, now);
            return true;
        case ReplayReply::End::error:
            finish(choice, FinishReason::failed, now);
            return true;
        case ReplayReply::End::hang:
            choice.due = Clock::time_point::max();
            return false;
    }
    return false;
}

void ReplayEngine::tell_progress(const Choice& choice, std::uint32_t done) {
    if (!choice.parameters->report_progress || choice.index != 0) return;
    events_of(choice.sink)
        .progress.push_back({choice.request, 0, done, choice.statistics.prompt_tokens});
}

// The reply's log-prob for every token of the prompt but the first.
void ReplayEngine::emit_prompt_scores(const Choice& choice) {
    const GenerationRequest& parameters = *choice.parameters;
    if (parameters.prompt_logprobs < 0 || parameters.prompt.size() < 2) return;
    EngineEvents& events = events_of(choice.sink);
    EngineEvents::PromptScores scores;
    scores.request = choice.request;
    scores.first = 1;
    scores.count = static_cast<std::uint32_t>(parameters.prompt.size() - 1);
    scores.first_logprob = static_cast<std::uint32_t>(events.logprobs.size());
    for (std::uint32_t i = 1; i <= scores.count; ++i) {
        EngineEvents::Logprobs entry{choice.reply->logprob, {}};
        if (parameters.prompt_logprobs > 0) {
            entry.top.push_back({parameters.prompt[i], entry.chosen});
        }
        events.logprobs.push_back(std::move(entry));
    }
    events.prompt_scores.push_back(scores);
}

void ReplayEngine::emit_tokens(Choice& choice, std::uint32_t first, std::uint32_t count) {
    if (count == 0) return;
    EngineEvents& events = events_of(choice.sink);
    EngineEvents::Tokens run;
    run.request = choice.request;
    run.choice = choice.index;
    run.first = static_cast<std::uint32_t>(events.tokens.size());
    run.count = count;
    if (drafts(choice)) {
        run.drafted = choice.reply->drafted_a_step;
        run.accepted = choice.reply->accepted_a_step;
    }
    unpublished_tokens_ += count;
    const auto begin = choice.reply->tokens.begin() + first;
    events.tokens.insert(events.tokens.end(), begin, begin + count);
    const int top = choice.parameters->sampling.top_logprobs;
    if (top >= 0) {
        run.has_logprobs = true;
        run.first_logprob = static_cast<std::uint32_t>(events.logprobs.size());
        for (std::uint32_t i = 0; i < count; ++i) {
            EngineEvents::Logprobs entry;
            entry.chosen = choice.reply->logprob;
            if (top > 0) entry.top.push_back({*(begin + i), entry.chosen});
            events.logprobs.push_back(std::move(entry));
        }
    }
    events.runs.push_back(run);
}

void ReplayEngine::finish(Choice& choice, FinishReason reason, Clock::time_point now) {
    if (choice.statistics.generated_tokens > 0) {
        choice.statistics.decode_seconds = seconds(now - choice.first_step);
    }
    EngineEvents::Finished finished;
    finished.request = choice.request;
    finished.choice = choice.index;
    finished.reason = reason;
    if (reason == FinishReason::failed) {
        finished.error = Error(ErrorCode::internal,
                               "the model's numbers became unusable and the reply was ended",
                               reasons::numerical_fault);
    }
    finished.statistics = std::move(choice.statistics);
    events_of(choice.sink).finished.push_back(std::move(finished));
}

EngineEvents& ReplayEngine::events_of(EngineEventSink* sink) {
    for (auto& [owner, events] : outgoing_) {
        if (owner == sink) return events;
    }
    return outgoing_.emplace_back(sink, EngineEvents{}).second;
}

void ReplayEngine::deliver() {
    for (auto& [sink, events] : outgoing_) {
        if (events.empty()) continue;
        sink->on_events(events);
        events.clear();
    }
    // A sink may go once its last request has ended, so none is remembered without need.
    if (running_.empty() && waiting_.empty()) outgoing_.clear();
}

bool ReplayEngine::congested() const {
    return std::any_of(running_.begin(), running_.end(),
                       [](const auto& choice) { return choice->sink->congested(); });
}

Clock::time_point ReplayEngine::next_wake() const {
    Clock::time_point wake = Clock::time_point::max();
    const auto consider_deadline = [&](const Choice& choice) {
        if (choice.parameters->deadline) wake = std::min(wake, *choice.parameters->deadline);
    };
    for (const auto& choice : running_) {
        wake = std::min(wake, choice->due);
        consider_deadline(*choice);
    }
    for (const auto& [priority, choice] : waiting_)
        consider_deadline(*choice);
    if (!waiting_.empty() && running_.size() < description_.max_running) wake = Clock::now();
    return wake;
}

void ReplayEngine::publish() {
    status_.running = static_cast<std::uint32_t>(running_.size());
    status_.waiting = static_cast<std::uint32_t>(waiting_.size());
    status_.steps = steps_;
    const Clock::time_point now = Clock::now();
    prefilled_.add(now, std::exchange(unpublished_prompt_tokens_, 0));
    decoded_.add(now, std::exchange(unpublished_tokens_, 0));
    std::uint64_t held = 0;
    for (const auto& choice : running_) {
        held += choice->statistics.prompt_tokens + choice->statistics.generated_tokens;
    }
    status_.kv_tokens_free = description_.kv_tokens - std::min(description_.kv_tokens, held);
}

}  // namespace

std::unique_ptr<Engine> make_replay_engine(ReplayScript script, EngineDescription description) {
    return std::make_unique<ReplayEngine>(std::move(script), std::move(description));
}

}  // namespace percheron
