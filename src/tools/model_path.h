// What MODEL on the command line means.
#pragma once

#include <filesystem>
#include <string>

#include "core/status.h"

namespace percheron::tools {

// The folder of a model named on the command line.
//
//   ""           the embedded model, "nano"
//   a folder     that folder
//   "nano"       a plain name, when there is no folder of that name here: the first of
//                $PERCHERON_MODELS/NAME, models/NAME beside or above the binary,
//                ../share/percheron/models/NAME of an installed one, models/NAME of the source tree
//
// Errors: not_found, saying where was looked.
Result<std::filesystem::path> resolve_model(const std::string& model);

}  // namespace percheron::tools
