// Which format every weight of a checkpoint gets.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/architecture.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/formats.h"
#include "checkpoint/names.h"
#include "checkpoint/safetensors_writer.h"
#include "core/status.h"
#include "tools/quantize.h"

namespace percheron::tools {

struct PlannedWeight {
    checkpoint::ExpectedTensor tensor;
    checkpoint::WeightParts source;
    ops::WeightFormat format = ops::WeightFormat::bf16;
    bool calibrated = false;  // by texts, not to the nearest value
    // Part of the network that is written together: 0 embedding, norm and head, then the layers,
    // the MTP layer's behind the trunk's, then vision.
    std::size_t section = 0;
    std::vector<checkpoint::TensorHeader> outputs;  // data first, then scales, then the last part

    bool copied() const { return format == source.format; }
    std::size_t rows() const { return tensor.shape[0]; }
    std::size_t columns() const { return tensor.shape[1]; }
};

// Every weight of the network, in the network's order.  Errors: invalid_argument (a pattern that
// names nothing that can have the format, a row length that does not suit it).
Result<std::vector<PlannedWeight>> plan_quantization(const checkpoint::Checkpoint& model,
                                                     const QuantizeOptions& options);

}  // namespace percheron::tools
