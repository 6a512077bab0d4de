// Rewrites a checkpoint in smaller weight formats.
//
// What becomes of each tensor follows from its place in the network:
//   routed experts (the MTP layer's too)          options.experts
//   any other matrix, embedding, head and vision  options.rest if both its sizes are multiples of
//   128
//     included, stored under a matrix's name
//   everything else                               as stored
// Sources may be in any format that checkpoints are read in; a weight that already has the wanted
// format is copied.  Known leftovers the network does not use are dropped.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "percheron/types.h"

#include "core/status.h"
#include "ops/weight_matrix.h"

namespace percheron::tools {

struct QuantizeOptions {
    ops::WeightFormat experts = ops::WeightFormat::w4a16;  // w4a16 or fp8_block
    std::optional<ops::WeightFormat> rest;                 // fp8_block, or absent: as stored
    Bytes shard_limit = Bytes{5} << 30;
    std::size_t threads = 0;  // 0: all
    // Called after every weight with the bytes read so far and in all.
    std::function<void(Bytes done, Bytes total)> progress;
};

struct QuantizeReport {
    struct Format {
        std::size_t tensors = 0;  // a weight with its scales counts once
        Bytes bytes = 0;
        double relative_error = 0;  // root of squared error / squared sum over rounded weights
    };
    std::map<std::string, Format> formats;
    std::size_t files = 0;
    Bytes bytes = 0;
};

// Writes OUT: shards, config.json with a quantization_config, and copies of the tokenizer,
// template, generation and preprocessor files.  The bytes depend on the input and the options only.
// Everything is checked before the first byte is written; OUT may exist but must hold no
// checkpoint. Errors: those of Checkpoint::open; invalid_argument (OUT, a format that does not fit
// a matrix); corrupt (a weight that is not finite, named); io.
Result<QuantizeReport> quantize(const std::filesystem::path& model,
                                const std::filesystem::path& out, const QuantizeOptions& options);

}  // namespace percheron::tools
