#include "engine/reprefill.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace percheron::engine {

void Reprefill::add(std::unique_ptr<Sequence> sequence, bool closed, Scheduler& scheduler) {
    const auto length = static_cast<std::uint32_t>(sequence->tokens.size()) - (closed ? 1 : 0);
    const std::uint32_t end = length / ops::page_tokens * ops::page_tokens;
    if (end <= sequence->prompt_tokens) return;  // no whole block with a token of the reply
    stop(scheduler);
    sequence->tokens.resize(end);
    sequence->prompt_tokens = end;
    sequence->sink = nullptr;
    sequence->counts.reset();
    sequence->masks.reset();
    sequence->held_logits = {};
    sequence->loop_guard.reset();
    Reply reply;
    reply.reusable = scheduler.reusable_positions(*sequence);
    if (reply.reusable >= end) return;
    for (SequenceImage& image : sequence->images) {
        reply.features.emplace_back(image.features);
    }
    reply.sequence = std::move(sequence);
    drop_features(reply);
    waiting_.push_back(std::move(reply));
    std::uint64_t tokens = 0;
    for (auto place = waiting_.rbegin(); place != waiting_.rend(); ++place) {
        tokens += place->sequence->tokens.size();
        if (tokens > most_tokens_) {
            waiting_.erase(waiting_.begin(), place.base());
            break;
        }
    }
}

void Reprefill::start(Scheduler& scheduler) {
    while (!running_ && !waiting_.empty()) {
        Reply& reply = waiting_.back();
        reply.reusable = scheduler.reusable_positions(*reply.sequence);
        if (reply.reusable >= reply.sequence->prompt_tokens || !take_features(reply)) {
            waiting_.pop_back();
            continue;
        }
        running_ = true;
        scheduler.set_background(reply.sequence.get());
    }
}

void Reprefill::stop(Scheduler& scheduler) {
    if (!running_) return;
    running_ = false;
    scheduler.set_background(nullptr);
    drop_features(waiting_.back());
}

void Reprefill::after_step(Scheduler& scheduler) {
    if (!running_) return;
    Reply& reply = waiting_.back();
    const bool stuck = !reply.sequence->slot;
    reply.reusable = std::max(reply.reusable, reply.sequence->computed);
    if (stuck || reply.reusable >= reply.sequence->prompt_tokens) {
        stop(scheduler);
        waiting_.pop_back();
    }
}

std::uint64_t Reprefill::pending() const {
    return std::accumulate(waiting_.begin(), waiting_.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const Reply& reply) {
                               return sum + reply.sequence->prompt_tokens - reply.reusable;
                           });
}

// The rows of the images that the pass meets; false: some are gone.
bool Reprefill::take_features(Reply& reply) {
    Sequence& sequence = *reply.sequence;
    for (std::size_t i = 0; i < sequence.images.size(); ++i) {
        SequenceImage& image = sequence.images[i];
        if (image.place.first + image.place.count <= reply.reusable) continue;
        image.features = reply.features[i].lock();
        if (!image.features) {
            drop_features(reply);
            return false;
        }
    }
    return true;
}

void Reprefill::drop_features(Reply& reply) {
    for (SequenceImage& image : reply.sequence->images) {
        image.features.reset();
    }
}

}  // namespace percheron::engine
