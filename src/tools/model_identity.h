// What the numbers of a model depend on beside the text: for files that outlive a process.
#pragma once

#include <filesystem>
#include <string>

#include "core/status.h"
#include "ops/backend.h"

namespace percheron::tools {

// Names the weights (every byte of a folder's configuration and of small files; of large ones size,
// time, header and samples all over), this program (all of its file: another build may round
// otherwise) and how it computes (backend, arithmetic, SIMD level).  Two runs with one name give
// the same bits. Errors: io, not_found.
Result<std::string> model_identity(const std::filesystem::path& model, const ops::Backend& backend);

}  // namespace percheron::tools
