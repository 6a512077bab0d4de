// An engine that remembers what it was asked, before another one answers.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "percheron/engine.h"

namespace percheron::test {

class Recording {
  public:
    void add(const GenerationRequest& request) {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
    }
    std::size_t count() const {
        const std::lock_guard lock(mutex_);
        return requests_.size();
    }
    // An empty one if there was none.
    GenerationRequest latest() const {
        const std::lock_guard lock(mutex_);
        return requests_.empty() ? GenerationRequest() : requests_.back();
    }

  private:
    mutable std::mutex mutex_;
    std::vector<GenerationRequest> requests_;
};

class RecordingEngine final : public Engine {
  public:
    RecordingEngine(std::unique_ptr<Engine> engine, Recording& recording)
        : engine_(std::move(engine)), recording_(recording) {}

    const EngineDescription& description() const override { return engine_->description(); }
    EngineStatus status() const override { return engine_->status(); }
    Result<RequestId> submit(GenerationRequest request, EngineEventSink& sink) override {
        recording_.add(request);
        return engine_->submit(std::move(request), sink);
    }
    void cancel(RequestId request, std::uint32_t choice) override {
        engine_->cancel(request, choice);
    }

  private:
    std::unique_ptr<Engine> engine_;
    Recording& recording_;
};

}  // namespace percheron::test
