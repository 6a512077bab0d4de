// The events of one step, gathered per sink, so that each sink is called once.
#pragma once

#include <utility>
#include <vector>

#include "percheron/engine.h"

namespace percheron::engine {

class EventBatches {
  public:
    EngineEvents& of(EngineEventSink* sink) {
        for (auto& [owner, events] : batches_) {
            if (owner == sink) {
                return events;
            }
        }
        batches_.emplace_back(sink, EngineEvents{});
        return batches_.back().second;
    }

    // Calls every sink that has events and starts the next step's.
    void deliver() {
        for (auto& [sink, events] : batches_) {
            sink->on_events(events);
        }
        batches_.clear();
    }

  private:
    std::vector<std::pair<EngineEventSink*, EngineEvents>> batches_;
};

}  // namespace percheron::engine
