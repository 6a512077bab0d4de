// What MODEL on the command line means.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "checkpoint/synthetic_spec.h"
#include "core/status.h"

namespace percheron::tools {

// The folder of a model named on the command line.
//
//   ""           the embedded model, "nano"
//   "synth:..."  a made-up model (checkpoint/synthetic_spec.h), returned as it is written
//   a folder     that folder
//   "nano"       a plain name, when there is no folder of that name here: the first of
//                $PERCHERON_MODELS/NAME, models/NAME beside or above the binary,
//                ../share/percheron/models/NAME of an installed one, models/NAME of the source tree
//
// Errors: not_found, saying where was looked; invalid_argument (what follows "synth:").
Result<std::filesystem::path> resolve_model(const std::string& model);

// Whether a name means a made-up model, and which.  Errors: those of parse_spec.
bool is_synthetic(std::string_view model);
Result<checkpoint::SyntheticSpec> synthetic_spec(std::string_view model);

}  // namespace percheron::tools
