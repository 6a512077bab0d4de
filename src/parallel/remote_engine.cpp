#include "parallel/remote_engine.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "core/logging.h"
#include "engine/request_check.h"
#include "parallel/control_link.h"
#include "parallel/flights.h"
#include "parallel/messages.h"
#include "parallel/rank_process.h"

namespace percheron::parallel {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds time_between_looks{100};
constexpr milliseconds time_to_end{2'000};              // before those in flight are told
constexpr milliseconds time_to_end_gracefully{20'000};  // the prefix cache's files are written
constexpr int steps_of_patience = 20;
constexpr int patience_of_loading = 10;
constexpr std::uint32_t only_rank = 0;

std::string seconds_text(Clock::duration time) {
    const auto tenths = std::chrono::duration_cast<milliseconds>(time).count() / 100;
    return std::to_string(tenths / 10) + (tenths < 100 ? "." + std::to_string(tenths % 10) : "") +
           " s";
}

// What would be refused again however often it is tried.
bool is_lasting(const Error& error) {
    return error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::not_found ||
           error.code() == ErrorCode::corrupt || error.code() == ErrorCode::unsupported;
}

class RemoteEngine final : public Engine {
  public:
    explicit RemoteEngine(RemoteOptions options)
        : options_(std::move(options)), wait_(options_.first_wait) {
        rank_.rank = only_rank;
        rank_.stage = "starting";
    }
    ~RemoteEngine() override;

    // Starts the rank and waits until it is ready or has refused.
    Status start();

    const EngineDescription& description() const override { return description_; }
    EngineStatus status() const override;
    Result<RequestId> submit(GenerationRequest request, EngineEventSink& sink) override;
    void cancel(RequestId request, std::uint32_t choice) override;

  private:
    // All of these: the thread that looks after the rank.
    void run();
    Status run_once();
    Status watch();
    Status take(const FrameReader::Frame& frame);
    Status take_events(const FrameReader::Frame& frame);
    Status be_ready(const Ready& message);
    void pass_on(Flights::Ends&& ends);
    std::optional<Error> overdue() const;
    void end_rank(const Error& why);
    void end_gracefully();
    void pause();
    void set_stage(const std::string& stage);
    void log_line(std::string_view line);

    // Under mutex_.
    Error dead_now() const;

    const RemoteOptions options_;
    EngineDescription description_;  // of the first rank

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::unique_ptr<RankProcess> process_;  // changed by the thread, under mutex_
    RankStatus rank_;
    EngineStatus status_;
    std::string trouble_;  // how the rank before ended, until the next is ready
    RequestLimits limits_;
    Flights flights_;
    std::vector<EngineEventSink*> sinks_;  // by number
    std::uint64_t last_request_ = 0;
    bool is_stopping_ = false;
    bool was_ready_ = false;
    std::optional<Error> refused_;                // by the rank that is ending, or has ended
    Clock::time_point last_sign_ = Clock::now();  // of progress
    Clock::duration longest_gap_{0};              // between two of them, with work

    // The thread's own.
    bool has_said_hello_ = false;
    std::string last_line_;
    milliseconds wait_;

    std::thread thread_;
};

Status RemoteEngine::start() {
    thread_ = std::thread([this] { run(); });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return was_ready_ || refused_; });
    if (!was_ready_) return *refused_;
    return {};
}

RemoteEngine::~RemoteEngine() {
    {
        const std::lock_guard lock(mutex_);
        is_stopping_ = true;
        if (process_) process_->link().wake();
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

EngineStatus RemoteEngine::status() const {
    const std::lock_guard lock(mutex_);
    EngineStatus status = status_;
    status.alive = rank_.up;
    if (!rank_.up) {
        status.failure = dead_now().message();
        status.running = 0;
        status.waiting = 0;
        status.kv_tokens_free = status.kv_tokens_total;
        status.prefill_tokens_per_second = 0;
        status.decode_tokens_per_second = 0;
    }
    status.ranks = {rank_};
    return status;
}

Error RemoteEngine::dead_now() const {
    std::string message = trouble_.empty() ? "" : trouble_ + "; ";
    message += "rank " + std::to_string(rank_.rank) + " is " + rank_.stage;
    return Error(ErrorCode::unavailable, std::move(message), reasons::engine_dead);
}

Result<RequestId> RemoteEngine::submit(GenerationRequest request, EngineEventSink& sink) {
    Submit message;
    {
        const std::lock_guard lock(mutex_);
        if (!rank_.up) return dead_now();
        // Copied: a rank that starts again may have planned other limits.
        const RequestLimits limits = limits_;
        PERCHERON_TRY(engine::check_request(request, limits));
        if (request.choices > limits.most_choices - flights_.open_choices()) {
            return Error(ErrorCode::unavailable,
                         "the waiting list is full (" + std::to_string(flights_.open_choices()) +
                             " requests run or wait); try again in a moment",
                         reasons::queue_full);
        }
        if (request.grammar) message.rules = request.grammar->rules();
        if (request.grammar && message.rules.empty()) {
            return Error(ErrorCode::unsupported, "a grammar without rules stays in its process",
                         reasons::unsupported_parameter);
        }
        message.request = RequestId(++last_request_);
        auto known = std::find(sinks_.begin(), sinks_.end(), &sink);
        if (known == sinks_.end()) known = sinks_.insert(sinks_.end(), &sink);
        message.sink = static_cast<std::uint32_t>(known - sinks_.begin());
        const auto prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
        if (flights_.open_choices() == 0) last_sign_ = Clock::now();
        flights_.begin(message.request, message.sink, request.choices, prompt_tokens);
        message.content = std::move(request);
        process_->link().send(frame_of(message));
    }
    return message.request;
}

void RemoteEngine::cancel(RequestId request, std::uint32_t choice) {
    const std::lock_guard lock(mutex_);
    if (rank_.up) process_->link().send(frame_of(Cancel{request, choice}));
}

void RemoteEngine::run() {
    while (true) {
        const Status ended = run_once();
        if (ended.ok()) return;
        bool was_ready = false;
        std::optional<Error> refused;
        {
            const std::lock_guard lock(mutex_);
            if (is_stopping_) return;
            was_ready = was_ready_;
            refused = refused_;
        }
        if (refused && (!was_ready || is_lasting(*refused))) {
            set_stage("not started again");
            changed_.notify_all();
            if (was_ready && options_.on_gave_up) options_.on_gave_up(*refused);
            return;
        }
        pause();
        const std::lock_guard lock(mutex_);
        if (is_stopping_) return;
        ++rank_.restarts;
    }
}

// From a rank's start to its end.  Ok: it was asked to end.
Status RemoteEngine::run_once() {
    has_said_hello_ = false;
    last_line_.clear();
    set_stage("starting");
    auto started = RankProcess::start(options_.arguments);
    Status ended;
    if (started.ok()) {
        {
            const std::lock_guard lock(mutex_);
            process_ = std::move(*started);
            rank_.process = process_->id();
            last_sign_ = Clock::now();
            longest_gap_ = Clock::duration(0);
            refused_.reset();
        }
        ended = watch();
    } else {
        ended = started.error();
    }
    if (ended.ok()) {
        end_gracefully();
        return {};
    }
    end_rank(ended.error());
    return ended;
}

Status RemoteEngine::watch() {
    RankProcess& process = *process_;
    ControlLink& link = process.link();
    while (true) {
        const bool is_open = link.wait(time_between_looks, process.lines());
        process.read_lines([&](std::string_view line) { log_line(line); });
        auto frame = link.next();
        while (frame.ok() && *frame) {
            PERCHERON_TRY(take(**frame));
            frame = link.next();
        }
        if (!frame.ok()) return frame.error().in("a damaged message");
        const std::lock_guard lock(mutex_);
        if (is_stopping_) return {};
        if (!is_open) return Error(ErrorCode::unavailable, "");
        if (auto late = overdue()) return *late;
    }
}

// Under mutex_.
std::optional<Error> RemoteEngine::overdue() const {
    const auto silence = Clock::now() - last_sign_;
    if (!rank_.up) {
        if (silence < patience_of_loading * options_.patience) return std::nullopt;
        return Error(ErrorCode::unavailable, "said nothing new for " + seconds_text(silence));
    }
    if (flights_.open_choices() == 0) return std::nullopt;
    if (silence < std::max<Clock::duration>(options_.patience, steps_of_patience * longest_gap_)) {
        return std::nullopt;
    }
    return Error(ErrorCode::unavailable, "made no step for " + seconds_text(silence) + " with " +
                                             std::to_string(flights_.open_choices()) +
                                             " replies to work on");
}

Status RemoteEngine::take(const FrameReader::Frame& frame) {
    const auto senseless = [] {
        return Error(ErrorCode::corrupt, "sent a message that makes no sense");
    };
    if (!has_said_hello_) {
        Hello hello;
        if (frame.kind != MessageKind::hello || !read(frame.fields, hello)) return senseless();
        if (hello.build != own_build()) {
            return Error(ErrorCode::unsupported, "is of build " + hello.build +
                                                     ", and the server of build " + own_build() +
                                                     "; start both from one binary");
        }
        has_said_hello_ = true;
        return {};
    }
    switch (frame.kind) {
        case MessageKind::stage: {
            Stage stage;
            if (!read(frame.fields, stage)) return senseless();
            set_stage(stage.name);
            return {};
        }
        case MessageKind::ready: {
            Ready ready;
            if (!read(frame.fields, ready)) return senseless();
            return be_ready(ready);
        }
        case MessageKind::refused: {
            Refused refused;
            if (!read(frame.fields, refused)) return senseless();
            const std::lock_guard lock(mutex_);
            refused_ = refused.error;
            return {};
        }
        case MessageKind::events:
            return take_events(frame);
        case MessageKind::rejected: {
            Rejected rejected;
            if (!read(frame.fields, rejected)) return senseless();
            Flights::Ends ends;
            {
                const std::lock_guard lock(mutex_);
                ends = flights_.fail(rejected.request, rejected.error);
            }
            pass_on(std::move(ends));
            return {};
        }
        case MessageKind::status: {
            StatusReport report;
            if (!read(frame.fields, report)) return senseless();
            const std::lock_guard lock(mutex_);
            if (report.status.steps != status_.steps) last_sign_ = Clock::now();
            status_ = std::move(report.status);
            return {};
        }
        default:
            return senseless();
    }
}

Status RemoteEngine::take_events(const FrameReader::Frame& frame) {
    Events message;
    EngineEventSink* sink = nullptr;
    {
        const bool is_whole = read(frame.fields, message);
        const std::lock_guard lock(mutex_);
        if (!is_whole || message.sink >= sinks_.size() ||
            !flights_.take(message.sink, message.events)) {
            return Error(ErrorCode::corrupt, "sent events that make no sense");
        }
        sink = sinks_[message.sink];
        const auto now = Clock::now();
        longest_gap_ = std::max(longest_gap_, now - last_sign_);
        last_sign_ = now;
    }
    for (const auto& finished : message.events.finished) {
        if (finished.reason != FinishReason::failed) wait_ = options_.first_wait;
    }
    sink->on_events(message.events);
    return {};
}

Status RemoteEngine::be_ready(const Ready& message) {
    const EngineDescription& now = message.description;
    {
        const std::lock_guard lock(mutex_);
        if (rank_.up) return Error(ErrorCode::corrupt, "was ready twice");
        if (!was_ready_) {
            description_ = now;
        } else if (now.context_tokens < description_.context_tokens) {
            log_warning("rank 0 has room for " + std::to_string(now.context_tokens) +
                        " tokens a request now, and had it for " +
                        std::to_string(description_.context_tokens) + " at its first start");
        }
        limits_ = now.limits;
        rank_.up = true;
        rank_.stage = "serving";
        trouble_.clear();
        was_ready_ = true;
        last_sign_ = Clock::now();
    }
    changed_.notify_all();
    return {};
}

void RemoteEngine::pass_on(Flights::Ends&& ends) {
    for (auto& [number, events] : ends) {
        EngineEventSink* sink = nullptr;
        {
            const std::lock_guard lock(mutex_);
            sink = sinks_[number];
        }
        sink->on_events(events);
    }
}

// Takes the rank away, tells everybody, and waits until it is gone.
void RemoteEngine::end_rank(const Error& why) {
    std::string stage;
    std::uint64_t steps = 0;
    {
        const std::lock_guard lock(mutex_);
        stage = rank_.stage;
        steps = status_.steps;
        rank_.up = false;
        rank_.stage = "ending";
    }
    std::string end = why.message();
    if (process_) {
        // One that closed its end is about to end by itself, and how is worth knowing.
        if (!end.empty() || !process_->ended_within(time_to_end)) process_->kill();
        const bool has_ended = process_->ended_within(time_to_end);
        process_->read_lines([&](std::string_view line) { log_line(line); });
        if (end.empty()) {
            end = process_->how_it_ended();
        } else {
            end += has_ended ? " and was killed" : " and is being killed";
        }
    }
    {
        const std::lock_guard lock(mutex_);
        // Wrong usage is said by the command line, and would be again.
        if (process_ && process_->exit_code() == 2 && !refused_) {
            refused_ = Error(ErrorCode::invalid_argument, last_line_);
        }
        if (why.code() == ErrorCode::unsupported) refused_ = Error(why.code(), "rank 0 " + end);
    }
    std::string sentence = "rank " + std::to_string(only_rank) + " " + end + " while " + stage;
    if (steps > 0) sentence += ", after step " + std::to_string(steps);
    if (!last_line_.empty()) sentence += "; its last words: " + last_line_;
    log_error(sentence);
    Flights::Ends ends;
    {
        const std::lock_guard lock(mutex_);
        trouble_ = sentence;
        rank_.last_end = sentence;
        ends = flights_.fail_all(Error(ErrorCode::unavailable, sentence, reasons::engine_dead));
    }
    pass_on(std::move(ends));
    std::unique_ptr<RankProcess> gone;
    {
        const std::lock_guard lock(mutex_);
        gone = std::move(process_);
        rank_.process = 0;
        status_.steps = 0;
    }
}

void RemoteEngine::end_gracefully() {
    bool was_up = false;
    {
        const std::lock_guard lock(mutex_);
        was_up = std::exchange(rank_.up, false);
        rank_.stage = "ending";
    }
    if (was_up) {
        process_->link().close();
        process_->ended_within(time_to_end_gracefully);
        process_->read_lines([&](std::string_view line) { log_line(line); });
    }
    const std::lock_guard lock(mutex_);
    process_.reset();
    rank_.process = 0;
}

// Before the rank is started again.
void RemoteEngine::pause() {
    const auto end = Clock::now() + wait_;
    log_info("rank " + std::to_string(only_rank) + " is started again in " + seconds_text(wait_));
    std::unique_lock lock(mutex_);
    while (!is_stopping_ && Clock::now() < end) {
        rank_.stage = "starting again in " + seconds_text(end - Clock::now());
        changed_.wait_until(lock, std::min(end, Clock::now() + time_between_looks));
    }
    lock.unlock();
    wait_ = std::min(std::max(2 * wait_, milliseconds(1)), options_.longest_wait);
}

void RemoteEngine::set_stage(const std::string& stage) {
    const bool is_first = !was_ready_;
    {
        const std::lock_guard lock(mutex_);
        rank_.stage = stage;
        last_sign_ = Clock::now();
    }
    if (is_first && options_.on_stage) {
        options_.on_stage("rank " + std::to_string(only_rank) + " is " + stage);
    }
}

// The rank's own logger writes its level before the line.
void RemoteEngine::log_line(std::string_view line) {
    LogLevel level = LogLevel::info;
    for (const auto& [mark, of_mark] :
         {std::pair(std::string_view("error: "), LogLevel::error),
          std::pair(std::string_view("warning: "), LogLevel::warning)}) {
        if (!line.starts_with(mark)) continue;
        line.remove_prefix(mark.size());
        level = of_mark;
    }
    if (line.empty()) return;
    last_line_ = line;
    log(level, "rank " + std::to_string(only_rank) + ": " + last_line_);
}

}  // namespace

Result<std::unique_ptr<Engine>> start_remote_engine(RemoteOptions options) {
    auto engine = std::make_unique<RemoteEngine>(std::move(options));
    PERCHERON_TRY(engine->start());
    return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace percheron::parallel
