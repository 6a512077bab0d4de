// Images on their way through the engine: what submit() refuses, encoding beside the steps, rows
// kept within their budget and used again.
#include <latch>

#include <gtest/gtest.h>

#include "engine/fake_network.h"
#include "engine/image_features.h"
#include "engine/reply_collector.h"
#include "engine/request_check.h"

namespace percheron::engine::testing {
namespace {

GenerationRequest request_of(std::uint32_t prompt, std::uint32_t output) {
    GenerationRequest request;
    for (std::uint32_t i = 0; i < prompt; ++i) {
        request.prompt.push_back(TokenId(static_cast<int>(i * 7 % 40)));
    }
    request.sampling.seed = 5;
    request.max_tokens = output;
    request.ignore_eos = true;
    return request;
}

std::vector<TokenId> expected_tokens(const GenerationRequest& request) {
    return expected_reply(request, *request.sampling.seed, 0, 10 * 64).tokens;
}

RequestLimits seeing_limits() {
    RequestLimits limits{48, 300, 4};
    limits.has_vision = true;
    limits.image_token = fake_image;
    limits.patch = fake_patch;
    limits.merge = fake_merge;
    limits.image_tokens = 12;
    limits.feature_row_bytes = fake_feature_width * sizeof(float);
    limits.image_memory = 20 * limits.feature_row_bytes;
    return limits;
}

TEST(Images, MustAgreeWithThemselvesAndThePrompt) {
    const RequestLimits limits = seeing_limits();
    const auto reason = [&](auto change) {
        GenerationRequest request = request_of(10, 5);
        insert_image(request, fake_image_of(2, 2, 1), 3);
        insert_image(request, fake_image_of(1, 6, 2), 9);
        change(request);
        const Status status = check_request(request, limits);
        return status.ok() ? std::string("fine") : std::string(status.error().reason());
    };
    const auto alter = [](PromptImage& image, auto change) {
        auto canvas = std::make_shared<ImageCanvas>(*image.canvas);
        change(*canvas);
        image.canvas = std::move(canvas);
    };
    using R = GenerationRequest&;
    const std::string invalid(reasons::invalid_value);
    EXPECT_EQ(reason([](R) {}), "fine");
    EXPECT_EQ(reason([](R r) { r.images[1].count = 0; }), invalid);
    EXPECT_EQ(reason([](R r) { r.images[1].first = 13; }), invalid);
    EXPECT_EQ(reason([](R r) { r.images[1].first = 0xffffffff; }), invalid);
    EXPECT_EQ(reason([](R r) { r.images[1].first = 6; }), invalid);
    EXPECT_EQ(reason([](R r) { std::swap(r.images[0], r.images[1]); }), invalid);
    EXPECT_EQ(reason([](R r) { r.images[0].canvas = nullptr; }), invalid);
    EXPECT_EQ(reason([](R r) { r.images[0].count = 3; }), invalid);
    EXPECT_EQ(reason([](R r) { r.images[0].grid_height = 2; }), invalid);
    EXPECT_EQ(reason([](R r) { r.images[1].grid_height = 1, r.images[1].grid_width = 24; }),
              invalid);
    EXPECT_EQ(reason([](R r) { r.prompt[4] = TokenId(3); }), invalid);
    EXPECT_EQ(reason([&](R r) { alter(r.images[0], [](auto& c) { c.pixels.pop_back(); }); }),
              invalid);
    EXPECT_EQ(reason([&](R r) { alter(r.images[0], [](auto& c) { c.height += 4; }); }), invalid);
    // One token more than an image may have; then images that are too much together.
    EXPECT_EQ(reason([](R r) { insert_image(r, fake_image_of(1, 13, 3), 16); }), invalid);
    EXPECT_EQ(reason([](R r) { insert_image(r, fake_image_of(1, 10, 3), 16); }), "fine");
    EXPECT_EQ(reason([](R r) { insert_image(r, fake_image_of(1, 11, 3), 16); }), invalid);
    // The same image twice is held once.
    EXPECT_EQ(reason([](R r) { insert_image(r, fake_image_of(1, 6, 2), 16); }), "fine");
}

TEST(Images, AreEncodedOnceAndUsedAgain) {
    const auto engine = make_fake_engine(fake_options(10, 2), {}, true);
    EXPECT_TRUE(engine->description().vision);
    ReplyCollector collector;
    GenerationRequest request = request_of(100, 20);
    insert_image(request, fake_image_of(3, 5, 1), 60);  // over the edge of two chunks
    insert_image(request, fake_image_of(2, 2, 2), 80);
    insert_image(request, fake_image_of(3, 5, 1), 90);
    for (std::uint64_t round = 1; round <= 3; ++round) {
        const RequestId id = engine->submit(request, collector).value();
        collector.wait_for(round);
        EXPECT_EQ(collector.reply(id).tokens, expected_tokens(request));
        EXPECT_EQ(engine->status().images_encoded, 2u);
        EXPECT_EQ(engine->status().images_reused, 1 + 3 * (round - 1));
    }
    // Other pixels in the same places are another prompt.
    GenerationRequest other = request;
    other.images[1] = fake_image_of(2, 2, 3);
    other.images[1].first = request.images[1].first;
    const RequestId id = engine->submit(other, collector).value();
    collector.wait_for(4);
    EXPECT_EQ(collector.reply(id).tokens, expected_tokens(other));
    EXPECT_NE(expected_tokens(other), expected_tokens(request));
    EXPECT_EQ(engine->status().images_encoded, 3u);
}

// A running stream gets a step for every slice: an image of 40 slices costs it nothing but time.
TEST(Images, DoNotStandInTheWayOfThoseWhoRun) {
    LocalEngineOptions options = fake_options(10, 2);
    std::latch second_submitted(1);
    std::uint64_t steps = 0;
    options.on_step = [&](const StepRecord&) {
        if (++steps == 2) second_submitted.wait();
    };
    const auto engine = make_fake_engine(options, {}, true);
    ReplyCollector collector;
    const GenerationRequest text = request_of(5, 30);
    GenerationRequest seeing = request_of(5, 3);
    insert_image(seeing, fake_image_of(4, 10, 1), 2);
    const RequestId first = engine->submit(text, collector).value();
    const RequestId second = engine->submit(seeing, collector).value();
    second_submitted.count_down();
    collector.wait_for(1);
    // 30 steps of the stream, and fewer than 40 slices: the image is still being encoded.
    EXPECT_TRUE(collector.reply(first).finished.has_value());
    EXPECT_EQ(collector.reply(first).tokens, expected_tokens(text));
    collector.wait_for(2);
    EXPECT_EQ(collector.reply(second).tokens, expected_tokens(seeing));
}

// Room for one large image at a time: requests wait for each other's rows and all come through.
TEST(Images, WaitForRoomInOrder) {
    LocalEngineOptions options = fake_options(20, 4);
    options.image_memory = fake_image_tokens * fake_feature_width * sizeof(float);
    const auto engine = make_fake_engine(options, {}, true);
    ReplyCollector collector;
    std::vector<GenerationRequest> requests;
    std::vector<RequestId> ids;
    for (int i = 0; i < 12; ++i) {
        GenerationRequest request = request_of(20, 10);
        request.priority = i % 3;
        insert_image(request, fake_image_of(4, 5, static_cast<std::uint64_t>(i) + 1), 3);
        insert_image(request, fake_image_of(2, 10, static_cast<std::uint64_t>(i % 4) + 50), 30);
        requests.push_back(request);
        ids.push_back(engine->submit(request, collector).value());
    }
    collector.wait_for(12);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(collector.reply(ids[i]).tokens, expected_tokens(requests[i]));
    }
    EXPECT_GE(engine->status().images_encoded, 12u + 4u);
    EXPECT_EQ(engine->status().running + engine->status().waiting, 0u);
}

TEST(Images, CancelledWhileEncodedLeaveTheNextAlone) {
    const auto engine = make_fake_engine(fake_options(10, 2), {}, true);
    ReplyCollector collector;
    std::uint64_t finished = 0;
    for (std::uint64_t round = 0; round < 200; ++round) {
        GenerationRequest dropped = request_of(5, 3), kept = request_of(5, 3);
        insert_image(dropped, fake_image_of(4, 10, 1000 + round), 2);
        insert_image(kept, fake_image_of(2, 5, 2000 + round), 2);
        const RequestId first = engine->submit(dropped, collector).value();
        const RequestId second = engine->submit(kept, collector).value();
        engine->cancel(first);
        finished += 2;
        collector.wait_for(finished);
        EXPECT_EQ(collector.reply(second).tokens, expected_tokens(kept));
    }
    EXPECT_EQ(collector.complaint(), "");
    EXPECT_EQ(engine->status().running + engine->status().waiting, 0u);
}

TEST(ImageFeatureStore, GivesUpTheLongestUnusedThatNobodyHolds) {
    const auto hash = [](std::uint8_t which) {
        ImageHash bytes{};
        bytes[0] = which;
        return bytes;
    };
    const auto rows = [](std::size_t count) { return std::vector<float>(count, 1.0f); };
    ImageFeatures store(40 * sizeof(float));
    EXPECT_FALSE(store.make_room(41 * sizeof(float)));
    FeatureRows held = store.add(hash(1), rows(10));
    store.add(hash(2), rows(10));
    store.add(hash(3), rows(10));
    EXPECT_EQ(store.bytes(), 30 * sizeof(float));
    EXPECT_NE(store.find(hash(2)), nullptr);
    EXPECT_TRUE(store.make_room(20 * sizeof(float)));
    EXPECT_NE(store.find(hash(1)), nullptr);
    EXPECT_NE(store.find(hash(2)), nullptr);
    EXPECT_EQ(store.find(hash(3)), nullptr);
    EXPECT_FALSE(store.make_room(31 * sizeof(float)));
    EXPECT_EQ(store.find(hash(2)), nullptr);
    held.reset();
    EXPECT_TRUE(store.make_room(40 * sizeof(float)));
    EXPECT_EQ(store.bytes(), 0u);
}

}  // namespace
}  // namespace percheron::engine::testing
