// A made-up network: every weight with the tensors it is stored as and the rule of their values.
// What `synth` writes and what a network loads without a file are both made from this.
//
// Weights are scaled such that unit-variance inputs give unit-variance outputs: matrices,
// convolutions and the patch embedding have standard deviation 1 / sqrt(inputs of an output), the
// embedding 1.  Norms are 1, A_log is uniform in [-0.5, 0.5], dt_bias in [-6.9, -2.3] (time steps
// of 0.001 to 0.1), hc_*_base 0 and hc_*_scale 1; the router's bias has standard deviation 0.01,
// every other bias and the pooling places 0.02.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "percheron/types.h"

#include "checkpoint/architecture.h"
#include "checkpoint/inventory.h"
#include "checkpoint/synthetic_spec.h"
#include "checkpoint/synthetic_values.h"
#include "core/status.h"
#include "core/thread_pool.h"
#include "model/config.h"
#include "ops/weight_matrix.h"

namespace percheron::checkpoint {

struct SyntheticWeight {
    ExpectedTensor tensor;
    ops::WeightFormat format = ops::WeightFormat::bf16;
    // The values first, then scales, then an nvfp4 weight's factor or a w4a16 weight's shape.
    std::vector<SyntheticTensor> parts;

    Bytes bytes() const;
};

struct SyntheticModel {
    SyntheticSpec spec;
    model::ModelConfig config;
    std::vector<SyntheticWeight> weights;  // in the network's order
};

// Errors: those of check_spec.
Result<SyntheticModel> make_synthetic_model(const SyntheticSpec& spec);

// config.json of the written checkpoint, its quantization_config included.
std::string written_config(const SyntheticModel& model);

// What Checkpoint::inspect says of the written checkpoint, without files.
Inventory inventory_of(const SyntheticModel& model);

// All bytes of a tensor, made by every thread of the pool.  `out` has the tensor's size.
void make_tensor(const SyntheticTensor& tensor, std::uint64_t seed, ThreadPool& pool,
                 std::span<std::byte> out);

}  // namespace percheron::checkpoint
