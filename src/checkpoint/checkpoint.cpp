#include "checkpoint/checkpoint.h"

#include "checkpoint/config.h"
#include "checkpoint/examination.h"
#include "checkpoint/formats.h"

namespace percheron::checkpoint {
namespace fs = std::filesystem;

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const fs::path& folder) {
    std::unique_ptr<Checkpoint> checkpoint(new Checkpoint(folder));
    checkpoint->examine();
    const std::vector<Error>& problems = checkpoint->inventory_.problems;
    if (problems.empty()) return checkpoint;
    if (problems.size() == 1) return problems.front();
    return Error(problems.front().code(), problems.front().message() + " (and " +
                                              std::to_string(problems.size() - 1) +
                                              " more; `percheron inspect` lists them)");
}

Inventory Checkpoint::inspect(const fs::path& folder, Reading reading) {
    Checkpoint checkpoint(folder);
    checkpoint.examine();
    if (reading == Reading::values) checkpoint.examine_values();
    return std::move(checkpoint.inventory_);
}

void Checkpoint::examine() {
    std::vector<Error>& problems = inventory_.problems;
    shards_ = ShardSet::scan(folder_, problems);
    for (const SafetensorsFile& file : shards_.files()) {
        inventory_.files.push_back({file.path().filename().string(), file.mapping().bytes().size(),
                                    file.tensors().size()});
    }
    const bool shards_are_sound = problems.empty();
    std::error_code error;
    if (std::filesystem::exists(folder_ / "model.safetensors", error) &&
        std::filesystem::exists(folder_ / "model.safetensors.index.json", error)) {
        inventory_.warnings.push_back(
            "model.safetensors is read, and model.safetensors.index.json beside it is not; remove "
            "the one that is not meant");
    }
    auto config = read_config(folder_);
    if (!config.ok()) {
        problems.insert(problems.begin(), config.error());
        return;
    }
    config_ = std::move(config).value();
    // With a shard missing every tensor in it would be reported as missing too.
    if (!shards_are_sound) return;
    auto claims = read_quantization_configs(folder_);
    if (!claims.ok()) {
        inventory_.warnings.push_back(claims.error().message() + "; the files decide");
        std::vector<QuantizationConfig> silent(1);
        silent.front().silent = true;
        claims = std::move(silent);
    }
    examine_tensors(shards_, config_, *claims, inventory_);
}

void Checkpoint::examine_values() {
    for (const SafetensorsFile& file : shards_.files()) {
        for (const StoredTensor& tensor : file.tensors()) {
            const Status values = check_values({&tensor, &file});
            if (!values.ok()) inventory_.problems.push_back(values.error());
        }
    }
}

}  // namespace percheron::checkpoint
