// Replies that could be used again, until a pass through prefill has made them so (C11 of
// docs/SCHEDULER.md).  Work for when nothing else is there.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace percheron::engine {

class Reprefill {
  public:
    // `most_tokens`: of all that wait; beyond, the oldest are given up.
    explicit Reprefill(std::uint64_t most_tokens) : most_tokens_(most_tokens) {}

    // A choice that has ended and gave slot and pages back.  `closed`: its last token is a stop id,
    // which what follows need not repeat.
    void add(std::unique_ptr<Sequence> sequence, bool closed, Scheduler& scheduler);

    // Nothing runs or waits: the newest reply that is worth it becomes the scheduler's background.
    void start(Scheduler& scheduler);
    // Somebody came: what the pass has published stays.
    void stop(Scheduler& scheduler);
    // A step was committed, perhaps with rows of the background.
    void after_step(Scheduler& scheduler);

    bool empty() const { return waiting_.empty(); }
    std::uint64_t pending() const;  // tokens

  private:
    struct Reply {
        std::unique_ptr<Sequence> sequence;  // prompt_tokens: up to where it can be made reusable
        Position reusable = 0;
        // Of its images; whoever has to be encoded again is not worth it.
        std::vector<std::weak_ptr<const std::vector<float>>> features;
    };

    static bool take_features(Reply& reply);
    static void drop_features(Reply& reply);

    std::uint64_t most_tokens_;
    std::vector<Reply> waiting_;  // the newest last; it alone is computed
    bool running_ = false;
};

}  // namespace percheron::engine
