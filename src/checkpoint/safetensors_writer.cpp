#include "checkpoint/safetensors_writer.h"

#include <algorithm>
#include <cassert>
#include <cstdio>

#include <nlohmann/json.hpp>

namespace percheron::checkpoint {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t header_alignment = 8;

Error misuse(const std::string& name, const std::string& what) {
    return Error(ErrorCode::invalid_argument, "tensor " + name + ": " + what);
}

}  // namespace

Bytes TensorHeader::bytes() const {
    std::size_t count = 0;
    [[maybe_unused]] const bool fits = element_count(shape, count);
    assert(fits);
    return count * size_of(dtype);
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::filesystem::path& path,
                                                    std::vector<TensorHeader> tensors) {
    std::sort(tensors.begin(), tensors.end(), [](const TensorHeader& a, const TensorHeader& b) {
        const std::size_t width_a = size_of(a.dtype);
        const std::size_t width_b = size_of(b.dtype);
        return width_a != width_b ? width_a > width_b : a.name < b.name;
    });
    PERCHERON_ASSIGN(FileWriter file, FileWriter::create(path));
    SafetensorsWriter writer(std::move(file));
    OrderedJson header;
    header["__metadata__"]["format"] = "pt";
    Bytes end = 0;
    for (const TensorHeader& tensor : tensors) {
        const Bytes begin = end;
        end += tensor.bytes();
        if (!writer.slots_.emplace(tensor.name, Slot{begin, end - begin, end == begin}).second) {
            return misuse(tensor.name, "is to be written twice");
        }
        header[tensor.name] = {{"dtype", name_of(tensor.dtype)},
                               {"shape", tensor.shape},
                               {"data_offsets", {begin, end}}};
    }
    std::string text = header.dump();
    text.resize((text.size() + header_alignment - 1) / header_alignment * header_alignment, ' ');
    std::byte length[8];
    for (std::size_t i = 0; i < 8; ++i) {
        length[i] = static_cast<std::byte>(text.size() >> (8 * i));
    }
    PERCHERON_TRY(writer.file_.write_at(0, length));
    PERCHERON_TRY(writer.file_.write_at(sizeof(length), text));
    for (auto& [name, slot] : writer.slots_) {
        slot.offset += sizeof(length) + text.size();
    }
    return writer;
}

Status SafetensorsWriter::write(const std::string& name, std::span<const std::byte> bytes) {
    const auto slot = slots_.find(name);
    if (slot == slots_.end()) return misuse(name, "is not in the header");
    if (bytes.size() != slot->second.size) {
        return misuse(name, "has " + std::to_string(bytes.size()) + " bytes, its header says " +
                                std::to_string(slot->second.size));
    }
    PERCHERON_TRY(file_.write_at(slot->second.offset, bytes));
    slot->second.written = true;
    return {};
}

Status SafetensorsWriter::finish() {
    for (const auto& [name, slot] : slots_) {
        if (!slot.written) return misuse(name, "was never written");
    }
    return file_.commit();
}

std::vector<std::vector<TensorHeader>> join_into_shards(
    const std::vector<std::vector<TensorHeader>>& units, Bytes limit) {
    std::vector<std::vector<TensorHeader>> shards;
    Bytes size = 0;
    for (const std::vector<TensorHeader>& unit : units) {
        Bytes needed = 0;
        for (const TensorHeader& tensor : unit) {
            needed += tensor.bytes();
        }
        if (shards.empty() || size + needed > limit) {
            shards.emplace_back();
            size = 0;
        }
        shards.back().insert(shards.back().end(), unit.begin(), unit.end());
        size += needed;
    }
    return shards;
}

std::string shard_name(std::size_t index, std::size_t count) {
    if (count == 1) return "model.safetensors";
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", index + 1, count);
    return name;
}

Status write_index(const std::filesystem::path& folder,
                   const std::vector<std::vector<TensorHeader>>& shards) {
    Bytes total = 0;
    std::map<std::string, std::string> weight_map;
    for (std::size_t i = 0; i < shards.size(); ++i) {
        for (const TensorHeader& tensor : shards[i]) {
            weight_map.emplace(tensor.name, shard_name(i, shards.size()));
            total += tensor.bytes();
        }
    }
    OrderedJson index;
    index["metadata"]["total_size"] = total;
    index["weight_map"] = weight_map;
    return write_text_file(folder / "model.safetensors.index.json", index.dump(1) + "\n");
}

}  // namespace percheron::checkpoint
