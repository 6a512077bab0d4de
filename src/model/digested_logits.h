// Digests of what a network's head gave, with the rows within reach.
#pragma once

#include "ops/backend.h"
#include "ops/logit_digest.h"

namespace percheron::model {

class DigestedLogits final : public ops::DigestedRows {
  public:
    // `logits`: the host's memory that rows are fetched to, [most rows][vocabulary].
    DigestedLogits(ops::LogitDigests& backend, ops::Activations logits)
        : backend_(backend), logits_(logits) {}

    std::span<const ops::LogitDigest> digests() const override { return backend_.digests(); }
    Status fetch(std::size_t row) override { return backend_.fetch(row, logits_.row<float>(row)); }

  private:
    ops::LogitDigests& backend_;
    ops::Activations logits_;
};

}  // namespace percheron::model
