#include "checkpoint/checkpoint.h"

#include "checkpoint/config.h"
#include "checkpoint/examination.h"
#include "checkpoint/formats.h"

namespace percheron::checkpoint {
namespace fs = std::filesystem;

bool is_unquantised(std::string_view form) {
    return form == ops::name_of(ops::WeightFormat::bf16) ||
           form == ops::name_of(ops::WeightFormat::f32) || form == "f16";
}

std::string summary(const Inventory& inventory) {
    std::size_t total = 0;
    std::size_t quantised = 0;
    std::string kinds;
    for (const auto& [format, tally] : inventory.formats) {
        total += tally.tensors;
        if (is_unquantised(format)) continue;
        quantised += tally.tensors;
        kinds += (kinds.empty() ? " (" : ", ") + std::to_string(tally.tensors) + " " + format;
    }
    if (!kinds.empty()) kinds += ")";
    return std::to_string(total) + " tensors: " + std::to_string(quantised) + " quantised" + kinds +
           ", " + std::to_string(inventory.ignored.size()) + " ignored by quantization_config, " +
           std::to_string(inventory.unclassified.size()) + " unclassified; MTP " +
           (inventory.mtp ? "found" : "not found") + ", vision " +
           (inventory.vision ? "found" : "not found");
}

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
        claim = std::optional<QuantizationConfig>();
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
