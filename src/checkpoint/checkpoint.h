// A model folder, opened: configuration, every tensor mapped and checked, and the weights in the
// form the network asks for.
//
// open() reads headers and a few scalars, no weights: a damaged, cut or missing shard, a wrong
// shape, a missing tensor or field is refused here, naming file and tensor or field.  Whether the
// MTP layer and the vision tower exist is read off the files, never off the config alone; config()
// reports what was found.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "checkpoint/inventory.h"
#include "checkpoint/shards.h"
#include "core/status.h"
#include "model/config.h"
#include "model/weight_source.h"

namespace percheron::checkpoint {

class Checkpoint final : public model::WeightSource {
  public:
    // Errors: the first problem of the inventory, and how many more there are.
    static Result<std::unique_ptr<Checkpoint>> open(const std::filesystem::path& folder);

    enum class Reading {
        headers,
        values,  // also every FP8 code, for NaN
    };
    // The same examination without refusing anything.
    static Inventory inspect(const std::filesystem::path& folder,
                             Reading reading = Reading::headers);

    const std::filesystem::path& folder() const { return folder_; }
    const model::ModelConfig& config() const { return config_; }
    const Inventory& inventory() const { return inventory_; }
    const ShardSet& shards() const { return shards_; }

    // Bytes of all mapped files: what the page cache holds once everything was read.
    Bytes mapped_bytes() const;

    bool has(std::string_view stem) const override;
    // Also takes tensors of more extents whose first is n and whose others multiply to k
    // (convolutions, the patch embedding), if they are BF16 or F32.  Reads FP8 codes once: NaN is
    // corrupt.  Thread-safe.
    Result<ops::WeightMatrix> matrix(std::string_view stem, std::size_t n, std::size_t k) override;
    Status vector(std::string_view name, std::span<float> out) override;

  private:
    explicit Checkpoint(std::filesystem::path folder) : folder_(std::move(folder)) {}
    void examine();
    void examine_values();

    // The bytes of a stored tensor at an address that suits its type.
    const void* aligned(const TensorPlace& place);

    std::filesystem::path folder_;
    model::ModelConfig config_;
    Inventory inventory_;
    ShardSet shards_;
    std::mutex copies_mutex_;
    // Copies of tensors that a writer left unaligned.
    std::map<const StoredTensor*, std::vector<std::byte>> copies_;
};

}  // namespace percheron::checkpoint
