// What follows from the options before the first request: whether they agree with the network, what
// the engine says of itself, what it will refuse, and the sequences it makes of requests.
#pragma once

#include <cstdint>
#include <memory>

#include "percheron/engine.h"

#include "cache/cache_store.h"
#include "core/status.h"
#include "engine/draft_rounds.h"
#include "engine/local_engine.h"
#include "engine/request_check.h"
#include "engine/sequence.h"

namespace percheron::engine {

// Errors: invalid_argument, with the option named.
Status check_options(const NetworkParts& parts, const LocalEngineOptions& options);

EngineDescription describe(const NetworkParts& parts, const LocalEngineOptions& options);

// Those the options ask for, in the order they are asked; takes the MTP layer out of `parts`.
// Empty: no speculation.
// What the network's dimensions say of the time of its steps.
draft::StepShape step_shape(const NetworkParts& parts);

DraftRounds::Proposers make_proposers(NetworkParts& parts, const cache::CacheStore& caches,
                                      const LocalEngineOptions& options);

// What a file of the prefix cache holds of caches like these.
void add_shape(cache::TierOptions& files, const cache::CacheShape& shape);

RequestLimits limits_of(const NetworkParts& parts, const LocalEngineOptions& options);

// One choice of a checked request; its number and arrival are the caller's to give.
std::unique_ptr<Sequence> make_sequence(const GenerationRequest& request,
                                        const LocalEngineOptions& options, std::size_t vocabulary,
                                        std::uint64_t seed, std::uint32_t choice,
                                        EngineEventSink& sink);

}  // namespace percheron::engine
