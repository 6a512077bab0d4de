// Promises 1 to 3 with fp8 caches on the embedded model: ids do not depend on what runs beside a
// request, on chunks, threads, preemption, drafts, the prefix cache or its files.  On the CPU, or
// where PERCHERON_TEST_DEVICE says.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cache/cache_shape.h"
#include "checkpoint/config.h"
#include "engine/reply_collector.h"
#include "support/temporary_folder.h"
#include "tools/drafted_replies.h"
#include "tools/drafter_files.h"
#include "tools/nano_model.h"
#include "tools/synth.h"

namespace percheron::tools {
namespace {

using engine::StepRecord;
using engine::testing::CollectedReply;
using engine::testing::ReplyCollector;
using Ids = std::vector<TokenId>;

class NanoFp8 : public NanoModel {
  protected:
    static LoadOptions fp8_options() {
        LoadOptions result = options(Bytes{48} << 20, 8);
        result.kv_dtype = "fp8";
        result.draft.proposer = "off";
        result.prefix_cache = false;
        return result;
    }
    static bool on_the_cpu() {
        const char* const device = std::getenv("PERCHERON_TEST_DEVICE");
        return device == nullptr || std::string(device) == "cpu";
    }

    static std::vector<GenerationRequest> requests(unsigned seed, const std::vector<int>& lengths,
                                                   std::uint32_t output) {
        std::mt19937 random(seed);
        std::vector<GenerationRequest> result;
        for (const int length : lengths) {
            GenerationRequest request;
            const auto first = static_cast<std::ptrdiff_t>(
                random() % (text().size() - static_cast<std::size_t>(length)));
            request.prompt.assign(text().begin() + first, text().begin() + first + length);
            request.sampling.temperature = result.size() % 2 == 0 ? 0.0f : 1.0f;
            request.sampling.seed = random();
            request.max_tokens = output;
            request.ignore_eos = true;
            result.push_back(request);
        }
        return result;
    }

    static CollectedReply one(Engine& engine, const GenerationRequest& request) {
        ReplyCollector collector;
        const RequestId id = engine.submit(request, collector).value();
        collector.wait_for(1);
        return collector.reply(id);
    }
    static std::vector<Ids> alone(Engine& engine, const std::vector<GenerationRequest>& requests) {
        std::vector<Ids> replies;
        for (const GenerationRequest& request : requests) {
            replies.push_back(one(engine, request).tokens);
        }
        return replies;
    }
    static std::vector<Ids> together(Engine& engine,
                                     const std::vector<GenerationRequest>& requests) {
        ReplyCollector collector;
        std::vector<RequestId> ids;
        for (const GenerationRequest& request : requests) {
            ids.push_back(engine.submit(request, collector).value());
        }
        collector.wait_for(ids.size());
        std::vector<Ids> replies;
        for (const RequestId id : ids) {
            replies.push_back(collector.reply(id).tokens);
        }
        return replies;
    }
};

TEST_F(NanoFp8, BatchedIsAlone) {
    const auto requests = this->requests(1, {1, 64, 65, 300, 513}, 40);
    const auto whole = load(fp8_options());
    EXPECT_EQ(whole->description().kv_dtype, "fp8");
    const std::vector<Ids> expected = alone(*whole, requests);
    LoadOptions cut = fp8_options();
    cut.threads = 2;
    cut.scheduler.prefill_rows = 64;
    cut.scheduler.decode_share = 0;
    std::uint64_t wide = 0;
    cut.on_step = [&](const StepRecord& record) { wide += record.sequences >= 4 ? 1 : 0; };
    EXPECT_EQ(together(*load(cut), requests), expected);
    EXPECT_GT(wide, 20u);
    // And the type is at work: tokens have other probabilities than with bf16 caches.
    GenerationRequest scored = requests.back();
    scored.sampling.top_logprobs = 0;
    LoadOptions bf16 = fp8_options();
    bf16.kv_dtype = "auto";
    const auto in_fp8 = one(*whole, scored).logprobs, in_bf16 = one(*load(bf16), scored).logprobs;
    ASSERT_GT(in_fp8.size(), 4u);
    EXPECT_NE(in_fp8.front().chosen, in_bf16.front().chosen);
    EXPECT_NEAR(in_fp8.front().chosen, in_bf16.front().chosen, 0.5);
}

// A pool for about one and a half of the requests, sized by what an fp8 page takes.
TEST_F(NanoFp8, PreemptedRequestsGiveTheirUnpreemptedIds) {
    const auto requests = this->requests(2, {130, 180}, 200);
    const std::vector<Ids> expected = alone(*load(fp8_options()), requests);
    const auto shape =
        cache::CacheShape::of(checkpoint::read_config(folder()).value(), DType::f8_e4m3);
    LoadOptions narrow = fp8_options();
    narrow.max_running = 2;
    narrow.context = 512;
    narrow.kv_memory = 2 * shape.slot_bytes() + 11 * shape.page_bytes();
    const auto engine = load(narrow);
    EXPECT_EQ(together(*engine, requests), expected);
    EXPECT_GT(engine->status().preemptions, 0u);
}

// Copies, the model's own layer, and a random drafter whose context follows --kv-dtype.
TEST_F(NanoFp8, DraftedIsUndrafted) {
    const auto requests = this->requests(3, {62, 129, 200, 90}, 50);
    const std::vector<Ids> expected = alone(*load(fp8_options()), requests);
    std::vector<DraftWish> wishes = {{"copy", 4}, {"mtp", 1}, {"mtp", 4}};
    const tests::TemporaryFolder folders;
    if (on_the_cpu()) {
        const auto config = checkpoint::read_config(folder()).value();
        const auto drafter = checkpoint::make_synthetic_drafter("full", config, 7).value();
        ASSERT_TRUE(synth_drafter(folders.path() / "full", drafter, {}).ok());
        wishes.push_back({"dflash2", 3, folders.path() / "full"});
    }
    for (const DraftWish& wish : wishes) {
        LoadOptions drafting = fp8_options();
        drafting.kv_memory = Bytes{160} << 20;
        drafting.draft = wish;
        const auto engine = load(drafting);
        const DraftedReplies drafted = run_drafted(*engine, requests, true);
        EXPECT_EQ(drafted.tokens, expected) << wish.proposer;
        EXPECT_GT(drafted.rounds, 10u) << wish.proposer;
        EXPECT_GT(drafted.drafted, drafted.accepted) << wish.proposer;
        if (wish.proposer == "mtp") {
            EXPECT_GT(drafted.accepted, 10u) << wish.proposer;
        }
    }
}

TEST_F(NanoFp8, CachedIsColdAndRestoredFromFilesToo) {
    const tests::TemporaryFolder files;
    const auto requests = this->requests(4, {127, 128, 200, 390}, 16);
    const std::vector<Ids> expected = alone(*load(fp8_options()), requests);
    LoadOptions cached = fp8_options();
    cached.prefix_cache = true;
    cached.prefix_disk = files.path();
    const auto cached_tokens = [](const GenerationRequest& request) {
        return (request.prompt.size() - 1) / 64 * 64;
    };
    {
        const auto engine = load(cached);
        EXPECT_EQ(alone(*engine, requests), expected);
        for (std::size_t i = 0; i < requests.size(); ++i) {
            const CollectedReply again = one(*engine, requests[i]);
            EXPECT_EQ(again.tokens, expected[i]);
            EXPECT_EQ(again.cached, cached_tokens(requests[i]));
        }
    }
    // Files of fp8 pages are nothing to an engine with bf16 caches: it computes, and counts them
    // as refused.
    LoadOptions other = cached;
    other.kv_dtype = "bf16";
    {
        const auto engine = load(other);
        EXPECT_EQ(engine->status().prefix_disk.entries, 0u);
        EXPECT_GT(engine->status().prefix_disk.refused, 0u);
        EXPECT_EQ(one(*engine, requests[3]).cached, 0u);
    }
    const auto engine = load(cached);
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const CollectedReply restored = one(*engine, requests[i]);
        EXPECT_EQ(restored.tokens, expected[i]);
        EXPECT_EQ(restored.cached, cached_tokens(requests[i]));
    }
    EXPECT_GT(engine->status().prefix_disk.bytes_restored, 0u);
}

// The plan's rows name the type, and a token takes what it should: 513 bytes a latent and 129 a
// pooled key of four tokens.
TEST_F(NanoFp8, ThePlanCountsFp8) {
    const auto plan_of = [](const std::string& kv_dtype) {
        engine::MemoryPlan plan;
        LoadOptions options = fp8_options();
        options.kv_dtype = kv_dtype;
        options.on_plan = [&plan](const engine::MemoryPlan& made) { plan = made; };
        load(options);
        return plan;
    };
    const auto row_of = [](const engine::MemoryPlan& plan, const std::string& name) {
        for (const engine::MemoryRow& row : plan.rows) {
            if (row.name == name) return row.bytes;
        }
        return Bytes{0};
    };
    const engine::MemoryPlan fp8 = plan_of("fp8"), bf16 = plan_of("auto");
    const auto config = checkpoint::read_config(folder()).value();
    const auto layers = static_cast<Bytes>(
        std::count(config.mixers.begin(), config.mixers.end(), model::MixerKind::sparse_attention));
    EXPECT_EQ(row_of(fp8, "latent pages, fp8"), fp8.pages * layers * 64 * 513);
    EXPECT_EQ(row_of(fp8, "pooled index keys, fp8"), fp8.pages * layers * 16 * 129);
    EXPECT_EQ(row_of(bf16, "latent pages, bf16"), bf16.pages * layers * 64 * 1024);
    EXPECT_EQ(fp8.bytes_per_token, layers * (64 * 513 + 16 * 129) / 64);
    EXPECT_GT(fp8.kv_tokens, bf16.kv_tokens * 19 / 10);
}

TEST_F(NanoFp8, IsRefusedInFp32Arithmetic) {
    const tests::QuietLog quiet;
    LoadOptions options = fp8_options();
    options.arithmetic = ops::Arithmetic::fp32;
    const auto engine = load_engine(options, tokenizer());
    ASSERT_FALSE(engine.ok());
    EXPECT_NE(engine.error().message().find("--kv-dtype fp8"), std::string::npos);
}

}  // namespace
}  // namespace percheron::tools
