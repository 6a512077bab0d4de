// Writes a checkpoint of random values: any layer count, sizes, format, seed and shards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "percheron/types.h"

#include "checkpoint/synthetic_drafter.h"
#include "checkpoint/synthetic_spec.h"
#include "core/status.h"

namespace percheron::tools {

struct SynthOptions {
    checkpoint::SyntheticSpec spec;
    Bytes shard_limit = Bytes{5} << 30;
    std::size_t shards = 0;    // exactly so many, of like sizes; 0: as many as the limit asks for
    bool split_pairs = false;  // scales and shapes of weights lie in other shards than the weights
    std::size_t threads = 0;
    // A folder with the tokenizer to copy; empty: none.  Copied if the vocabulary holds its ids.
    std::filesystem::path tokenizer_from;
    std::function<void(Bytes done, Bytes total)> progress;
};

struct SynthReport {
    std::size_t tensors = 0;  // stored ones
    Bytes bytes = 0;
    std::size_t files = 0;
    bool tokenizer = false;  // was copied
};

// The values depend on the spec only, never on shards or threads.
// Errors: invalid_argument (the spec, OUT, more shards than weights); io.
Result<SynthReport> synth(const std::filesystem::path& out, const SynthOptions& options);

// A drafter's folder, in one file; of `options` threads and progress count.  Errors: as above.
Result<SynthReport> synth_drafter(const std::filesystem::path& out,
                                  const checkpoint::SyntheticDrafter& drafter,
                                  const SynthOptions& options);

}  // namespace percheron::tools
