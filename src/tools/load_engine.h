// From a model folder to a running engine: checkpoint, plan of memory, backend, network, engine.
// serve, chat and bench all start here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "percheron/engine.h"
#include "percheron/types.h"

#include "core/status.h"
#include "engine/local_engine.h"
#include "engine/memory_plan.h"
#include "ops/batch.h"
#include "text/tokenizer.h"
#include "tools/draft_choice.h"

namespace percheron::tools {

// What the commands that load a model have in common.  Absent numbers are planned from the machine
// (engine/memory_plan.h).
struct LoadOptions {
    std::filesystem::path folder;  // of resolve_model(): the network's files
    std::string model_name;        // empty: the folder's last name
    std::string device = "auto";   // tools/devices.h
    ops::Arithmetic arithmetic = ops::Arithmetic::standard;
    std::string kv_dtype = "auto";         // auto, bf16, fp8; f32 with fp32 arithmetic
    bool fp4_activations = false;          // W4A4 of NVFP4 weights (open_model)
    std::uint32_t threads = 0;             // 0: as many as the process may run on
    std::optional<Bytes> weights_memory;   // absent: all weights (tools/expert_memory.h)
    std::optional<std::uint32_t> context;  // tokens of one request, prompt and reply
    std::optional<Bytes> kv_memory;        // pages, slots and checkpoints
    bool prefix_cache = true;
    std::optional<Bytes> checkpoint_memory;  // of kv_memory
    std::filesystem::path prefix_disk;       // folder of the prefix cache's files; empty: none
    std::optional<Bytes> prefix_disk_size;   // of all of them; absent: default_prefix_disk_size()
    std::optional<std::uint32_t> max_running;
    std::optional<std::uint32_t> max_queued;
    std::optional<std::uint32_t> thinking_budget;  // for requests that name none
    bool loop_guard = true;                        // the same
    std::optional<std::uint64_t> seed;             // of the seeds given to requests that name none
    DraftWish draft;
    // Rows of the steps and shares between them; pages and max_running come from the plan, and
    // prefill_rows of 0 from the device.
    engine::SchedulerOptions scheduler = {.prefill_rows = 0};
    std::function<void(const engine::StepRecord&)> on_step;
    std::function<void(const engine::MemoryPlan&)> on_plan;  // before anything large is loaded
    // What begins now, as in "loading weights, 43 %".
    std::function<void(const std::string&)> on_stage;
};

// 16 GiB, and no more than half of what the folder's disk has free beside `held`, but `least` in
// any case: files wait for room on a full disk.
Bytes default_prefix_disk_size(Bytes free, Bytes held, Bytes least);

// Loads and starts.  Logs the plan's table and a line a stage with its time.
//
// The ids a reply can never hold are found here: rows of the head without a string in the tokenizer
// and the placeholders of images and videos, whose embeddings only a vision tower can give.
// Errors: of the files (named), out_of_memory with advice, invalid_argument and unsupported
// (options).
Result<std::unique_ptr<Engine>> load_engine(const LoadOptions& options, const Tokenizer& tokenizer);

}  // namespace percheron::tools
