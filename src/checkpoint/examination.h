// Compares the tensors of a folder with what its configuration needs.
#pragma once

#include <string>

#include "checkpoint/inventory.h"
#include "checkpoint/shards.h"
#include "model/config.h"

namespace percheron::checkpoint {

// Fills formats, unclassified, mtp, vision, warnings and problems of `inventory`, and sets
// config.mtp_layers and config.has_vision to what is stored.
void examine_tensors(const ShardSet& shards, model::ModelConfig& config, Inventory& inventory);

}  // namespace percheron::checkpoint
