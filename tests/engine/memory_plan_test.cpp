#include "engine/memory_plan.h"

#include <algorithm>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace percheron::engine {
namespace {

constexpr Bytes mebibyte = Bytes{1} << 20;

MemoryNeeds nano_like() {
    MemoryNeeds needs;
    needs.weights = 38 * mebibyte;
    needs.program = 10 * mebibyte;
    needs.network = {.activations = 5 * mebibyte, .stages = 12 * mebibyte, .logits = 2 * mebibyte};
    needs.vocabulary = 8192;
    needs.caches.sparse_layers = 2;
    needs.caches.latent = 512;
    needs.caches.index_dim = 128;
    needs.caches.kda_layers = 7;
    needs.caches.kda_heads = 4;
    needs.caches.kda_dim = 128;
    needs.context_limit = 1 << 20;
    return needs;
}

// A20: whatever is asked, the numbers add up, fit, and honour every wish; or the refusal names it.
TEST(MemoryPlan, AddsUpFitsAndHonoursWishesOrRefuses) {
    std::mt19937_64 random(8);
    int planned = 0;
    int refused = 0;
    int cached = 0;
    for (int repeat = 0; repeat < 5000; ++repeat) {
        MemoryNeeds needs = nano_like();
        needs.on_device = repeat % 2 == 1;
        needs.weights = random() % (8192 * mebibyte);
        needs.caches.sparse_layers = 1 + random() % 11;
        needs.caches.kda_layers = 1 + random() % 34;
        needs.context_limit = 1000 + random() % 1'000'000;
        // A drafter with a window, one that sees everything, or none.
        const std::uint64_t drafter = random() % 3;
        if (drafter > 0) {
            needs.drafter = random() % (512 * mebibyte);
            needs.draft_page = 64 * (1 + random() % 20000);
            needs.draft_pages_a_slot = drafter == 1 ? 1 + random() % 34 : 0;
            needs.draft_pages_a_checkpoint = std::min(needs.draft_pages_a_slot, 8u);
        }
        const Bytes slot_bytes =
            needs.caches.slot_bytes() + needs.draft_pages_a_slot * needs.draft_page;
        const Bytes checkpoint_bytes =
            needs.caches.checkpoint_bytes() + needs.draft_pages_a_checkpoint * needs.draft_page;
        MachineMemory machine;
        machine.total = 512 * mebibyte + random() % (65536 * mebibyte);
        machine.available = random() % machine.total;
        MemoryWishes wishes;
        if (random() % 2 == 0) {
            wishes.context = 2 + random() % 200'000;
        }
        if (random() % 2 == 0) {
            wishes.kv_memory = random() % (4096 * mebibyte);
        }
        if (random() % 2 == 0) {
            wishes.max_running = 1 + random() % 256;
        }
        wishes.prefix_cache = random() % 4 != 0;
        if (random() % 4 == 0) {
            wishes.checkpoint_memory = random() % (512 * mebibyte);
        }
        const auto plan = plan_memory(needs, wishes, machine);
        if (!plan.ok()) {
            ++refused;
            EXPECT_TRUE(plan.error().code() == ErrorCode::out_of_memory ||
                        plan.error().code() == ErrorCode::invalid_argument);
            EXPECT_GT(plan.error().message().size(), 20u);
            continue;
        }
        ++planned;
        Bytes sum = 0;
        Bytes kv = 0;
        for (const MemoryRow& row : plan->rows) {
            sum += row.elsewhere ? 0 : row.bytes;
            ASSERT_FALSE(row.elsewhere && !needs.on_device);
            const bool cache_row = row.name.find("pages") != std::string::npos ||
                                   row.name.find("keys") != std::string::npos ||
                                   row.name.find("slots") != std::string::npos ||
                                   row.name.find("context") != std::string::npos ||
                                   row.name.find("prefix") != std::string::npos;
            kv += cache_row && !row.elsewhere ? row.bytes : 0;
        }
        ASSERT_EQ(sum, plan->total);
        const Bytes checkpoints = plan->checkpoints * checkpoint_bytes;
        const Bytes page_bytes = needs.caches.page_bytes() + (drafter == 2 ? needs.draft_page : 0) +
                                 (plan->checkpoints > 0 && !needs.on_device ? tree_block_bytes : 0);
        ASSERT_EQ(plan->draft_pages, drafter == 0 ? 0
                                     : drafter == 2
                                         ? plan->pages
                                         : plan->max_running * needs.draft_pages_a_slot +
                                               plan->checkpoints * needs.draft_pages_a_checkpoint);
        ASSERT_EQ(kv, plan->pages * page_bytes + plan->max_running * slot_bytes + checkpoints);
        if (!wishes.prefix_cache) {
            ASSERT_EQ(plan->checkpoints, 0u);
        } else if (wishes.checkpoint_memory) {
            ASSERT_LE(checkpoints, *wishes.checkpoint_memory);
            ASSERT_GE(plan->checkpoints, 1u);
            ASSERT_GT(checkpoints + checkpoint_bytes, *wishes.checkpoint_memory);
        } else {
            ASSERT_LE(checkpoints,
                      std::max(kv / 8, std::min(kv / 4, 2 * checkpoint_bytes)) + page_bytes);
            cached += plan->checkpoints > 0 ? 1 : 0;
        }
        ASSERT_LE(plan->total, machine.available - plan->floor);
        ASSERT_GE(plan->floor, 256 * mebibyte);
        ASSERT_GE(plan->pages, 1u);
        ASSERT_GE(plan->max_running, 1u);
        ASSERT_EQ(plan->kv_tokens, std::uint64_t{plan->pages} * 64);
        ASSERT_LE(plan->context, plan->kv_tokens);
        ASSERT_LE(plan->context, needs.context_limit);
        ASSERT_EQ(plan->largest_request, std::min(plan->kv_tokens, needs.context_limit));
        if (wishes.context) {
            ASSERT_EQ(plan->context, *wishes.context);
        } else {
            ASSERT_EQ(plan->context, plan->largest_request);
        }
        if (wishes.max_running) {
            ASSERT_EQ(plan->max_running, *wishes.max_running);
        }
        if (wishes.kv_memory) {
            ASSERT_LE(kv, *wishes.kv_memory);
            ASSERT_GT(kv + page_bytes + tree_block_bytes, *wishes.kv_memory);
        }
    }
    EXPECT_GT(planned, 1000);
    EXPECT_GT(refused, 500);
    EXPECT_GT(cached, 500);
}

TEST(MemoryPlan, RefusesWithAdviceThatWorks) {
    const MemoryNeeds needs = nano_like();
    const MachineMemory machine{2048 * mebibyte, 1024 * mebibyte};
    const auto too_much = plan_memory(needs, {{}, 4096 * mebibyte, {}}, machine);
    ASSERT_FALSE(too_much.ok());
    EXPECT_EQ(too_much.error().code(), ErrorCode::out_of_memory);
    EXPECT_NE(too_much.error().message().find("--kv-memory can be at most"), std::string::npos);

    const auto too_small = plan_memory(needs, {{}, {}, {}, true, 1000}, machine);
    ASSERT_FALSE(too_small.ok());
    EXPECT_NE(too_small.error().message().find("--checkpoint-memory"), std::string::npos);
    EXPECT_TRUE(plan_memory(needs, {{}, {}, {}, false, 1000}, machine).ok());

    // Checkpoints that nobody asked for never cost a context that fits without them.
    const Bytes tight =
        needs.caches.slot_bytes() + 100 * (needs.caches.page_bytes() + tree_block_bytes);
    for (const Bytes spare : {Bytes{0}, needs.caches.checkpoint_bytes()}) {
        const auto plan = plan_memory(needs, {6400, tight + spare, 1}, machine);
        ASSERT_TRUE(plan.ok()) << plan.error().message();
        EXPECT_EQ(plan->checkpoints, spare == 0 ? 0u : 1u);
    }

    // A named context is given the memory it needs.
    const auto long_context = plan_memory(needs, {200'000, {}, {}}, machine);
    ASSERT_TRUE(long_context.ok()) << long_context.error().message();
    EXPECT_EQ(long_context->context, 200'000u);

    const auto beyond = plan_memory(needs, {(1u << 20) + 1, {}, {}}, machine);
    ASSERT_FALSE(beyond.ok());
    EXPECT_EQ(beyond.error().code(), ErrorCode::invalid_argument);

    MemoryNeeds heavy = needs;
    heavy.weights = 900 * mebibyte;
    EXPECT_EQ(plan_memory(heavy, {}, machine).error().code(), ErrorCode::out_of_memory);
}

// A20: as many rows a step as the memory allows; caches that somebody wished for come first.
TEST(MemoryPlan, PromptsTakeTheMostRowsThatFitBesideTheWishes) {
    constexpr std::uint32_t choices[] = {8192, 4096, 2048, 512};
    constexpr Bytes row = 400'000;
    std::mt19937_64 random(11);
    std::map<std::uint32_t, int> chosen;
    int refused = 0;
    for (int repeat = 0; repeat < 5000; ++repeat) {
        MemoryNeeds base = nano_like();
        base.weights = random() % (65536 * mebibyte);
        const auto needs_with = [&](std::uint32_t rows) {
            MemoryNeeds needs = base;
            needs.network.activations = rows * row / 8;
            needs.network.stages = rows * row / 8 * 6;
            needs.mtp.activations = rows * row / 8;
            return needs;
        };
        MachineMemory machine;
        machine.total = machine.available = random() % (98304 * mebibyte);
        MemoryWishes wishes;
        if (random() % 2 == 0) wishes.context = 2 + random() % 1'000'000;
        if (random() % 2 == 0) wishes.kv_memory = random() % (65536 * mebibyte);
        const auto planned = plan_prompt_rows(choices, needs_with, wishes, machine);
        // The largest choice by the rule, written down plainly.
        std::uint32_t expected = 0;
        for (const std::uint32_t rows : choices) {
            if (!plan_memory(needs_with(rows), wishes, machine).ok()) continue;
            const double taken = static_cast<double>(base.weights + base.program) +
                                 std::max(static_cast<double>(machine.total) / 32,
                                          static_cast<double>(256 * mebibyte));
            const double left = static_cast<double>(machine.available) - taken;
            if (rows > 512 && static_cast<double>(rows * row) > left / 8) continue;
            expected = rows;
            break;
        }
        if (expected == 0) {
            ++refused;
            ASSERT_FALSE(planned.ok());
            EXPECT_EQ(planned.error().message(),
                      plan_memory(needs_with(512), wishes, machine).error().message());
            continue;
        }
        ASSERT_TRUE(planned.ok()) << planned.error().message();
        ASSERT_EQ(planned->rows, expected);
        ASSERT_EQ(planned->plan.total, plan_memory(needs_with(expected), wishes, machine)->total);
        ++chosen[expected];
    }
    for (const std::uint32_t rows : choices)
        EXPECT_GT(chosen[rows], 20) << rows;
    EXPECT_GT(refused, 500);
}

TEST(MemoryPlan, PrintsEveryRowAndTheTotal) {
    const MachineMemory machine{16384 * mebibyte, 12000 * mebibyte};
    const auto plan = plan_memory(nano_like(), {}, machine).value();
    const std::vector<std::string> lines = table_of(plan);
    const auto mentions = [&](const std::string& words) {
        return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
            return line.find(words) != std::string::npos;
        });
    };
    for (const MemoryRow& row : plan.rows) {
        EXPECT_TRUE(mentions(row.name));
    }
    EXPECT_TRUE(mentions(readable(plan.total)));
    EXPECT_TRUE(mentions(std::to_string(plan.kv_tokens)));
    // Of a device what the host holds is listed behind the total, and takes nothing from it.
    MemoryNeeds apart = nano_like();
    apart.on_device = true;
    apart.mtp = {.activations = 3 * mebibyte, .logits = 7 * mebibyte};
    apart.image_features = 30000 * mebibyte;
    apart.copy_index_per_token = 24;
    const auto of_device = plan_memory(apart, {}, machine).value();
    Bytes on_host = 0;
    std::vector<std::string> named;
    for (const MemoryRow& row : of_device.rows) {
        on_host += row.elsewhere ? row.bytes : 0;
        if (row.elsewhere) named.push_back(row.name);
    }
    EXPECT_THAT(named, ::testing::ElementsAre("logits", "sampling", "drafting: MTP logits",
                                              "drafting: index of texts", "prefix tree"));
    EXPECT_GT(of_device.kv_tokens, plan.kv_tokens);
    EXPECT_GE(on_host, apart.network.logits + apart.mtp.logits + 24 * of_device.kv_tokens);
    const std::vector<std::string> apart_lines = table_of(of_device);
    const auto place = [&](const std::string& words) {
        return std::find_if(apart_lines.begin(), apart_lines.end(), [&](const std::string& line) {
            return line.find(words) != std::string::npos;
        });
    };
    EXPECT_LT(place("total"), place("on the host: drafting: index of texts"));
    EXPECT_LT(place("drafting: MTP activations"), place("total"));
    EXPECT_EQ(readable(512 * mebibyte), "512.0 MiB");
    EXPECT_EQ(readable(Bytes{1} << 31), "2.00 GiB");
}

}  // namespace
}  // namespace percheron::engine
