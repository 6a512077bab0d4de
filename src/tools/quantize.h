// Rewrites a checkpoint in smaller weight formats.
//
// What becomes of each tensor follows from its place in the network and from the options:
//   weights that `include` names              options.format; without patterns the routed experts,
//                                             the MTP layer's too
//   weights that `keep` names                 as stored, whatever else is said
//   any other matrix, embedding, head and     options.rest if both its sizes are multiples of 128
//     vision included, stored under a
//     matrix's name
//   everything else                           as stored
// Sources may be in any format that checkpoints are read in; a weight that already has the wanted
// format is copied.  Known leftovers the network does not use are dropped.
//
// Without texts values are rounded to the nearest.  With texts (Calibration) the matrices of
// options.format in the trunk's layers and the MTP layer are rounded so that their outputs on those
// texts change least (quantize_gptq.h), layer after layer, each fed by the layers as they have been
// written.  A matrix that fewer than `least_rows` rows of the texts reach is rounded to the nearest
// and named in the report.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "percheron/types.h"

#include "core/status.h"
#include "ops/weight_matrix.h"
#include "tools/quantize_calibration.h"

namespace percheron::tools {

struct Calibration {
    std::vector<CalibrationText> texts;
    bool all_experts = false;     // every row of a layer counts for every expert of it
    std::size_t least_rows = 64;  // that a matrix must have been used by
    double damping = 0.01;        // FactorOptions
};

struct QuantizeReport;

struct QuantizeOptions {
    ops::WeightFormat format = ops::WeightFormat::w4a16;  // w4a16, fp8_block or nvfp4
    // Patterns as in quantization configs (checkpoint/quantization_config.h).
    std::vector<std::string> include;
    std::vector<std::string> keep;
    std::optional<ops::WeightFormat> rest;   // fp8_block, or absent: as stored
    std::optional<Calibration> calibration;  // not for fp8_block
    Bytes shard_limit = Bytes{5} << 30;
    std::size_t threads = 0;  // 0: all
    // Called after every weight with the bytes of the source read so far and in all.
    std::function<void(Bytes done, Bytes total)> progress;
    // Called once the checkpoint is whole, for what describes it.  If it fails or is stopped, the
    // same run started again comes back to it.
    std::function<Status(const QuantizeReport&)> finish;
};

struct QuantizeReport {
    struct Format {
        std::size_t tensors = 0;  // a weight with its scales counts once
        Bytes bytes = 0;
        double relative_error = 0;  // root of squared error / squared sum over rounded weights
    };
    // One layer's calibrated matrices; errors of their outputs on the texts, relative to the
    // outputs: root of the sum of squares over all matrices.
    struct Layer {
        std::size_t index = 0;  // the MTP layer comes behind the trunk's
        std::size_t matrices = 0;
        // Absent where no row of the texts reached any of them.
        std::optional<double> error;
        std::optional<double> nearest_error;     // had they been rounded to the nearest
        std::vector<std::uint64_t> expert_rows;  // rows routed to each expert; empty: dense
    };
    std::map<std::string, Format> formats;
    std::vector<Layer> layers;
    // "STEM: 3 rows": matrices that were to be calibrated and had too few rows.
    std::vector<std::string> uncovered;
    std::size_t calibration_texts = 0;
    TextMarks calibration_marks;
    std::size_t calibration_tokens = 0;
    std::size_t files = 0;
    Bytes bytes = 0;
    Bytes source_bytes = 0;
};

// `model` is of resolve_model(); a made-up one is written beside OUT for the while
// (stored_model.h). Writes OUT: shards, config.json with a quantization_config, and copies of the
// tokenizer, template, generation and preprocessor files.  The bytes depend on the input, the
// options and, with texts, the machine's vector instructions only.
//
// Everything is checked before the first byte is written; OUT may exist but must hold no
// checkpoint.  Until the end all files lie in OUT/.quantize: a run that was stopped goes on from
// the last finished layer when it is started again with the same input and options, and ends with
// the same bytes.
// Errors: those of Checkpoint::open; invalid_argument (OUT, a format that does not fit a matrix, a
// pattern that names nothing that can be rounded, an unfinished run with other options); corrupt (a
// weight that is not finite, named); io.
Result<QuantizeReport> quantize(const std::filesystem::path& model,
                                const std::filesystem::path& out, const QuantizeOptions& options);

}  // namespace percheron::tools
