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
    auto config = read_config(folder_);
    if (!config.ok()) {
        problems.insert(problems.begin(), config.error());
        return;
    }
    config_ = std::move(config).value();
    // With a shard missing every tensor in it would be reported as missing too.
    if (!shards_are_sound) return;
    auto claim = read_quantization_config(folder_);
    if (!claim.ok()) {
        inventory_.warnings.push_back(claim.error().message() + "; the files decide");
        QuantizationConfig silent;
        silent.silent = true;
        claim = std::optional(std::move(silent));
    }
    examine_tensors(shards_, config_, *claim, inventory_);
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
