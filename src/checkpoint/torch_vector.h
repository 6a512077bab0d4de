// A vector in a file of torch.save(): a zip archive, nothing compressed, of a pickle that describes
// one tensor and the tensor's bytes.  The pickle is searched for the type's name and not run.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace percheron::checkpoint {

// The `count` values of the file's only tensor, stored as BF16, F16 or F32, of whatever shape.
// Errors: not_found, io; corrupt (no such archive, another number of values); unsupported
// (several tensors, another type, compression).
Result<std::vector<float>> read_torch_vector(const std::filesystem::path& path, std::size_t count);

// The bytes of such a file, with the values rounded to BF16.  `name` is the archive's folder.
std::string torch_vector_file(std::span<const float> values, std::string_view name);

}  // namespace percheron::checkpoint
