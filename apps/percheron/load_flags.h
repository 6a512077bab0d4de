// The flags that every command with a model has in common.
#pragma once

#include <string>

#include <CLI/App.hpp>

#include "core/status.h"
#include "tools/load_engine.h"

namespace percheron::apps {

struct LoadFlags {
    std::string model;  // as written; resolve_model() makes it a folder
    tools::LoadOptions load;
};

// Adds MODEL, --device, --threads, --context, --kv-memory, --kv-dtype and --seed.  `flags` must
// outlive the app.
void add_load_flags(CLI::App& command, LoadFlags& flags);

// "512MiB", "8GiB", "1000000" (bytes).  Errors: invalid_argument.
Result<Bytes> parse_size(const std::string& text);

}  // namespace percheron::apps
