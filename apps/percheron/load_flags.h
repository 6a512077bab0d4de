// The flags that every command with a model has in common.
#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "tools/load_engine.h"

namespace percheron::apps {

struct LoadFlags {
    std::string model;  // as written; resolve_model() makes it a folder
    tools::LoadOptions load;
};

// Adds MODEL, --device, --threads, --context, --kv-memory, --weights-memory, --kv-dtype,
// --fp4-activations, --draft,
// --draft-depth, --draft-model, --draft-cache, --draft-window and --seed.  `flags` must outlive the
// app.
void add_load_flags(CLI::App& command, LoadFlags& flags);

// Adds what else an engine that serves may be told: --model-name, --max-running, --thinking-budget,
// --prefix-cache, --loop-guard, --checkpoint-memory, --prefix-disk and its size.
void add_serving_flags(CLI::App& command, tools::LoadOptions& load);

// Of a command that has been parsed: what was given of all these flags, for another command that
// has them.
std::vector<std::string> serving_arguments(const CLI::App& command);

}  // namespace percheron::apps
