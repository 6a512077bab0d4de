// A model folder, opened: configuration, every tensor mapped and checked, and the weights in the
// form the network asks for.
//
// open() reads headers and a few scalars, no weights: a damaged, cut or missing shard, a wrong
// shape, a missing tensor or field is refused here, naming file and tensor or field.  Whether the
// MTP layer and the vision tower exist is read off the files, never off the config alone; config()
// reports what was found.
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint/inventory.h"
#include "checkpoint/shard_weights.h"
#include "core/status.h"
#include "model/config.h"

namespace percheron::checkpoint {

class Checkpoint final : public ShardWeights {
  public:
    // Errors: the first problem of the inventory, and how many more there are.
    static Result<std::unique_ptr<Checkpoint>> open(const std::filesystem::path& folder);

    enum class Reading {
        headers,
        values,  // also every number and FP8 code, for NaN
    };
    // The same examination without refusing anything.
    static Inventory inspect(const std::filesystem::path& folder,
                             Reading reading = Reading::headers);

    const std::filesystem::path& folder() const { return folder_; }
    const model::ModelConfig& config() const { return config_; }
    const Inventory& inventory() const { return inventory_; }

  private:
    explicit Checkpoint(std::filesystem::path folder) : folder_(std::move(folder)) {}
    void examine();
    void examine_values();

    std::filesystem::path folder_;
    model::ModelConfig config_;
    Inventory inventory_;
};

}  // namespace percheron::checkpoint
