// config.json and generation_config.json of a model folder as a model::ModelConfig.
//
// Both forms are read: nested (text_config, vision_config) and flat (the text fields at top level).
// A field the network needs has no default here: a config without it is refused, naming file and
// field, because a default that differs from what was trained (index_kpool is the known case) makes
// a model that only looks fine.  So is a value this engine does not compute: rotary dimensions,
// grouped routing, tied embeddings, another activation.
#pragma once

#include <filesystem>
#include <string>

#include "core/status.h"
#include "model/config.h"

namespace percheron::checkpoint {

// Stop tokens are the union of every eos_token_id in both files, in order of first appearance.
// `has_vision` says that config.json describes a tower, and `mtp_layers` what it promises; what is
// really on disk is found by Checkpoint.
// Errors: not_found, io, corrupt, unsupported.
Result<model::ModelConfig> read_config(const std::filesystem::path& folder);

// The same of a config.json that is no file, without a generation_config.json.  Messages call it
// `name`.
Result<model::ModelConfig> parse_config(const std::string& text, const std::string& name);

}  // namespace percheron::checkpoint
