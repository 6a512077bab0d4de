// Writes safetensors files whose bytes depend on names, types, shapes and values only, in whatever
// order the tensors are handed over.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "core/dtype.h"
#include "core/files.h"
#include "core/status.h"

namespace percheron::checkpoint {

// A tensor to be written.
struct TensorHeader {
    std::string name;
    DType dtype = DType::u8;
    Shape shape;

    Bytes bytes() const;
};

// One file.  The header goes first and fixes every offset: widest types first, then by name, so
// that every tensor is aligned; tensors may then be written in any order.
class SafetensorsWriter {
  public:
    // Errors: io; invalid_argument (a name twice).
    static Result<SafetensorsWriter> create(const std::filesystem::path& path,
                                            std::vector<TensorHeader> tensors);

    // The whole content of one tensor.  Errors: io; invalid_argument (a name or a size that the
    // header does not have).
    Status write(const std::string& name, std::span<const std::byte> bytes);

    // Errors: io; invalid_argument (a tensor was not written).
    Status finish();

  private:
    struct Slot {
        Bytes offset = 0;
        Bytes size = 0;
        bool written = false;
    };

    explicit SafetensorsWriter(FileWriter file) : file_(std::move(file)) {}

    FileWriter file_;
    std::map<std::string, Slot> slots_;
};

// Joins units (tensors that should stay together, such as a weight and its scales) into shards of
// at most `limit` bytes, in the order given; a larger unit has a shard of its own.
std::vector<std::vector<TensorHeader>> join_into_shards(
    const std::vector<std::vector<TensorHeader>>& units, Bytes limit);

// "model.safetensors" for the only shard, else "model-00001-of-00003.safetensors".
std::string shard_name(std::size_t index, std::size_t count);

// model.safetensors.index.json for these shards.
Status write_index(const std::filesystem::path& folder,
                   const std::vector<std::vector<TensorHeader>>& shards);

}  // namespace percheron::checkpoint
