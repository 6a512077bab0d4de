// How a proposer draws a draft from logits of its own: as the token at that place would be drawn
// from the trunk's, with the drafts before it counted and the same noise.
#pragma once

#include <span>

#include "percheron/types.h"

#include "core/status.h"
#include "draft/proposer.h"
#include "sampling/sampler.h"

namespace percheron::draft {

// The draft for position first + drafts.size(), where `drafts` stand from `first` on.  `allowed`:
// the bits of the proposer's candidates; empty: everything.
// Errors: the sampler's (broken logits, nothing left to choose).
inline Result<TokenId> draw_draft(sampling::Sampler& sampler, const Drawing& drawing,
                                  const sampling::LogitRow& logits, Position first,
                                  std::span<const TokenId> drafts,
                                  std::span<const std::uint32_t> allowed = {}) {
    sampling::SamplingRow row;
    row.logits = logits;
    row.parameters = drawing.parameters;
    row.counts = drawing.counts;
    row.banned = drawing.banned;
    row.allowed = allowed;
    row.noise = drawing.noise;
    row.position = first + static_cast<Position>(drafts.size());
    if (row.position < drawing.stops_masked_before) {
        row.masked = drawing.stops;
    }
    if (drawing.counts == nullptr) {
        return sampler.choose(row);
    }
    drawing.counts->add(drafts);
    Result<TokenId> token = sampler.choose(row);
    for (auto draft = drafts.rbegin(); draft != drafts.rend(); ++draft) {
        drawing.counts->remove(*draft);
    }
    return token;
}

// What the digest of a row of logits has to tell so that a draft can be drawn from it.
inline ops::DigestRequest digest_for(const Drawing& drawing, Position position) {
    return sampling::digest_request(*drawing.parameters, drawing.noise, position,
                                    position < drawing.stops_masked_before);
}

}  // namespace percheron::draft
