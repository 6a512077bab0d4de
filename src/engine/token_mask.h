// Which ids a sequence may choose next: what its constraint allows, and when stop ids are out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/status.h"
#include "engine/sequence.h"
#include "sampling/sampler.h"

namespace percheron::engine {

class TokenMask {
  public:
    explicit TokenMask(std::size_t vocabulary) : allowed_((vocabulary + 31) / 32) {}

    // Sets row.masked and row.allowed for the position after the sequence's tokens, the `number`-th
    // of its rows in the step; valid until the next call.  Errors: AnswerMasks::mask().
    Status apply(const Sequence& sequence, std::uint32_t number, sampling::SamplingRow& row);

  private:
    void drop_stop_ids(const Sequence& sequence);

    std::vector<std::uint32_t> allowed_;
    std::vector<TokenId> dropped_;
};

}  // namespace percheron::engine
