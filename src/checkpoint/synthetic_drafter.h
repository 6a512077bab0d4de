// A made-up DFlash2 drafter for a given model: what `synth --drafter` writes.
//
// Weights are scaled as those of a made-up model (synthetic_model.h).  Norms have mean 1 and
// deviation 0.2, base kernels mean 0.5 and deviation 0.3, kernel projections 0.3 of unit gain, and
// the codebooks are such that a candidate's S - U has about unit variance: every part shows in what
// the drafter names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/drafter.h"
#include "checkpoint/synthetic_model.h"
#include "core/status.h"
#include "model/config.h"
#include "model/dflash2_config.h"

namespace percheron::checkpoint {

struct SyntheticDrafter {
    model::Dflash2Config config;  // mask filled where the kind has one
    std::size_t target_layer_count = 0;
    std::uint64_t seed = 1;
    std::vector<SyntheticWeight> weights;
};

// The sizes of the published drafters beside a model of GLM-5.3-Flash's width, and smaller ones
// beside a narrower model.  `kind`: "reference" (5 layers that see a window, the model's embedding
// and head) or "full" (8 layers that see everything, its own embedding, head and mask vector).
// Errors: invalid_argument (another kind, a model of fewer than three layers).
Result<SyntheticDrafter> make_synthetic_drafter(std::string_view kind,
                                                const model::ModelConfig& target,
                                                std::uint64_t seed);

// The weights and the mask vector of any shape: fills both.
void fill_synthetic_drafter(SyntheticDrafter& drafter);

// config.json of the written folder.
std::string written_config(const SyntheticDrafter& drafter);

}  // namespace percheron::checkpoint
