// The replay engine: an Engine whose tokens come from a ReplayScript, on its own thread and clock.
//
// Requests wait, are admitted (at most max_running choices at once, larger priority first, then in
// order of arrival), spend prefill_ms, then take one step of their reply every delay_ms.  All that
// is due at one moment is one engine step: one call of the sink.  A stop id, max_tokens, the
// context's end or the deadline ends a reply earlier than its steps.  Nothing is cached; sampling
// parameters change nothing but the reported seed.
#pragma once

#include <cstdint>
#include <memory>

#include "percheron/engine.h"

#include "core/status.h"
#include "replay/replay_script.h"

namespace percheron {

// `description`: model_name, vocabulary, context_tokens, kv_tokens, max_running and stop_tokens are
// taken as given.
std::unique_ptr<Engine> make_replay_engine(ReplayScript script, EngineDescription description);

}  // namespace percheron
