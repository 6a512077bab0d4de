// Compares the tensors of a folder with what its configuration needs.
#pragma once

#include <optional>

#include "checkpoint/inventory.h"
#include "checkpoint/quantization_config.h"
#include "checkpoint/shards.h"
#include "model/config.h"

namespace percheron::checkpoint {

// Fills formats, parts, unclassified, mtp, vision, warnings and problems of `inventory`, and sets
// config.mtp_layers and config.has_vision to what is stored.  `claim` is what the config files say
// about formats; it fills `ignored`, `disagreements` and `warnings` and changes nothing else.
void examine_tensors(const ShardSet& shards, model::ModelConfig& config,
                     const std::optional<QuantizationConfig>& claim, Inventory& inventory);

}  // namespace percheron::checkpoint
