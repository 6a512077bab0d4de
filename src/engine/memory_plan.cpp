#include "engine/memory_plan.h"

#include <algorithm>
#include <cassert>
#include <cstdio>

namespace percheron::engine {

namespace {

constexpr Bytes mebibyte = Bytes{1} << 20;
constexpr std::uint32_t most_running_by_default = 64;
constexpr std::uint32_t most_checkpoints = 4096;  // more are only slower to choose from
constexpr std::uint64_t contexts_by_default = 2;  // full ones the default pool holds at most
constexpr Bytes working_share = 8;  // 1 / of what the weights leave, for steps of many rows

// Kept free for everybody else on the machine.
Bytes floor_of(const MachineMemory& machine) {
    return std::max<Bytes>(256 * mebibyte, machine.total / 32);
}

// Behind the name of a row whose size hangs on it.
std::string in_type(DType dtype) {
    return ", " + std::string(cache::name_of_kv_dtype(dtype));
}

// The sampler's tables and one count of tokens a running request with penalties.
Bytes sampling_bytes(std::size_t vocabulary, std::uint32_t max_running) {
    return vocabulary * (sizeof(double) + 2 * 16 + 1) + max_running * vocabulary * 4;
}

// Memory for checkpoints by default, out of `kv`.  `needed`: what may not be taken away.
Bytes default_checkpoint_memory(Bytes kv, Bytes checkpoint, Bytes needed) {
    const Bytes share = std::max(kv / 8, std::min(kv / 4, 2 * checkpoint));
    return std::min(share, kv > needed ? kv - needed : 0);
}

Error does_not_fit(Bytes needed, const MemoryPlan& plan, std::string advice) {
    return Error(ErrorCode::out_of_memory, "the plan needs " + readable(needed) + " but " +
                                               readable(plan.available) +
                                               " are available, of which " + readable(plan.floor) +
                                               " stay free; " + std::move(advice));
}

}  // namespace

std::string readable(Bytes bytes) {
    char text[32];
    const double mebibytes = static_cast<double>(bytes) / static_cast<double>(mebibyte);
    if (mebibytes >= 1024) {
        std::snprintf(text, sizeof text, "%.2f GiB", mebibytes / 1024);
    } else {
        std::snprintf(text, sizeof text, "%.1f MiB", mebibytes);
    }
    return text;
}

Result<MemoryPlan> plan_memory(const MemoryNeeds& needs, const MemoryWishes& wishes,
                               const MachineMemory& machine) {
    MemoryPlan plan;
    plan.available = machine.available;
    plan.floor = floor_of(machine);
    // A drafter that sees everything has a page beside each of the pool's; one with a window has a
    // few for every slot and checkpoint.
    const bool draft_window = needs.draft_pages_a_slot > 0;
    const Bytes draft_page_share = draft_window ? 0 : needs.draft_page;
    const Bytes draft_slot_context = needs.draft_pages_a_slot * needs.draft_page;
    plan.bytes_per_token = needs.caches.bytes_per_token() + draft_page_share / ops::page_tokens;
    plan.bytes_per_sequence = needs.caches.bytes_per_sequence() + draft_slot_context;
    if (wishes.context && *wishes.context > needs.context_limit) {
        return Error(ErrorCode::invalid_argument, "--context " + std::to_string(*wishes.context) +
                                                      " is beyond the model's limit of " +
                                                      std::to_string(needs.context_limit) +
                                                      " tokens");
    }

    const auto on_host = [&needs](Bytes bytes) { return needs.on_device ? 0 : bytes; };
    Bytes page_bytes = needs.caches.page_bytes() + draft_page_share +
                       (wishes.prefix_cache ? on_host(tree_block_bytes) : 0);
    const Bytes slot_bytes = plan.bytes_per_sequence;
    const Bytes fixed =
        needs.weights + needs.program + needs.network.activations + needs.network.stages +
        needs.mtp.activations + needs.drafter + needs.tower +
        on_host(
            needs.network.logits + needs.mtp.logits + needs.drafter_logits + needs.image_features +
            needs.prefix_disk +
            sampling_bytes(needs.vocabulary, wishes.max_running.value_or(most_running_by_default)));
    const Bytes usable = plan.available > plan.floor ? plan.available - plan.floor : 0;
    const Bytes smallest_kv = slot_bytes + page_bytes;
    if (fixed + smallest_kv > usable) {
        return does_not_fit(fixed + smallest_kv, plan,
                            "take a smaller or more quantised model, or free memory");
    }

    // How much for pages and slots.
    const std::uint64_t context = wishes.context.value_or(needs.context_limit);
    Bytes kv = 0;
    if (wishes.kv_memory) {
        kv = *wishes.kv_memory;
        if (fixed + kv > usable) {
            return does_not_fit(fixed + kv, plan,
                                "--kv-memory can be at most " + readable(usable - fixed));
        }
    } else {
        const std::uint64_t slots = wishes.max_running.value_or(most_running_by_default);
        const std::uint64_t contexts = std::min(slots, contexts_by_default);
        const Bytes used = slots * slot_bytes + contexts * cache::pages_for(context) * page_bytes;
        const Bytes useful = wishes.prefix_cache ? used / 7 * 8 : used;
        kv = std::min((usable - fixed) / 4, useful + wishes.checkpoint_memory.value_or(0));
        if (wishes.context) {
            // Somebody who names a context wants it to fit, if it can at all.
            const Bytes one = slot_bytes + cache::pages_for(context) * page_bytes +
                              wishes.checkpoint_memory.value_or(0);
            kv = std::max(kv, std::min(usable - fixed, one));
        }
    }

    // Checkpoints first.
    const Bytes checkpoint_bytes =
        needs.caches.checkpoint_bytes() + needs.draft_pages_a_checkpoint * needs.draft_page;
    if (wishes.prefix_cache) {
        const std::uint64_t pages = wishes.context ? cache::pages_for(context) : 1;
        const Bytes memory = wishes.checkpoint_memory.value_or(default_checkpoint_memory(
            kv, checkpoint_bytes,
            wishes.max_running.value_or(1) * slot_bytes + pages * page_bytes));
        if (wishes.checkpoint_memory && (memory < checkpoint_bytes || memory > kv)) {
            return Error(
                ErrorCode::invalid_argument,
                "--checkpoint-memory " + readable(memory) +
                    (memory > kv ? " is more than the " + readable(kv) +
                                       " of --kv-memory that it is taken from"
                                 : " holds no checkpoint of " + readable(checkpoint_bytes) +
                                       "; raise it or say --prefix-cache off"));
        }
        plan.checkpoints = static_cast<std::uint32_t>(
            std::min<Bytes>(memory / checkpoint_bytes, most_checkpoints));
        kv -= plan.checkpoints * checkpoint_bytes;
    }

    if (plan.checkpoints == 0) {
        page_bytes = needs.caches.page_bytes() + draft_page_share;
    }

    // Slots (what a named context leaves, at most half), then pages from the rest.
    Bytes for_slots = kv / 2;
    if (wishes.context) {
        const Bytes for_context = cache::pages_for(context) * page_bytes;
        for_slots = std::min(for_slots, kv > for_context ? kv - for_context : 0);
    }
    const auto slots_that_fit = static_cast<std::uint32_t>(
        std::min<Bytes>(for_slots / std::max<Bytes>(slot_bytes, 1), most_running_by_default));
    plan.max_running = wishes.max_running.value_or(std::max(slots_that_fit, 1u));
    const Bytes slots_total = plan.max_running * slot_bytes;
    if (slots_total + page_bytes > kv) {
        return Error(ErrorCode::out_of_memory,
                     "--kv-memory " + readable(kv + plan.checkpoints * checkpoint_bytes) +
                         " does not hold the state of " + std::to_string(plan.max_running) +
                         " running requests (" + readable(slots_total) +
                         ") and a page of tokens; raise it or lower --max-running");
    }
    plan.pages = static_cast<std::uint32_t>((kv - slots_total) / page_bytes);
    plan.kv_tokens = std::uint64_t{plan.pages} * ops::page_tokens;
    plan.largest_request = std::min(plan.kv_tokens, needs.context_limit);
    if (wishes.context && *wishes.context > plan.kv_tokens) {
        const Bytes needed = slots_total + cache::pages_for(*wishes.context) * page_bytes +
                             plan.checkpoints * checkpoint_bytes;
        return Error(ErrorCode::out_of_memory,
                     "--context " + std::to_string(*wishes.context) + " needs --kv-memory " +
                         readable(needed) + " with " + std::to_string(plan.max_running) +
                         " running requests, but the pool of " +
                         readable(kv + plan.checkpoints * checkpoint_bytes) + " holds " +
                         std::to_string(plan.kv_tokens) + " tokens");
    }
    plan.context = static_cast<std::uint32_t>(wishes.context.value_or(plan.largest_request));

    const cache::CacheShape& caches = needs.caches;
    plan.rows = {
        {needs.weights_name, needs.weights},
        {"program", needs.program},
        {"activations", needs.network.activations},
        {"stage working space", needs.network.stages},
        {"logits", needs.network.logits, needs.on_device},
        {"sampling", sampling_bytes(needs.vocabulary, plan.max_running), needs.on_device},
        {"latent pages" + in_type(caches.kv_dtype),
         plan.pages * caches.sparse_layers * caches.latent_page_bytes()},
        {"pooled index keys" + in_type(caches.kv_dtype),
         plan.pages * caches.sparse_layers * caches.pooled_page_bytes()},
        {"request slots (KDA state, conv rows, tails)",
         slots_total - plan.max_running * (needs.draft_slot_share + draft_slot_context)},
    };
    if (needs.draft_page > 0) {
        plan.draft_pages = draft_window ? plan.max_running * needs.draft_pages_a_slot +
                                              plan.checkpoints * needs.draft_pages_a_checkpoint
                                        : plan.pages;
        plan.rows.push_back({"drafting: the drafter and taps", needs.drafter});
        plan.rows.push_back(
            {"drafting: the drafter's logits", needs.drafter_logits, needs.on_device});
        plan.rows.push_back({"drafting: the drafter's context" + in_type(needs.draft_dtype),
                             plan.draft_pages * needs.draft_page});
    }
    if (needs.draft_slot_share > 0) {
        plan.rows.push_back(
            {"drafting: rows not yet accepted", plan.max_running * needs.draft_slot_share});
    }
    if (needs.mtp.total() > 0) {
        plan.rows.push_back({"drafting: MTP activations", needs.mtp.activations});
        plan.rows.push_back({"drafting: MTP logits", needs.mtp.logits, needs.on_device});
    }
    if (needs.copy_index_per_token > 0) {
        plan.rows.push_back({"drafting: index of texts",
                             plan.kv_tokens * needs.copy_index_per_token, needs.on_device});
    }
    if (plan.checkpoints > 0) {
        plan.rows.push_back(
            {"prefix checkpoints", plan.checkpoints * needs.caches.checkpoint_bytes()});
        plan.rows.push_back({"prefix tree", plan.pages * tree_block_bytes, needs.on_device});
    }
    if (needs.prefix_disk > 0) {
        plan.rows.push_back(
            {"prefix cache: copies and keys of its files", needs.prefix_disk, needs.on_device});
    }
    if (needs.tower > 0) {
        plan.rows.push_back({"vision tower", needs.tower});
        plan.rows.push_back({"image features", needs.image_features, needs.on_device});
    }
    for (const MemoryRow& row : plan.rows) {
        plan.total += row.elsewhere ? 0 : row.bytes;
    }
    return plan;
}

Result<PromptRowsPlan> plan_prompt_rows(
    std::span<const std::uint32_t> choices,
    const std::function<MemoryNeeds(std::uint32_t rows)>& needs_with, const MemoryWishes& wishes,
    const MachineMemory& machine) {
    assert(!choices.empty());
    const Bytes floor = floor_of(machine);
    for (const std::uint32_t rows : choices.first(choices.size() - 1)) {
        const MemoryNeeds needs = needs_with(rows);
        const Bytes taken = floor + needs.weights + needs.program;
        const Bytes left = machine.available > taken ? machine.available - taken : 0;
        const Bytes working =
            needs.network.activations + needs.network.stages + needs.mtp.activations;
        if (working > left / working_share) continue;
        auto plan = plan_memory(needs, wishes, machine);
        if (plan.ok()) return PromptRowsPlan{rows, std::move(plan).value()};
    }
    const std::uint32_t fewest = choices.back();
    PERCHERON_ASSIGN(MemoryPlan plan, plan_memory(needs_with(fewest), wishes, machine));
    return PromptRowsPlan{fewest, std::move(plan)};
}

std::vector<std::string> table_of(const MemoryPlan& plan) {
    std::vector<std::string> lines;
    const auto add = [&lines](const std::string& name, const std::string& value) {
        char line[160];
        std::snprintf(line, sizeof line, "  %-46s %14s", name.c_str(), value.c_str());
        lines.emplace_back(line);
    };
    lines.emplace_back("memory plan");
    for (const MemoryRow& row : plan.rows) {
        if (!row.elsewhere) add(row.name, readable(row.bytes));
    }
    add("total", readable(plan.total));
    for (const MemoryRow& row : plan.rows) {
        if (row.elsewhere) add("on the host: " + row.name, readable(row.bytes));
    }
    add("available now", readable(plan.available));
    add("kept free", readable(plan.floor));
    add("tokens in the pool", std::to_string(plan.kv_tokens));
    add("context of one request", std::to_string(plan.context));
    add("running requests at most", std::to_string(plan.max_running));
    add("checkpoints of the prefix cache",
        plan.checkpoints == 0 ? "0, it is off" : std::to_string(plan.checkpoints));
    add("bytes a token", std::to_string(plan.bytes_per_token));
    add("bytes a request beside its tokens", std::to_string(plan.bytes_per_sequence));
    return lines;
}

}  // namespace percheron::engine
