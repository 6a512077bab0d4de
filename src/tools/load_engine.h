// From a model folder to a running engine: checkpoint, plan of memory, CPU backend, network,
// engine. serve, chat and bench all start here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "percheron/engine.h"
#include "percheron/types.h"

#include "core/status.h"
#include "ops/batch.h"

namespace percheron::tools {

// What the commands that load a model have in common.  Absent numbers are planned from the machine.
struct LoadOptions {
    std::filesystem::path model;  // a folder; empty: the embedded nano model
    std::string model_name;       // empty: the folder's last name
    std::string device = "auto";  // auto, cpu
    ops::Arithmetic arithmetic = ops::Arithmetic::standard;
    std::string kv_dtype = "auto";         // auto, bf16; f32 with fp32 arithmetic
    std::uint32_t threads = 0;             // 0: one a core
    std::optional<std::uint32_t> context;  // tokens of one request, prompt and reply
    std::optional<Bytes> kv_memory;        // pages, slots
    std::optional<std::uint32_t> max_running;
    std::optional<std::uint32_t> max_queued;
    std::optional<std::uint32_t> thinking_budget;  // for requests that name none
    std::optional<std::uint64_t> seed;             // of the seeds given to requests that name none
};

// `--model` as a folder: what was given, or the embedded models/nano (PERCHERON_MODELS, then beside
// the binary, then the source tree).  Errors: not_found, with the places looked at.
Result<std::filesystem::path> find_model_folder(const std::filesystem::path& model);

// Loads and starts.  Logs the plan's table and a line a stage with its time.
// Errors: of the files (named), out_of_memory with advice, unsupported.
Result<std::unique_ptr<Engine>> load_engine(const LoadOptions& options);

}  // namespace percheron::tools
