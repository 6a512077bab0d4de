// Times a few small steps before there is anything to do, so that the first request's drafts are
// already chosen by measured costs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "cache/cache_store.h"
#include "core/status.h"
#include "engine/draft_rounds.h"
#include "engine/local_engine.h"
#include "model/network.h"

namespace percheron::engine {

// Rows of the steps; a row past eight and sixteen too, where kernels begin another tile.
inline constexpr std::array<std::uint32_t, 8> probed_rows = {1, 2, 4, 8, 9, 16, 17, 32};
// So many rows are also probed as rows of as many sequences, behind them a pass for them all.
inline constexpr std::uint32_t probed_sequences = 8;

// Steps of so many rows over the first slots and pages, which must be free and are as good as free
// afterwards: whoever gets a slot has it cleared.  Takes about `short_probe` seconds where somebody
// waits meanwhile, `long_probe` at most where nobody does, and a step longer than that.
inline constexpr double short_probe = 0.06;
inline constexpr double long_probe = 0.5;

// Errors: the backend's, which end the engine.
Status probe_steps(model::Network& network, cache::CacheStore& caches, DraftRounds& rounds,
                   const LocalEngineOptions& options, const std::function<bool()>& somebody_waits);

}  // namespace percheron::engine
