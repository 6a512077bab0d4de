// The folder of a DFlash2 or plain DFlash drafter, opened: config.json, its tensors under their
// published names, and mask_embedding.pt where the places to be named have a vector of their own.
//
// Fields of `dflash_config` go before those of the same name at top level.  As for the model's own
// config, what the network needs has no default here, and what it does not compute is refused.  A
// drafter with embeddings of its own must come with its mask vector: the row of the mask token was
// never trained.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/architecture.h"
#include "checkpoint/shard_weights.h"
#include "core/status.h"
#include "model/dflash2_config.h"

namespace percheron::checkpoint {

// How many layers the model has that the drafter says it was made for; 0: it does not say.
struct DrafterConfig {
    model::Dflash2Config shape;  // without what is read off the files: mask, own_*
    std::size_t target_layer_count = 0;
};

// Errors: corrupt, not_found, unsupported, each naming `name` and the field.
Result<DrafterConfig> parse_drafter_config(const std::string& text, const std::string& name);

// Every tensor of such a drafter, by published name.
std::vector<ExpectedTensor> drafter_tensors(const model::Dflash2Config& config);

class Drafter final : public ShardWeights {
  public:
    // Headers alone are read, and the mask vector.  Errors: of the files, with tensor or field
    // named.
    static Result<std::unique_ptr<Drafter>> open(const std::filesystem::path& folder);

    const model::Dflash2Config& config() const { return config_.shape; }
    std::size_t target_layer_count() const { return config_.target_layer_count; }
    // Stored tensors that the drafter has no place for.
    const std::vector<std::string>& left_over() const { return left_over_; }

  private:
    Status examine(const std::filesystem::path& folder);

    DrafterConfig config_;
    std::vector<std::string> left_over_;
};

}  // namespace percheron::checkpoint
