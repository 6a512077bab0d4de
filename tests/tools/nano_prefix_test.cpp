// Promise 3 on the embedded model: a request gives the same ids whatever the prefix cache holds,
// and the cache was at work.  On the CPU, or where PERCHERON_TEST_DEVICE says.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/config.h"
#include "core/logging.h"
#include "engine/reply_collector.h"
#include "support/temporary_folder.h"
#include "text/tokenizer.h"
#include "tools/nano_model.h"

namespace percheron::tools {
namespace {

using engine::testing::CollectedReply;
using engine::testing::ReplyCollector;

class NanoPrefix : public NanoModel {
  protected:
    static LoadOptions options_with(bool cache) {
        LoadOptions result = options(Bytes{96} << 20, 6);
        result.prefix_cache = cache;
        result.scheduler.prefill_rows = 192;
        return result;
    }
    static void append_text(GenerationRequest& request, std::uint32_t first, std::uint32_t count) {
        const auto begin =
            text().begin() + static_cast<std::ptrdiff_t>(first % (text().size() / 2));
        request.prompt.insert(request.prompt.end(), begin,
                              begin + static_cast<std::ptrdiff_t>(count));
    }
    static GenerationRequest ask(std::uint64_t seed, std::uint32_t output) {
        GenerationRequest request;
        request.sampling.temperature = seed % 2 == 0 ? 0.0f : 1.0f;
        request.sampling.seed = seed;
        request.max_tokens = output;
        request.ignore_eos = true;
        return request;
    }
    // A picture of `height` x `width` tokens with noise on it, at the prompt's end.
    static void append_image(GenerationRequest& request, std::uint32_t height, std::uint32_t width,
                             unsigned seed) {
        auto canvas = std::make_shared<ImageCanvas>();
        canvas->height = 28 * height;
        canvas->width = 28 * width;
        std::mt19937 random(seed);
        for (std::size_t i = 0; i < std::size_t{3} * canvas->height * canvas->width; ++i) {
            canvas->pixels.push_back(static_cast<std::uint8_t>(random()));
        }
        PromptImage image;
        image.first = static_cast<std::uint32_t>(request.prompt.size());
        image.count = height * width;
        image.grid_height = 2 * height;
        image.grid_width = 2 * width;
        image.canvas = std::move(canvas);
        image.content_hash = {static_cast<std::uint8_t>(seed), static_cast<std::uint8_t>(height),
                              static_cast<std::uint8_t>(width)};
        const TokenId placeholder = checkpoint::read_config(folder()).value().image_token;
        request.prompt.insert(request.prompt.end(), image.count, placeholder);
        request.images.push_back(std::move(image));
    }

    struct Run {
        std::unique_ptr<Engine> engine;
        ReplyCollector collector;
        std::size_t finished = 0;

        CollectedReply one(const GenerationRequest& request) {
            const RequestId id = engine->submit(request, collector).value();
            collector.wait_for(++finished);
            return collector.reply(id);
        }
        void wait_until_idle() const {
            while (engine->status().reprefill_pending > 0)
                std::this_thread::yield();
        }
    };
};

// What two prompts have in common ends at every place modulo 4 and near every kind of edge.
TEST_F(NanoPrefix, CachedIsColdAtEverySplit) {
    Run cold{load(options_with(false)), {}, 0}, cached{load(options_with(true)), {}, 0};
    std::uint64_t hits = 0;
    std::uint32_t number = 0;
    for (const std::uint32_t base : {64u, 128u, 512u}) {
        for (const int offset : {-2, -1, 0, 1, 2, 3}) {
            const std::uint32_t split = base + static_cast<std::uint32_t>(offset);
            GenerationRequest stem = ask(++number, 4);
            append_text(stem, number * 301, split);
            GenerationRequest request = stem;
            append_text(request, number * 77 + 5000, 1 + number * 13 % 90);
            // The stem alone, what goes on from it, and that again.
            ASSERT_EQ(cached.one(stem).tokens, cold.one(stem).tokens);
            const std::vector<TokenId> expected = cold.one(request).tokens;
            const CollectedReply first = cached.one(request);
            EXPECT_EQ(first.tokens, expected) << split;
            EXPECT_EQ(first.cached, split / 64 * 64) << split;
            const CollectedReply again = cached.one(request);
            EXPECT_EQ(again.tokens, expected) << split;
            EXPECT_EQ(again.cached, (request.prompt.size() - 1) / 64 * 64);
            hits += again.cached > 0 ? 1 : 0;
        }
    }
    EXPECT_EQ(hits, 18u);
    const EngineStatus status = cached.engine->status();
    EXPECT_EQ(status.kv_tokens_free, status.kv_tokens_total);
}

// Conversations with pictures, their replies made reusable, edits, and a pool that must forget.
TEST_F(NanoPrefix, ConversationsGiveTheIdsOfAColdEngine) {
    LoadOptions small = options_with(true);
    small.max_running = 2;
    small.kv_memory = Bytes{28} << 20;
    small.checkpoint_memory = Bytes{14} << 20;
    Run cold{load(options_with(false)), {}, 0}, cached{load(small), {}, 0};
    std::uint64_t hits = 0, with_images = 0, cached_tokens = 0, prompt_tokens = 0, replies = 0;
    std::mt19937 random(11);
    const TokenId placeholder = checkpoint::read_config(folder()).value().image_token;
    std::vector<GenerationRequest> conversations(4);
    for (std::uint64_t i = 0; i < conversations.size(); ++i) {
        conversations[i] = ask(100 + i, 40);
        append_text(conversations[i], 40, 150);  // a beginning in common
    }
    for (int turn = 0; turn < 24; ++turn) {
        GenerationRequest& request = conversations[random() % conversations.size()];
        append_text(request, random() % 10'000, 1 + random() % 70);
        if (turn % 5 == 2) append_image(request, 2 + random() % 5, 4, random() % 3 + 1);
        append_text(request, random() % 10'000, 1 + random() % 30);
        const CollectedReply reply = cached.one(request);
        ASSERT_EQ(reply.tokens, cold.one(request).tokens) << "turn " << turn;
        hits += reply.cached > 0 ? 1 : 0;
        with_images += reply.cached > 0 && !request.images.empty() ? 1 : 0;
        cached_tokens += reply.cached;
        prompt_tokens += request.prompt.size();
        ++replies;
        if (turn % 2 == 0) cached.wait_until_idle();
        request.prompt.insert(request.prompt.end(), reply.tokens.begin(), reply.tokens.end());
        if (turn % 7 == 6) {
            TokenId& edited = request.prompt[request.prompt.size() / 3];
            if (edited != placeholder) edited = TokenId(50);
        }
        if (request.prompt.size() > 900) {
            request.prompt.resize(200);
            std::erase_if(request.images,
                          [](const PromptImage& image) { return image.first + image.count > 200; });
            // A picture cut in two would be none.
            std::uint32_t covered = 0;
            for (const PromptImage& image : request.images)
                covered = image.first + image.count;
            std::replace(request.prompt.begin() + covered, request.prompt.end(), placeholder,
                         TokenId(51));
        }
    }
    EXPECT_EQ(replies, 24u);
    EXPECT_GE(hits, 12u);
    EXPECT_GE(with_images, 3u);
    EXPECT_GT(cached_tokens * 3, prompt_tokens);
}

// Text and pictures that one engine has left in files, asked of the next, which drafts with the
// layer whose latents lie in them too.
TEST_F(NanoPrefix, RestoredFromFilesIsCold) {
    const tests::TemporaryFolder files;
    LoadOptions options = options_with(true);
    options.prefix_disk = files.path();
    options.draft = {"mtp", 2};
    std::vector<GenerationRequest> requests;
    std::vector<std::vector<TokenId>> expected;
    std::vector<std::uint32_t> accepted;
    {
        Run cold{load(options_with(false)), {}, 0}, first{load(options), {}, 0};
        for (std::uint64_t i = 0; i < 6; ++i) {
            GenerationRequest request = ask(300 + i, 24);
            append_text(request, static_cast<std::uint32_t>(i) * 700, 250 + 31 * i);
            if (i % 2 == 1) append_image(request, 5, 4, static_cast<unsigned>(i));
            append_text(request, 9000, 40);
            expected.push_back(cold.one(request).tokens);
            const CollectedReply reply = first.one(request);
            ASSERT_EQ(reply.tokens, expected.back());
            accepted.push_back(reply.finished->statistics.accepted_tokens);
            requests.push_back(std::move(request));
        }
        first.wait_until_idle();
    }
    Run restarted{load(options), {}, 0};
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const CollectedReply reply = restarted.one(requests[i]);
        EXPECT_EQ(reply.tokens, expected[i]) << i;
        EXPECT_EQ(reply.cached, (requests[i].prompt.size() - 1) / 64 * 64) << i;
        // The layer's own latents were among what was read.
        EXPECT_EQ(reply.finished->statistics.accepted_tokens, accepted[i]) << i;
    }
    const PrefixDiskStatus disk = restarted.engine->status().prefix_disk;
    EXPECT_EQ(disk.restores, requests.size());
    EXPECT_GT(disk.bytes_restored, Bytes{1} << 20);
    EXPECT_EQ(disk.refused, 0u);
    EXPECT_GT(std::accumulate(accepted.begin(), accepted.end(), 0u), 6u);
}

// The same in a crowd: hits, prompts under way and streams side by side, on two threads.
TEST_F(NanoPrefix, CrowdsWithCommonBeginningsGiveTheIdsOfEachAlone) {
    Run cold{load(options_with(false)), {}, 0};
    std::vector<GenerationRequest> requests;
    std::vector<std::vector<TokenId>> expected;
    std::mt19937 random(12);
    for (std::uint64_t i = 0; i < 18; ++i) {
        GenerationRequest request = ask(200 + i, 24);
        append_text(request, i % 3 * 1000, 80 + random() % 400);
        append_text(request, random() % 10'000, 1 + random() % 60);
        request.prompt[5] = TokenId(60 + static_cast<int>(i % 2));
        requests.push_back(request);
        expected.push_back(cold.one(request).tokens);
    }
    LoadOptions options = options_with(true);
    options.threads = 2;
    options.kv_memory = Bytes{160} << 20;
    options.checkpoint_memory = Bytes{64} << 20;
    Run cached{load(options), {}, 0};
    std::uint64_t hits = 0;
    for (int round = 0; round < 2; ++round) {
        std::vector<RequestId> ids;
        for (const GenerationRequest& request : requests) {
            ids.push_back(cached.engine->submit(request, cached.collector).value());
        }
        cached.finished += requests.size();
        cached.collector.wait_for(cached.finished);
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const CollectedReply reply = cached.collector.reply(ids[i]);
            EXPECT_EQ(reply.tokens, expected[i]) << i;
            hits += reply.cached > 0 ? 1 : 0;
        }
    }
    EXPECT_GE(hits, 20u);
    EXPECT_EQ(cached.collector.complaint(), "");
}

}  // namespace
}  // namespace percheron::tools
