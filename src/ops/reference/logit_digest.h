// A digest (ops/logit_digest.h) in the plainest way: the oracle of the others.
#pragma once

#include <span>
#include <vector>

#include "ops/logit_digest.h"

namespace percheron::ops::reference {

// `excluded`: one flag a token.
LogitDigest digest_of(std::span<const float> logits, const DigestRequest& request,
                      const std::vector<bool>& excluded);

}  // namespace percheron::ops::reference
