#include "server/engine_link.h"

#include <algorithm>

namespace percheron::server {
namespace {

constexpr std::size_t congestion_tokens = 4096;
constexpr std::size_t spare_batches = 16;

}  // namespace

Result<RequestId> EngineLink::submit(GenerationRequest request,
                                     std::shared_ptr<ReplyReceiver> receiver) {
    const std::uint32_t choices = request.choices;
    auto id = engine_->submit(std::move(request), *this);
    if (!id.ok()) return id;
    // Events of this request are handled by this thread, so none can have come before this line.
    entries_[to_int(*id)] = {std::move(receiver), choices, submitted_++};
    in_flight_ += choices;
    return id;
}

void EngineLink::cancel(RequestId request, std::uint32_t choice) {
    if (entries_.contains(to_int(request))) engine_->cancel(request, choice);
}

void EngineLink::cancel_all() {
    for (const auto& [id, entry] : entries_)
        engine_->cancel(RequestId{id});
}

void EngineLink::tick() {
    const auto now = std::chrono::steady_clock::now();
    std::vector<std::shared_ptr<ReplyReceiver>> receivers;
    for (const auto& [id, entry] : entries_)
        receivers.push_back(entry.receiver);
    for (const auto& receiver : receivers)
        receiver->on_tick(now);
}

LiveRequests EngineLink::live_requests(std::size_t most) const {
    std::vector<const Entry*> entries;
    entries.reserve(entries_.size());
    for (const auto& [id, entry] : entries_)
        entries.push_back(&entry);
    const std::size_t shown = std::min(most, entries.size());
    std::partial_sort(
        entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(shown), entries.end(),
        [](const Entry* one, const Entry* other) { return one->number < other->number; });
    const auto now = std::chrono::steady_clock::now();
    LiveRequests requests;
    for (std::size_t i = 0; i < shown; ++i)
        requests.oldest.push_back(entries[i]->receiver->live(now));
    requests.left_out = entries.size() - shown;
    return requests;
}

bool EngineLink::congested() const {
    return unhandled_.load(std::memory_order_relaxed) > congestion_tokens;
}

void EngineLink::on_events(EngineEvents& events) {
    unhandled_.fetch_add(events.tokens.size(), std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) {
        arrived_.push_back(std::move(events));
        events = EngineEvents{};
    } else {
        std::swap(events, spare_.back());
        arrived_.push_back(std::move(spare_.back()));
        spare_.pop_back();
    }
    if (!wake_pending_) {
        wake_pending_ = true;
        asio::post(io_, [this] { handle_one(); });
    }
}

// One step at a time, so that sockets get their turn between steps.
void EngineLink::handle_one() {
    EngineEvents events;
    {
        const std::lock_guard lock(mutex_);
        events = std::move(arrived_.front());
        arrived_.pop_front();
        if (arrived_.empty()) {
            wake_pending_ = false;
        } else {
            asio::post(io_, [this] { handle_one(); });
        }
    }
    unhandled_.fetch_sub(events.tokens.size(), std::memory_order_relaxed);
    dispatch(events);
    events.clear();
    const std::lock_guard lock(mutex_);
    if (spare_.size() < spare_batches) spare_.push_back(std::move(events));
}

void EngineLink::dispatch(EngineEvents& events) {
    const auto now = std::chrono::steady_clock::now();
    for (const auto& admitted : events.admitted) {
        const auto entry = entries_.find(to_int(admitted.request));
        if (entry != entries_.end()) entry->second.receiver->on_admitted(admitted, now);
    }
    for (const auto& progress : events.progress) {
        const auto entry = entries_.find(to_int(progress.request));
        if (entry != entries_.end()) entry->second.receiver->on_progress(progress, now);
    }
    for (const auto& scores : events.prompt_scores) {
        const auto entry = entries_.find(to_int(scores.request));
        if (entry == entries_.end()) continue;
        entry->second.receiver->on_prompt_scores(
            std::span(events.logprobs).subspan(scores.first_logprob, scores.count));
    }
    for (const auto& run : events.runs) {
        const auto entry = entries_.find(to_int(run.request));
        if (entry == entries_.end()) continue;
        if (run.drafted > 0) {
            entry->second.receiver->on_draft(run.choice, run.drafted, run.accepted);
        }
        const std::span ids = std::span(events.tokens).subspan(run.first, run.count);
        std::span<const EngineEvents::Logprobs> logprobs;
        if (run.has_logprobs) {
            logprobs = std::span(events.logprobs).subspan(run.first_logprob, run.count);
        }
        entry->second.receiver->on_tokens(run.choice, ids, logprobs, now);
    }
    for (const auto& finished : events.finished) {
        const auto entry = entries_.find(to_int(finished.request));
        if (entry == entries_.end()) continue;
        const auto receiver = entry->second.receiver;
        --in_flight_;
        if (--entry->second.open_choices == 0) entries_.erase(entry);
        receiver->on_finished(finished, now);
    }
}

}  // namespace percheron::server
