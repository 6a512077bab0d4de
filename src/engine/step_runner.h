// Turns a plan into the rows of a batch and runs the network over them.
#pragma once

#include <span>
#include <vector>

#include "percheron/types.h"

#include "cache/cache_store.h"
#include "core/status.h"
#include "engine/scheduler.h"
#include "model/network.h"
#include "ops/batch.h"
#include "sampling/logit_row.h"

namespace percheron::engine {

class StepRunner {
  public:
    StepRunner(model::Network& network, const cache::CacheStore& caches)
        : network_(network), caches_(caches) {}

    // Logits of the newest row and of the drafts' rows of every planned sequence that wants a
    // token, in order; valid until the next run.  Digests of them where the network has some.
    Result<sampling::LogitRows> run(const StepPlan& plan);

    // Logits of further rows of the latest run's step (prompt tokens to be scored); what run() gave
    // is overwritten.
    Result<std::span<const float>> logits_of(std::span<const std::uint32_t> rows) {
        return network_.logits_of(batch_, rows);
    }
    std::size_t most_logit_rows() const { return network_.max_logit_rows(); }

  private:
    // Of the rows that give a sequence its tokens, the first at its end.
    void ask_for_digests(const PlannedRows& planned);
    // The feature rows among `planned`'s, whose first row in the step is `first_row`.
    void add_features(const PlannedRows& planned, std::uint32_t first_row);

    model::Network& network_;
    const cache::CacheStore& caches_;
    // Kept from step to step for their memory.
    std::vector<ops::SequenceRows> sequences_;
    std::vector<TokenId> tokens_;
    std::vector<ops::EmbeddingOverride> overrides_;
    std::vector<std::uint32_t> logit_rows_;
    std::vector<ops::DigestRequest> digests_;
    ops::RowBatch batch_;  // of the latest run
};

}  // namespace percheron::engine
