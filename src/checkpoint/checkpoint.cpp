#include "checkpoint/checkpoint.h"

#include <cstdint>
#include <cstring>

#include "checkpoint/config.h"
#include "checkpoint/examination.h"
#include "checkpoint/formats.h"

namespace percheron::checkpoint {
namespace {

namespace fs = std::filesystem;

std::size_t count_of(const StoredTensor& tensor) {
    return tensor.bytes.size() / size_of(tensor.dtype);
}

}  // namespace

std::string summary(const Inventory& inventory) {
    std::size_t total = 0;
    std::size_t quantised = 0;
    std::string kinds;
    for (const auto& [format, tally] : inventory.formats) {
        total += tally.tensors;
        if (format == ops::name_of(ops::WeightFormat::bf16) ||
            format == ops::name_of(ops::WeightFormat::f32)) {
            continue;
        }
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
            if (tensor.dtype != DType::f8_e4m3) continue;
            const Status codes = check_codes({&tensor, &file});
            if (!codes.ok()) inventory_.problems.push_back(codes.error());
        }
    }
}

Bytes Checkpoint::mapped_bytes() const {
    Bytes total = 0;
    for (const Inventory::File& file : inventory_.files) {
        total += file.bytes;
    }
    return total;
}

bool Checkpoint::has(std::string_view stem) const {
    return has_weight(shards_, stem);
}

Result<ops::WeightMatrix> Checkpoint::matrix(std::string_view stem, std::size_t n, std::size_t k) {
    Shape shape{n, k};
    for (const char* suffix : {".weight", ""}) {
        const TensorPlace place = shards_.find(std::string(stem) + suffix);
        if (place && place.tensor->shape.size() > 2 && place.tensor->shape[0] == n &&
            count_of(*place.tensor) == n * k) {
            shape = place.tensor->shape;
        }
    }
    PERCHERON_ASSIGN(const WeightParts parts, find_weight(shards_, stem, shape));
    for (const TensorPlace& place : {parts.data, parts.scales}) {
        if (place && place.tensor->dtype == DType::f8_e4m3) PERCHERON_TRY(check_codes(place));
    }
    ops::WeightMatrix matrix;
    matrix.format = parts.format;
    matrix.n = n;
    matrix.k = k;
    matrix.data = aligned(parts.data);
    if (parts.scales) matrix.scales = aligned(parts.scales);
    PERCHERON_ASSIGN(matrix.global_scale, global_scale(parts));
    return matrix;
}

Status Checkpoint::vector(std::string_view name, std::span<float> out) {
    const TensorPlace place = shards_.find(name);
    if (!place) {
        return Error(ErrorCode::not_found, folder_.string() + ": tensor " + std::string(name) +
                                               ": is in none of the files");
    }
    const StoredTensor& tensor = *place.tensor;
    if (tensor.dtype != DType::f32 && tensor.dtype != DType::bf16) {
        return Error(ErrorCode::unsupported, describe(place) + ": is " +
                                                 std::string(name_of(tensor.dtype)) +
                                                 ", this tensor must be BF16 or F32");
    }
    if (count_of(tensor) != out.size()) {
        return Error(ErrorCode::corrupt, describe(place) + ": has shape " +
                                             to_string(tensor.shape) + ", the network needs " +
                                             std::to_string(out.size()) + " elements");
    }
    if (tensor.dtype == DType::f32) {
        std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
        return {};
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, tensor.bytes.data() + 2 * i, sizeof(bits));
        out[i] = static_cast<float>(BFloat16::from_bits(bits));
    }
    return {};
}

const void* Checkpoint::aligned(const TensorPlace& place) {
    const std::span<const std::byte> bytes = place.tensor->bytes;
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % size_of(place.tensor->dtype) == 0) {
        return bytes.data();
    }
    const std::lock_guard lock(copies_mutex_);
    const auto [copy, fresh] = copies_.try_emplace(place.tensor);
    if (fresh) copy->second.assign(bytes.begin(), bytes.end());
    return copy->second.data();
}

}  // namespace percheron::checkpoint
