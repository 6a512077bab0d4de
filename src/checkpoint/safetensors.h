// One safetensors file, mapped.
//
// Lay-out: 8 bytes little-endian header length N, N bytes of JSON, then the tensors' bytes.  The
// JSON maps each name to {"dtype", "shape", "data_offsets": [begin, end)} relative to the end of
// the header; "__metadata__" may map strings to strings.  Everything is checked before a tensor is
// handed out: lengths, types, that a shape's bytes equal its range, and that the ranges tile the
// rest of the file without overlap, hole or rest.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/files.h"
#include "core/status.h"

namespace percheron::checkpoint {

using Shape = std::vector<std::size_t>;

// "[2, 3]", for messages.
std::string to_string(const Shape& shape);
// Product of the extents; false if it does not fit into 63 bits.
bool element_count(const Shape& shape, std::size_t& count);

struct StoredTensor {
    std::string name;
    DType dtype = DType::u8;
    Shape shape;
    std::span<const std::byte> bytes;  // in the mapping; its start may be unaligned
};

class SafetensorsFile {
  public:
    // Errors: not_found, io, corrupt (with file and tensor named), unsupported (a type without
    // name).
    static Result<SafetensorsFile> open(const std::filesystem::path& path);

    const std::filesystem::path& path() const { return file_.path(); }
    const MappedFile& mapping() const { return file_; }
    // In the order of their bytes.
    const std::vector<StoredTensor>& tensors() const { return tensors_; }

  private:
    explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}
    Status read_header();

    MappedFile file_;
    std::vector<StoredTensor> tensors_;
};

}  // namespace percheron::checkpoint
