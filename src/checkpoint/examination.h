// Compares the tensors of a folder with what its configuration needs.
#pragma once

#include <span>

#include "checkpoint/inventory.h"
#include "checkpoint/quantization_config.h"
#include "checkpoint/shards.h"
#include "model/config.h"

namespace percheron::checkpoint {

// Fills formats, parts, unclassified, mtp, vision, warnings and problems of `inventory`, and sets
// config.mtp_layers and config.has_vision to what is stored.  `claims` are what the config files
// say about formats; they fill `ignored` (the first), `disagreements` and `warnings` and change
// nothing else.
void examine_tensors(const ShardSet& shards, model::ModelConfig& config,
                     std::span<const QuantizationConfig> claims, Inventory& inventory);

}  // namespace percheron::checkpoint
