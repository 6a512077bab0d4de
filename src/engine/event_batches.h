// The events of one step, gathered per sink, so that each sink is called once.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "percheron/engine.h"

namespace percheron::engine {

class EventBatches {
  public:
    EngineEvents& of(EngineEventSink* sink) {
        for (std::size_t i = 0; i < used_; ++i) {
            if (batches_[i].first == sink) {
                return batches_[i].second;
            }
        }
        if (used_ == batches_.size()) {
            batches_.emplace_back();
        }
        auto& [owner, events] = batches_[used_++];
        owner = sink;
        return events;
    }

    // Calls every sink that has events and starts the next step's, in the memory of this one's (or
    // in what a sink left in its place).
    void deliver() {
        for (std::size_t i = 0; i < used_; ++i) {
            auto& [sink, events] = batches_[i];
            sink->on_events(events);
            events.clear();
        }
        used_ = 0;
    }

  private:
    std::vector<std::pair<EngineEventSink*, EngineEvents>> batches_;  // the first used_ count
    std::size_t used_ = 0;
};

}  // namespace percheron::engine
