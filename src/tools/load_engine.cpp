#include "tools/load_engine.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

#include "cache/cache_shape.h"
#include "core/files.h"
#include "core/logging.h"
#include "core/machine_memory.h"
#include "draft/copy_proposer.h"
#include "draft/verification.h"
#include "engine/memory_plan.h"
#include "model/mtp_layer.h"
#include "model/network.h"
#include "model/trunk_weights.h"
#include "model/vision_tower.h"
#include "tools/devices.h"
#include "tools/expert_memory.h"
#include "tools/load_drafter.h"
#include "tools/model_identity.h"
#include "tools/model_path.h"
#include "tools/model_source.h"

namespace percheron::tools {

namespace {

constexpr Bytes least_disk_queue = Bytes{32} << 20;

// Says what begins, and logs a line with the seconds it took when it is done.
class StageLog {
  public:
    explicit StageLog(const std::function<void(const std::string&)>& on_stage)
        : on_stage_(on_stage) {}
    void begin(const std::string& what) {
        if (on_stage_) on_stage_(what);
    }
    void done(const std::string& what) {
        const auto now = std::chrono::steady_clock::now();
        const double seconds = std::chrono::duration<double>(now - start_).count();
        char time[32];
        std::snprintf(time, sizeof time, " (%.2f s)", seconds);
        log_info(what + time);
        start_ = now;
    }

  private:
    const std::function<void(const std::string&)>& on_stage_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::string gigabytes(double bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f GB", bytes / 1e9);
    return text;
}

std::string rate_of(const checkpoint::WeightReads::Figures& figures) {
    return gigabytes(static_cast<double>(figures.bytes) / std::max(figures.seconds, 1e-3)) + "/s";
}

// Reads a checkpoint's weights for a backend that computes from memory of its own, with a line of
// progress now and then.  Null: there is nothing to read so.
Result<checkpoint::WeightReads*> begin_reading(const ModelSource& source, ops::Backend& backend,
                                               StageLog& stages) {
    if (!source.files || !backend.has_own_memory()) {
        return static_cast<checkpoint::WeightReads*>(nullptr);
    }
    const Bytes weight_bytes = source.weight_bytes;
    const std::string all = gigabytes(static_cast<double>(weight_bytes));
    PERCHERON_ASSIGN(
        checkpoint::WeightReads* const reads,
        source.files->read_past_the_cache([=, &stages](const auto& figures) {
            const auto read = static_cast<double>(figures.bytes);
            log_info("weights: " + gigabytes(read) + " of " + all + ", " + rate_of(figures));
            const auto whole = static_cast<double>(std::max<Bytes>(weight_bytes, 1));
            stages.begin("loading weights, " +
                         std::to_string(static_cast<int>(100 * read / whole)) + " %");
        }));
    PERCHERON_TRY(backend.read_from(*reads));
    return reads;
}

Status finish_reading(const checkpoint::WeightReads* reads, ops::Backend& backend) {
    if (reads == nullptr) return {};
    PERCHERON_TRY(backend.finish_reading());
    // Small tensors came through the mapping.
    reads->drop_from_cache();
    const checkpoint::WeightReads::Figures figures = reads->figures();
    log_info("weights: " + gigabytes(static_cast<double>(figures.bytes)) +
             " read past the page cache, " + rate_of(figures));
    return {};
}

std::vector<TokenId> never_valid(const model::ModelConfig& config, const Tokenizer& tokenizer) {
    std::vector<TokenId> banned;
    for (std::size_t id = 0; id < config.vocabulary; ++id) {
        const auto token = TokenId(static_cast<int>(id));
        const bool placeholder = token == config.image_token || token == config.video_token;
        if (placeholder || tokenizer.bytes_of(token).empty()) {
            banned.push_back(token);
        }
    }
    return banned;
}

// A tokenizer of another model would be noticed by its users, a prompt at a time.
Status check_tokenizer(const model::ModelConfig& config, const Tokenizer& tokenizer) {
    if (tokenizer.size() <= config.vocabulary) return {};
    return Error(ErrorCode::corrupt,
                 "tokenizer.json has ids up to " + std::to_string(tokenizer.size() - 1) +
                     ", but config.json's vocab_size is " + std::to_string(config.vocabulary) +
                     "; put this model's own tokenizer.json beside its weights");
}

std::optional<engine::ThinkTags> think_tags(const Tokenizer& tokenizer) {
    const auto open = tokenizer.added_token("<think>");
    const auto close = tokenizer.added_token("</think>");
    if (!open || !close) {
        return std::nullopt;
    }
    return engine::ThinkTags{*open, *close};
}

// A folder named "nano/" or "." has a last name all the same.
std::string last_name(const std::filesystem::path& folder) {
    if (is_synthetic(folder.string())) return folder.string();
    std::error_code ignored;
    const std::filesystem::path whole = std::filesystem::weakly_canonical(folder, ignored);
    return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

// Bytes of the files in a folder that may not be there yet.
Bytes bytes_in(const std::filesystem::path& folder) {
    Bytes bytes = 0;
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
         at.increment(error)) {
        std::error_code ignored;
        const auto size = at->file_size(ignored);
        bytes += ignored ? 0 : size;
    }
    return bytes;
}

Result<cache::DiskTierOptions> prefix_disk_of(const LoadOptions& options,
                                              const ops::Backend& backend,
                                              const cache::CacheShape& caches) {
    cache::DiskTierOptions disk;
    disk.folder.folder = options.prefix_disk;
    disk.queue_bytes = std::max(least_disk_queue, 2 * caches.checkpoint_bytes());
    const Bytes least = caches.checkpoint_bytes() + 16 * caches.page_bytes();
    if (!options.prefix_disk_size) {
        disk.folder.limit = default_prefix_disk_size(free_space(options.prefix_disk).value_or(0),
                                                     bytes_in(options.prefix_disk), least);
    } else if (disk.folder.limit = *options.prefix_disk_size; disk.folder.limit < least) {
        return Error(ErrorCode::invalid_argument,
                     "--prefix-disk-size " + engine::readable(disk.folder.limit) +
                         " holds no prompt; name at least " + engine::readable(least) +
                         ", or leave out --prefix-disk");
    }
    PERCHERON_ASSIGN(disk.folder.identity, model_identity(options.folder, backend));
    if (options.fp4_activations) disk.folder.identity += ", inputs of NVFP4 weights in FP4";
    return disk;
}

// Rows of a prompt's step, most first.  On a GPU an expert's weights come from memory once a step,
// so that it takes many rows to hide them; a kernel that cannot take so many says so.
std::vector<std::uint32_t> prompt_row_choices(const ops::Backend& backend,
                                              const model::ModelConfig& config) {
    std::vector<std::uint32_t> choices;
    if (backend.has_own_memory()) {
        for (const std::uint32_t many : {8192u, 4096u, 2048u}) {
            if (backend.check_shape(model::shape_of(config), many).ok()) choices.push_back(many);
        }
    }
    choices.push_back(engine::SchedulerOptions{}.prefill_rows);
    return choices;
}

}  // namespace

Bytes default_prefix_disk_size(Bytes free, Bytes held, Bytes least) {
    return std::max(least, std::min(Bytes{16} << 30, (free + held) / 2));
}

Result<std::unique_ptr<Engine>> load_engine(const LoadOptions& options,
                                            const Tokenizer& tokenizer) {
    PERCHERON_ASSIGN(const DType kv_dtype,
                     cache::kv_dtype_of(options.kv_dtype, options.arithmetic));
    StageLog stages(options.on_stage);
    stages.begin("reading the checkpoint");
    PERCHERON_ASSIGN(ModelSource source,
                     open_model(options.folder, options.threads, options.fp4_activations));
    const model::ModelConfig& config = source.config;
    PERCHERON_TRY(check_tokenizer(config, tokenizer));
    stages.done("checkpoint: " + checkpoint::summary(source.inventory));
    for (const std::string& warning : source.inventory.warnings) {
        log_warning(warning);
    }

    stages.begin("opening the device");
    model::NetworkOptions network_options;
    engine::SchedulerOptions scheduler = options.scheduler;
    engine::NetworkParts parts;
    parts.weights = source.weights;
    PERCHERON_ASSIGN(parts.backend,
                     make_backend({options.device, options.threads, options.arithmetic}, config,
                                  std::max(scheduler.prefill_rows, scheduler.decode_rows)));

    const bool has_mtp = config.mtp_layers > 0 && parts.backend->mtp() != nullptr;
    PERCHERON_ASSIGN(const draft::DraftOptions drafting, choose_drafting(options.draft, has_mtp));
    std::optional<DrafterFolder> drafter;
    if (drafting.dflash2) {
        PERCHERON_ASSIGN(drafter, open_drafter(options.draft, config, drafting, options.arithmetic,
                                               kv_dtype, *parts.backend));
    }
    // All of a few streams draft as deep as they like; many share what there is.
    constexpr std::uint32_t deep_streams = 8;
    const std::uint32_t draft_rows = deep_streams * drafting.depth;
    network_options.max_logit_rows =
        std::max<std::size_t>(options.max_running.value_or(0), network_options.max_logit_rows);
    // The layer names one draft a sequence and pass.
    model::NetworkOptions mtp_options = network_options;
    network_options.max_logit_rows += draft_rows;

    model::VisionOptions vision_options;
    const std::uint64_t longest = options.context.value_or(config.context_limit);
    vision_options.max_tokens = std::min<std::uint64_t>(vision_options.max_tokens, longest);

    const bool sees = config.has_vision && parts.backend->vision() != nullptr;
    if (config.has_vision && !sees) {
        log_warning("the backend " + std::string(parts.backend->name()) +
                    " has no vision tower: requests with images are refused");
    }

    engine::MemoryNeeds needs;
    if (sees) {
        needs.tower = model::VisionTower::memory(config, *parts.backend, vision_options);
        // Two of the largest images, or as many smaller ones.
        needs.image_features =
            2 * vision_options.max_tokens * config.vision.out_hidden * sizeof(float);
    }
    needs.weights = source.weight_bytes;
    needs.weights_name =
        is_synthetic(options.folder.string()) ? "weights, made up" : "weights, mapped";
    std::optional<ExpertMemory> experts;
    if (options.weights_memory && *options.weights_memory < source.weight_bytes) {
        PERCHERON_ASSIGN(experts,
                         ExpertMemory::plan(source, *parts.backend, *options.weights_memory));
        needs.weights = *options.weights_memory;
        needs.weights_name = "weights, other experts in files";
    }
    // On a GPU the plan is of its memory, which holds nothing of the program but what the driver
    // has already taken.
    needs.on_device = parts.backend->has_own_memory();
    if (!needs.on_device) {
        PERCHERON_ASSIGN(needs.program, anonymous_memory());
    }
    needs.vocabulary = config.vocabulary;
    needs.caches = cache::CacheShape::of(config, kv_dtype, draft::uncommitted_rows(drafting.depth),
                                         drafting.mtp);
    needs.draft_slot_share = needs.caches.slot_bytes() -
                             cache::CacheShape::of(config, kv_dtype, 0, drafting.mtp).slot_bytes();
    if (drafting.copy) {
        needs.copy_index_per_token = draft::CopyIndex::bytes(1);
    }
    needs.context_limit = config.context_limit;
    std::optional<cache::DiskTierOptions> disk;
    if (!options.prefix_disk.empty()) {
        PERCHERON_ASSIGN(disk, prefix_disk_of(options, *parts.backend, needs.caches));
        needs.prefix_disk = cache::DiskTier::memory(*disk, needs.caches.page_bytes(),
                                                    needs.caches.checkpoint_bytes());
    }
    PERCHERON_ASSIGN(const MachineMemory machine, parts.backend->memory());
    const auto set_rows = [&](std::uint32_t prompt_rows) {
        network_options.max_rows = std::max(prompt_rows, scheduler.decode_rows);
        mtp_options.max_rows = network_options.max_rows;
    };
    const auto needs_with = [&](std::uint32_t prompt_rows) {
        engine::MemoryNeeds all = needs;
        set_rows(prompt_rows);
        all.network = model::Network::memory(config, *parts.backend, network_options);
        if (drafting.mtp) all.mtp = model::MtpLayer::memory(config, *parts.backend, mtp_options);
        if (drafter) add_needs(*drafter, *parts.backend, network_options, all);
        return all;
    };
    const std::vector<std::uint32_t> row_choices = scheduler.prefill_rows > 0
                                                       ? std::vector{scheduler.prefill_rows}
                                                       : prompt_row_choices(*parts.backend, config);
    PERCHERON_ASSIGN(
        const engine::PromptRowsPlan planned,
        engine::plan_prompt_rows(row_choices, needs_with,
                                 {options.context, options.kv_memory, options.max_running,
                                  options.prefix_cache, options.checkpoint_memory},
                                 machine));
    const engine::MemoryPlan& plan = planned.plan;
    scheduler.prefill_rows = planned.rows;
    set_rows(planned.rows);
    for (const std::string& line : engine::table_of(plan)) {
        log_info(line);
    }
    log_info("prompts in steps of " + std::to_string(planned.rows) + " rows");
    if (options.on_plan) {
        options.on_plan(plan);
    }

    stages.begin("loading weights");
    PERCHERON_ASSIGN(checkpoint::WeightReads* const reads,
                     begin_reading(source, *parts.backend, stages));
    PERCHERON_ASSIGN(parts.network, model::Network::load(config, *source.weights, *parts.backend,
                                                         network_options));
    if (drafting.mtp) {
        PERCHERON_ASSIGN(parts.mtp, model::MtpLayer::load(*parts.network, *source.weights,
                                                          *parts.backend, mtp_options));
    }
    if (drafter) {
        PERCHERON_ASSIGN(parts.proposer,
                         load_drafter(*drafter, *parts.network, *parts.backend, network_options,
                                      plan.draft_pages, plan.max_running));
        parts.weights = std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(
            std::move(parts.weights), std::move(drafter->files));
    }
    if (sees) {
        PERCHERON_ASSIGN(parts.tower, model::VisionTower::load(config, *source.weights,
                                                               *parts.backend, vision_options));
    }
    PERCHERON_TRY(finish_reading(reads, *parts.backend));
    stages.done("network: " + std::to_string(config.layers()) + " layers" +
                (parts.mtp ? ", the MTP layer" : "") + (drafter ? ", the drafter" : "") +
                (parts.tower ? " and the vision tower on " : " on ") +
                std::string(parts.backend->name()));
    if (experts) {
        PERCHERON_ASSIGN(const ExpertExpectation expected, experts->start(options.threads));
        stages.done(expected.text());
    }

    engine::LocalEngineOptions engine_options;
    engine_options.model_name =
        options.model_name.empty() ? last_name(options.folder) : options.model_name;
    engine_options.context_tokens = plan.context;
    engine_options.max_queued = options.max_queued.value_or(engine_options.max_queued);
    engine_options.scheduler = scheduler;
    engine_options.scheduler.pages = plan.pages;
    engine_options.scheduler.max_running = plan.max_running;
    engine_options.scheduler.draft_rows = draft_rows;
    engine_options.draft = drafting;
    engine_options.scheduler.checkpoints = plan.checkpoints;
    engine_options.kv_dtype = kv_dtype;
    engine_options.stop_tokens = config.stop_tokens;
    engine_options.banned_tokens = never_valid(config, tokenizer);
    engine_options.prefix_disk = disk;
    engine_options.image_tokens = static_cast<std::uint32_t>(vision_options.max_tokens);
    engine_options.image_memory = needs.image_features;
    engine_options.user_token = tokenizer.added_token("<|user|>");
    engine_options.think_tags = think_tags(tokenizer);
    engine_options.thinking_budget = options.thinking_budget;
    engine_options.loop_guard = options.loop_guard;
    engine_options.seed = options.seed;
    engine_options.on_step = options.on_step;
    const ops::Backend& backend = *parts.backend;
    stages.begin("reserving caches");
    PERCHERON_ASSIGN(auto engine,
                     engine::make_local_engine(std::move(parts), std::move(engine_options)));
    stages.done("engine: caches reserved");
    if (needs.on_device) {
        PERCHERON_ASSIGN(const MachineMemory left, backend.memory());
        log_info("memory: planned " + engine::readable(plan.total) + ", the driver gave " +
                 engine::readable(machine.available - std::min(machine.available, left.available)));
    }
    if (disk) {
        const PrefixDiskStatus files = engine->status().prefix_disk;
        log_info("prefix cache on disk: " + options.prefix_disk.string() + ", " +
                 std::to_string(files.entries) + " states in " + engine::readable(files.bytes) +
                 " of at most " + engine::readable(files.limit_bytes));
    }
    log_info(engine->description().proposer.empty()
                 ? "drafting: off"
                 : "drafting: " + engine->description().proposer + ", depth " +
                       (drafting.adaptive ? "0 to " : "") + std::to_string(drafting.depth));
    return engine;
}

}  // namespace percheron::tools
