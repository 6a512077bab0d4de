// Digests of rows of logits (ops/logit_digest.h), one kernel for a step's.
#pragma once

#include <cstdint>

#include "core/status.h"
#include "ops/cuda/launch.h"
#include "ops/logit_digest.h"

namespace percheron::ops::cuda {

struct LogitDigestion {
    const float* logits = nullptr;  // [rows][vocabulary]
    int rows = 0;
    int vocabulary = 0;
    const DigestRequest* requests = nullptr;  // [rows]
    const std::uint32_t* excluded = nullptr;  // bit v of word v / 32
    LogitDigest* digests = nullptr;           // [rows]
};

// A row lies in the shared memory of a cluster's blocks.
bool digests_fit(std::size_t vocabulary);

// A row's digest is a function of the row, its request and `excluded` alone; `top` has as many
// entries as are not below the 256th by more than a sixteenth, but never more than 256.
// Errors: internal (launch).
Status digest_logits(const LogitDigestion& op, const LaunchContext& context);

}  // namespace percheron::ops::cuda
