// Promises 2 and 3 on the embedded model: a request's ids do not depend on what runs beside it, on
// chunks, threads, cancels or preemption.  On the CPU, or where PERCHERON_TEST_DEVICE says.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <latch>
#include <map>
#include <memory>
#include <random>
#include <string>

#include <gtest/gtest.h>
#include <malloc.h>

#include "cache/cache_shape.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "core/logging.h"
#include "core/machine_memory.h"
#include "engine/reply_collector.h"
#include "golden/golden_file.h"
#include "model/vision_tower.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/image_patches.h"
#include "text/tokenizer.h"
#include "tools/nano_model.h"
#include "vision/image.h"
#include "vision/patches.h"

namespace percheron::tools {
namespace {

using engine::StepRecord;
using engine::testing::CollectedReply;
using engine::testing::ReplyCollector;

class NanoEngine : public NanoModel {
  protected:
    static LoadOptions small_options() {
        LoadOptions result = options(Bytes{64} << 20, 8);
        result.draft.proposer = "off";  // nano_draft_test.cpp
        result.prefix_cache = false;    // every prompt is computed; nano_prefix_test.cpp has it on
        return result;
    }

    // Prompts of given lengths: pieces of the text.
    static std::vector<GenerationRequest> requests(unsigned seed, const std::vector<int>& lengths,
                                                   std::uint32_t output) {
        std::mt19937 random(seed);
        std::vector<GenerationRequest> result;
        for (std::size_t i = 0; i < lengths.size(); ++i) {
            GenerationRequest request;
            const auto length = static_cast<std::size_t>(lengths[i]);
            const std::size_t first = random() % (text().size() - length);
            request.prompt.assign(text().begin() + static_cast<std::ptrdiff_t>(first),
                                  text().begin() + static_cast<std::ptrdiff_t>(first + length));
            request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
            request.sampling.top_p = 0.95f;
            request.sampling.seed = random();
            request.max_tokens = output;
            request.ignore_eos = true;
            result.push_back(request);
        }
        return result;
    }

    // A plain image of height x width tokens, and one token of reply.
    static GenerationRequest image_request(std::uint32_t height, std::uint32_t width,
                                           std::uint8_t grey) {
        auto canvas = std::make_shared<ImageCanvas>();
        canvas->height = 28 * height;
        canvas->width = 28 * width;
        canvas->pixels.assign(std::size_t{3} * canvas->height * canvas->width, grey);
        PromptImage image;
        image.count = height * width;
        image.grid_height = 2 * height;
        image.grid_width = 2 * width;
        image.canvas = std::move(canvas);
        image.content_hash[0] = grey;
        GenerationRequest request;
        const TokenId placeholder = checkpoint::read_config(folder()).value().image_token;
        request.prompt.assign(image.count, placeholder);
        request.images = {image};
        request.max_tokens = 1;
        return request;
    }

    // A picture from a file, standing at `first`.
    static PromptImage prompt_image(const std::filesystem::path& file, std::uint32_t first) {
        std::ifstream stream(file, std::ios::binary);
        const std::string bytes((std::istreambuf_iterator<char>(stream)),
                                std::istreambuf_iterator<char>());
        const vision::RgbImage picture =
            vision::decode_image(
                {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()})
                .value();
        const vision::Canvas plan = vision::plan_canvas(picture.height, picture.width);
        vision::RgbImage laid = vision::lay_on_canvas(picture, plan);
        auto canvas = std::make_shared<ImageCanvas>();
        canvas->height = static_cast<std::uint32_t>(plan.height);
        canvas->width = static_cast<std::uint32_t>(plan.width);
        canvas->pixels = std::move(laid.pixels);
        PromptImage image;
        image.first = first;
        image.count = static_cast<std::uint32_t>(plan.tokens);
        image.grid_height = canvas->height / 14;
        image.grid_width = canvas->width / 14;
        image.canvas = std::move(canvas);
        const std::size_t hash = std::hash<std::string>()(bytes);
        std::memcpy(image.content_hash.data(), &hash, sizeof hash);
        return image;
    }

    static std::vector<std::vector<TokenId>> alone(const std::vector<GenerationRequest>& requests) {
        const tests::QuietLog quiet;
        LoadOptions options = small_options();
        options.max_running = 1;
        const std::unique_ptr<Engine> engine = load(options);
        std::vector<std::vector<TokenId>> replies;
        for (const GenerationRequest& request : requests) {
            ReplyCollector collector;
            const RequestId id = engine->submit(request, collector).value();
            collector.wait_for(1);
            replies.push_back(collector.reply(id).tokens);
        }
        return replies;
    }
};

TEST_F(NanoEngine, EightTogetherGiveTheIdsOfEachAlone) {
    const auto requests = this->requests(1, {1, 63, 64, 65, 130, 300, 513, 700}, 60);
    const auto expected = alone(requests);
    const tests::QuietLog quiet;
    for (const auto& [threads, chunk] : {std::pair{1u, 192u}, {2u, 64u}, {2u, 512u}}) {
        {
            LoadOptions options = small_options();
            options.threads = threads;
            options.scheduler.prefill_rows = chunk;
            options.scheduler.decode_share = 0;
            std::uint64_t steps = 0;
            std::uint64_t wide_steps = 0;
            std::uint64_t chunks = 0;
            std::latch all_submitted(1);
            options.on_step = [&](const StepRecord& record) {
                all_submitted.wait();
                ++steps;
                wide_steps += record.rows >= 4 ? 1 : 0;
                chunks += record.numeric_class == ops::NumericClass::prefill ? 1 : 0;
            };
            const std::unique_ptr<Engine> engine = load(options);
            ReplyCollector collector;
            std::vector<RequestId> ids;
            for (const GenerationRequest& request : requests) {
                ids.push_back(engine->submit(request, collector).value());
            }
            all_submitted.count_down();
            collector.wait_for(ids.size());
            for (std::size_t i = 0; i < ids.size(); ++i) {
                ASSERT_EQ(collector.reply(ids[i]).tokens, expected[i])
                    << "request " << i << ", threads " << threads << ", chunk " << chunk;
            }
            EXPECT_GE(wide_steps * 10, steps * 8);
            EXPECT_GE(chunks, 3u);
        }
    }
}

// A pool for about one and a half of the requests.
TEST_F(NanoEngine, PreemptedRequestsGiveTheirUnpreemptedIds) {
    const auto requests = this->requests(2, {130, 180}, 230);
    const auto expected = alone(requests);
    const tests::QuietLog quiet;
    const auto shape =
        cache::CacheShape::of(checkpoint::read_config(folder()).value(), DType::bf16);
    for (const std::uint32_t refeed_rows : {1u, 8u}) {
        LoadOptions options = small_options();
        options.max_running = 2;
        options.context = 512;
        options.scheduler.refeed_rows = refeed_rows;
        options.kv_memory = 2 * shape.slot_bytes() + 11 * shape.page_bytes();
        const std::unique_ptr<Engine> engine = load(options);
        ReplyCollector collector;
        std::vector<RequestId> ids;
        for (const GenerationRequest& request : requests) {
            ids.push_back(engine->submit(request, collector).value());
        }
        collector.wait_for(ids.size());
        EXPECT_GT(engine->status().preemptions, 0u);
        for (std::size_t i = 0; i < ids.size(); ++i) {
            ASSERT_EQ(collector.reply(ids[i]).tokens, expected[i]) << i;
        }
    }
}

// Promise 5: under full load the plan agrees with the operating system within 1 % or 48 MiB.
TEST_F(NanoEngine, ThePlanAgreesWithTheOperatingSystem) {
    const tests::QuietLog quiet;
    const auto shape =
        cache::CacheShape::of(checkpoint::read_config(folder()).value(), DType::bf16);
    constexpr std::uint32_t streams = 64;
    constexpr std::uint32_t pages = 3 * streams;  // two of tokens, one kept for growth
    LoadOptions options = small_options();
    options.device = "cpu";  // what the operating system reports is the host's memory
    options.max_running = streams;
    options.context = 1024;
    options.kv_memory = streams * shape.slot_bytes() + pages * shape.page_bytes();
    engine::MemoryPlan plan;
    Bytes weights = 0;
    options.on_plan = [&](const engine::MemoryPlan& made) {
        plan = made;
        weights = made.rows.front().bytes;
    };
    std::uint32_t most_together = 0;
    options.scheduler.decode_share = 0;
    std::latch all_submitted(1);
    options.on_step = [&](const StepRecord& record) {
        all_submitted.wait();
        most_together = std::max(most_together, record.sequences);
    };
    const std::unique_ptr<Engine> engine = load(options);
    ASSERT_EQ(plan.pages, pages);
    // Every slot runs at once.
    ReplyCollector collector;
    for (const GenerationRequest& request :
         this->requests(3, std::vector<int>(streams, 70), 2 * 64 - 70)) {
        ASSERT_TRUE(engine->submit(request, collector).ok());
    }
    all_submitted.count_down();
    collector.wait_for(streams);
    EXPECT_EQ(most_together, streams);
    // And two images that fill the tower and the room for features.
    for (const std::uint8_t grey : {10, 200}) {
        ASSERT_TRUE(engine->submit(image_request(24, 40, grey), collector).ok());
    }
    collector.wait_for(streams + 2);
    EXPECT_EQ(engine->status().images_encoded, 2u);
    const Bytes measured = anonymous_memory().value() + weights;
    const double allowed = std::max(0.01 * static_cast<double>(plan.total), 48.0 * 1024 * 1024);
    EXPECT_NEAR(static_cast<double>(measured), static_cast<double>(plan.total), allowed);
    std::printf("planned %s, measured %s\n", engine::readable(plan.total).c_str(),
                engine::readable(measured).c_str());
}

// The tower's own line of that plan.
TEST_F(NanoEngine, TheTowerAsksForWhatItSays) {
    const auto checkpoint = checkpoint::Checkpoint::open(folder()).value();
    ops::CpuBackendOptions backend_options;
    backend_options.threads = 1;
    const auto backend = ops::make_cpu_backend(backend_options).value();
    model::VisionOptions options;
    options.max_tokens = 1000;
    const Bytes planned = model::VisionTower::memory(checkpoint->config(), *backend, options);
    const GenerationRequest request = image_request(40, 25, 77);
    std::vector<float> features(1000 * checkpoint->config().hidden, 0.0f);
    malloc_trim(0);  // what earlier tests freed would hide what this one takes
    const Bytes before = anonymous_memory().value();
    const auto tower =
        model::VisionTower::load(checkpoint->config(), *checkpoint, *backend, options).value();
    const ImageCanvas& canvas = *request.images[0].canvas;
    ASSERT_TRUE(tower
                    ->begin({80, 50,
                             [&](std::size_t first, std::size_t count, std::span<float> out) {
                                 ops::image_patches(canvas.pixels, canvas.width, {}, {}, first,
                                                    count, out);
                             }},
                            features)
                    .ok());
    while (!tower->advance()) {
    }
    const Bytes measured = anonymous_memory().value() - before;
    EXPECT_GT(planned, Bytes{6} << 20);
    EXPECT_NEAR(static_cast<double>(measured), static_cast<double>(planned),
                0.1 * static_cast<double>(planned) + (1 << 20));
}

// Two pictures of the goldens beside running text: the ids of transformers, once encoded.
TEST_F(NanoEngine, GoldenImagesGiveTheirGoldenReplies) {
    const tests::QuietLog quiet;
    const std::filesystem::path numbers =
        std::filesystem::path(PERCHERON_SOURCE_DIR) / "tests/data/nano_vision_golden";
    const auto golden = tests::GoldenFile::open(numbers).value();
    LoadOptions options = small_options();
    options.scheduler.prefill_rows = 64;
    const std::unique_ptr<Engine> engine = load(options);
    EXPECT_TRUE(engine->description().vision);
    const TokenId placeholder = checkpoint::read_config(folder()).value().image_token;

    ReplyCollector collector;
    std::size_t finished = 0;
    for (const GenerationRequest& text : this->requests(9, {90, 150, 33}, 40)) {
        ASSERT_TRUE(engine->submit(text, collector).ok());
        ++finished;
    }
    const std::map<std::string, std::vector<std::string>> files = {
        {"image1", {"image_a"}},
        {"image2", {"image_a", "image_b"}},
        {"image3", {"image_a", "image_odd"}}};
    std::map<std::string, RequestId> ids;
    for (const auto& [prompt, images] : files) {
        GenerationRequest request;
        for (const int id : golden.ids(prompt)) {
            request.prompt.push_back(TokenId(id));
        }
        auto at = request.prompt.begin();
        for (const std::string& file : images) {
            at = std::find(at, request.prompt.end(), placeholder);
            request.images.push_back(
                prompt_image(numbers / (file + ".png"),
                             static_cast<std::uint32_t>(at - request.prompt.begin())));
            at += request.images.back().count;
        }
        EXPECT_EQ(std::count(at, request.prompt.end(), placeholder), 0);
        request.sampling.temperature = 0;
        request.max_tokens = 24;
        ids[prompt] = engine->submit(request, collector).value();
        ++finished;
    }
    collector.wait_for(finished);
    for (const auto& [prompt, id] : ids) {
        std::vector<TokenId> expected;
        for (const float token : golden.find(prompt + ".f32.greedy")->values) {
            expected.push_back(TokenId(static_cast<int>(token)));
        }
        EXPECT_EQ(collector.reply(id).tokens, expected) << prompt;
    }
    EXPECT_EQ(engine->status().images_encoded, 3u);
    EXPECT_EQ(engine->status().images_reused, 2u);
}

}  // namespace
}  // namespace percheron::tools
