// Which drafts hold.  A round gives the trunk the newest token and K drafts behind it; row i's
// logits decide the token behind it.  Tokens are taken one by one, each with everything that looks
// at the tokens before it (penalties, budgets, masks, stop rules), exactly as without drafts; row i
// + 1 was computed with draft i in that place, so it counts only if draft i is the token taken.
//
// The first row is certain, so a round commits it; the rows of its drafts are kept beside the state
// and folded into it by the sequence's next step, as far as they were accepted (ops/batch.h).
#pragma once

#include <cstdint>
#include <span>

#include "percheron/types.h"

namespace percheron::draft {

// The most rows between a sequence's state and the end of a step that does not commit them all:
// the accepted drafts of the round before, and a round.  For cache::CacheShape::of().
constexpr std::uint32_t uncommitted_rows(std::uint32_t depth) {
    return depth == 0 ? 0 : depth + 1 + depth;
}

struct TakenToken {
    TokenId token{};
    bool ended = false;  // the sequence ends with it (or failed to take one)
};

struct Verdict {
    std::uint32_t taken = 0;     // tokens, the one behind the last accepted draft included
    std::uint32_t accepted = 0;  // drafts that hold: taken, or taken - 1
    bool ended = false;
};

// take(i) chooses from row i's logits and takes the token; called for i = 0, 1, ... until a draft
// does not hold, the drafts are used up or the sequence ends.
template <class Take>
Verdict verify(std::span<const TokenId> drafts, Take&& take) {
    Verdict verdict;
    for (std::uint32_t row = 0; row <= drafts.size(); ++row) {
        const TakenToken taken = take(row);
        ++verdict.taken;
        verdict.ended = taken.ended;
        const bool holds = row < drafts.size() && taken.token == drafts[row];
        verdict.accepted += holds ? 1 : 0;
        if (!holds || taken.ended) {
            break;
        }
    }
    return verdict;
}

}  // namespace percheron::draft
