// An engine in a process of its own, so that its death costs the requests in flight and not the
// server.  docs/RANKS.md says what happens when.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "percheron/engine.h"

#include "core/status.h"

namespace percheron::parallel {

struct RemoteOptions {
    // Of this same binary: what makes it call serve_rank() (rank_process.h).
    std::vector<std::string> arguments;
    // What the rank does before it is ready for the first time.
    std::function<void(const std::string&)> on_stage;
    // Called once on a thread of the engine's, when a rank that served cannot be started again.
    std::function<void(const Error&)> on_gave_up;
    // Before the first start again; twice as long after every other, until a request has ended
    // well.
    std::chrono::milliseconds first_wait{1000};
    std::chrono::milliseconds longest_wait{60'000};
    // A rank with work that makes no step for so long, and twenty times as long as between any two
    // steps before, is killed; one that loads, when it says nothing new for ten times as long.
    std::chrono::milliseconds patience{60'000};
};

// Returns once the rank is ready.  Requests in flight when it dies end as failed with engine_dead,
// those that were not begun without an admission; then it is started again.  Grammars must have
// rules().  Errors: what the rank refused to start for, io.
Result<std::unique_ptr<Engine>> start_remote_engine(RemoteOptions options);

}  // namespace percheron::parallel
