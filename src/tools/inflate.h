// A large model that computes what a small one does: the feed-forwards and experts of a checkpoint
// made wider with zeros.
//
// Gate and up matrices get rows of zeros, down matrices columns of zeros, each in the format it is
// stored in.  A zero gate times a zero up is zero, and meets a zero column: what is added changes
// no value, only the bytes that a token reads and, with the length of the down sums, the order in
// which they are rounded.  Routing, tokens and draft acceptance are the small model's, the traffic
// is a large one's.
#pragma once

#include <filesystem>
#include <functional>

#include "percheron/types.h"

#include "core/status.h"
#include "tools/synth.h"

namespace percheron::tools {

struct InflateOptions {
    Bytes size = 0;  // of all tensors; at least the model's own
    Bytes shard_limit = Bytes{5} << 30;
    std::function<void(Bytes done, Bytes total)> progress;
};

// `model` is of resolve_model(); a made-up one is written beside OUT for the while
// (stored_model.h). Writes OUT: the widest model of at most `size` bytes whose expert width is a
// multiple of 128, the dense width growing in proportion; config.json with the new widths; the
// companions of MODEL. Errors: those of Checkpoint::open; invalid_argument (OUT, a size below the
// model's); io, also if the disk has too few bytes free, before anything is written.
Result<SynthReport> inflate(const std::filesystem::path& model, const std::filesystem::path& out,
                            const InflateOptions& options);

}  // namespace percheron::tools
