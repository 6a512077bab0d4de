// The flags that every command with a model has in common.
#pragma once

#include <string>

#include <CLI/App.hpp>

#include "tools/load_engine.h"

namespace percheron::apps {

struct LoadFlags {
    std::string model;  // as written; resolve_model() makes it a folder
    tools::LoadOptions load;
};

// Adds MODEL, --device, --threads, --context, --kv-memory, --weights-memory, --kv-dtype,
// --fp4-activations, --draft,
// --draft-depth, --draft-model, --draft-cache, --draft-window and --seed.  `flags` must outlive the app.
void add_load_flags(CLI::App& command, LoadFlags& flags);

}  // namespace percheron::apps
