#include "parallel/rank_server.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "parallel/control_link.h"
#include "parallel/messages.h"

namespace percheron::parallel {
namespace {

constexpr std::chrono::milliseconds time_between_reports{100};

class RankServer {
  public:
    RankServer(ControlLink& link, const RankWork& work, Engine& engine)
        : link_(link), work_(work), engine_(engine) {}

    Status run();

  private:
    // The engine's requests under the front's names.
    struct Entry {
        std::uint64_t front = 0;
        std::uint32_t open_choices = 0;
    };

    // Sends the events of requests that came with one number.
    class Sink final : public EngineEventSink {
      public:
        Sink(RankServer& server, std::uint32_t number) : server_(server), number_(number) {}
        void on_events(EngineEvents& events) override { server_.send_events(number_, events); }

      private:
        RankServer& server_;
        std::uint32_t number_;
    };

    Status take(const FrameReader::Frame& frame);
    void submit(Submit message);
    void cancel(const Cancel& message);
    void send_events(std::uint32_t sink, EngineEvents& events);
    void report();
    void compile_all();

    ControlLink& link_;
    const RankWork& work_;
    Engine& engine_;

    std::mutex mutex_;
    std::map<std::uint32_t, Sink> sinks_;
    std::unordered_map<std::uint64_t, Entry> entries_;        // by the engine's id
    std::unordered_map<std::uint64_t, RequestId> submitted_;  // by the front's
    // Requests whose grammar is being compiled, with what was cancelled of them meanwhile.
    std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> compiling_;
    std::deque<Submit> to_compile_;
    std::condition_variable compile_wake_;
    bool is_ending_ = false;
    bool has_ended_one_ = false;
};

Status RankServer::run() {
    std::thread compiler([this] { compile_all(); });
    Status result;
    auto reported = std::chrono::steady_clock::now() - time_between_reports;
    while (result.ok()) {
        auto frame = link_.next();
        while (frame.ok() && *frame && result.ok()) {
            result = take(**frame);
            frame = link_.next();
        }
        if (!frame.ok()) result = frame.error();
        if (!result.ok()) break;
        bool is_due = false;
        {
            const std::lock_guard lock(mutex_);
            is_due = std::exchange(has_ended_one_, false);
        }
        const auto now = std::chrono::steady_clock::now();
        if (is_due || now - reported >= time_between_reports) {
            report();
            reported = now;
            if (const EngineStatus status = engine_.status(); !status.alive) {
                result = Error(ErrorCode::internal, "the engine has stopped: " + status.failure,
                               reasons::engine_dead);
                break;
            }
        }
        if (!link_.wait(time_between_reports)) break;
    }
    {
        const std::lock_guard lock(mutex_);
        is_ending_ = true;
    }
    compile_wake_.notify_all();
    compiler.join();
    return result;
}

Status RankServer::take(const FrameReader::Frame& frame) {
    if (frame.kind == MessageKind::submit) {
        Submit message;
        if (read(frame.fields, message)) {
            submit(std::move(message));
            return {};
        }
    } else if (frame.kind == MessageKind::cancel) {
        Cancel message;
        if (read(frame.fields, message)) {
            cancel(message);
            return {};
        }
    }
    return Error(ErrorCode::corrupt, "the front sent a message that makes no sense");
}

void RankServer::submit(Submit message) {
    if (!message.rules.empty() && message.content.grammar == nullptr) {
        const std::lock_guard lock(mutex_);
        compiling_[to_int(message.request)];
        to_compile_.push_back(std::move(message));
        compile_wake_.notify_one();
        return;
    }
    const std::uint32_t choices = message.content.choices;
    // Held until the engine's name of it is known to those who tell of its events.
    std::unique_lock lock(mutex_);
    Sink& sink = sinks_.try_emplace(message.sink, *this, message.sink).first->second;
    const auto id = engine_.submit(std::move(message.content), sink);
    if (!id.ok()) {
        compiling_.erase(to_int(message.request));
        lock.unlock();
        link_.send(frame_of(Rejected{message.request, id.error()}));
        return;
    }
    entries_[to_int(*id)] = {to_int(message.request), choices};
    submitted_[to_int(message.request)] = *id;
    const auto compiled = compiling_.extract(to_int(message.request));
    lock.unlock();
    if (compiled.empty()) return;
    for (const std::uint32_t choice : compiled.mapped()) {
        engine_.cancel(*id, choice);
    }
}

void RankServer::cancel(const Cancel& message) {
    std::unique_lock lock(mutex_);
    if (const auto waits = compiling_.find(to_int(message.request)); waits != compiling_.end()) {
        waits->second.push_back(message.choice);
        return;
    }
    const auto found = submitted_.find(to_int(message.request));
    if (found == submitted_.end()) return;
    const RequestId id = found->second;
    lock.unlock();
    engine_.cancel(id, message.choice);
}

void RankServer::compile_all() {
    std::unique_lock lock(mutex_);
    while (true) {
        compile_wake_.wait(lock, [&] { return is_ending_ || !to_compile_.empty(); });
        if (is_ending_) return;
        Submit message = std::move(to_compile_.front());
        to_compile_.pop_front();
        lock.unlock();
        auto grammar = work_.compile(message.rules);
        if (grammar.ok()) {
            message.content.grammar = std::move(*grammar);
            submit(std::move(message));
            lock.lock();
        } else {
            link_.send(frame_of(Rejected{message.request, grammar.error()}));
            lock.lock();
            compiling_.erase(to_int(message.request));
        }
    }
}

// On the engine's thread: one frame a step.
void RankServer::send_events(std::uint32_t sink, EngineEvents& events) {
    bool has_ended_one = false;
    {
        const std::lock_guard lock(mutex_);
        const auto rename = [&](RequestId& request) {
            const auto found = entries_.find(to_int(request));
            request = RequestId(found == entries_.end() ? 0 : found->second.front);
        };
        for (auto& admitted : events.admitted) {
            rename(admitted.request);
        }
        for (auto& progress : events.progress) {
            rename(progress.request);
        }
        for (auto& scores : events.prompt_scores) {
            rename(scores.request);
        }
        for (auto& run : events.runs) {
            rename(run.request);
        }
        for (auto& finished : events.finished) {
            const auto found = entries_.find(to_int(finished.request));
            rename(finished.request);
            if (found != entries_.end() && --found->second.open_choices == 0) {
                submitted_.erase(found->second.front);
                entries_.erase(found);
            }
        }
        has_ended_one = !events.finished.empty();
        has_ended_one_ |= has_ended_one;
    }
    Events message{sink, std::move(events)};
    link_.send(frame_of(message));
    events = std::move(message.events);  // its memory is used again
    events.clear();
    if (has_ended_one) link_.wake();
}

void RankServer::report() {
    link_.send(frame_of(StatusReport{engine_.status()}));
}

}  // namespace

Status serve_rank(int connection, const RankWork& work) {
    ControlLink link{Descriptor(connection)};
    link.send(frame_of(Hello{own_build()}));
    auto engine = work.load([&](const std::string& stage) { link.send(frame_of(Stage{stage})); });
    if (!engine.ok()) {
        link.send(frame_of(Refused{engine.error()}));
        link.flush();
        return engine.error();
    }
    link.send(frame_of(Ready{(*engine)->description()}));
    RankServer server(link, work, **engine);
    Status done = server.run();
    // Before the server that its events go to.
    engine->reset();
    link.flush();
    return done;
}

}  // namespace percheron::parallel
