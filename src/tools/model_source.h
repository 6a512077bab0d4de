// A model named on the command line, opened: a folder's checkpoint, or a made-up one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>

#include "percheron/types.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/inventory.h"
#include "core/status.h"
#include "model/config.h"
#include "model/weight_source.h"

namespace percheron::tools {

struct ModelSource {
    model::ModelConfig config;
    std::shared_ptr<model::WeightSource> weights;
    checkpoint::Inventory inventory;
    std::shared_ptr<checkpoint::Checkpoint> files;  // the same as weights; null: made up
    Bytes weight_bytes = 0;                         // memory once every weight was read or made
};

// `model` is of resolve_model(); `threads` make the values of a made-up one, 0 for all.
// `fp4_activations`: inputs of NVFP4 weights are rounded as their input scales say (W4A4).
// Errors: of Checkpoint::open, or of the made-up model's description; invalid_argument where no
// weight is NVFP4.
Result<ModelSource> open_model(const std::filesystem::path& model, std::size_t threads,
                               bool fp4_activations = false);

// The account of a model, without refusing anything but a description that is wrong.
// `values`: FP8 codes of a folder are read too (Checkpoint::Reading).
Result<checkpoint::Inventory> inspect_model(const std::filesystem::path& model,
                                            bool values = false);

// The configuration alone.
Result<model::ModelConfig> read_model_config(const std::filesystem::path& model);

// The folder with the tokenizer and the template: the model's own, and for a made-up model that of
// the embedded one.  Errors: invalid_argument (a made-up vocabulary too small for that tokenizer);
// not_found.
Result<std::filesystem::path> text_folder(const std::filesystem::path& model);

}  // namespace percheron::tools
