// Drawn items: shapes as Pillow fills them, every answer visible in its picture, images through the
// engine.
#include "tools/drawn_tasks.h"

#include <array>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "tools/drawn_pictures.h"
#include "tools/load_engine.h"
#include "tools/model_path.h"

namespace percheron::tools {
namespace {

using Json = nlohmann::ordered_json;

std::size_t pixels_of(const char* kind, int s) {
    const Json draw = {{"size", {100, 120}},
                       {"ground", {0, 0, 0}},
                       {"shapes", Json::array({{kind, 60, 50, s, 255, 0, 0}})}};
    const vision::RgbImage picture = draw_picture(draw).value();
    EXPECT_EQ(picture.height, 100u);
    EXPECT_EQ(picture.width, 120u);
    std::size_t red = 0;
    for (std::size_t i = 0; i < picture.pixels.size(); i += 3) {
        red += picture.pixels[i] == 255 ? 1 : 0;
    }
    return red;
}

// Pixels that Pillow 13 fills for the same shapes.
TEST(DrawnPictures, FillWhatPillowFills) {
    const std::map<int, std::size_t> circles = {{5, 97},    {9, 277},   {15, 749}, {20, 1313},
                                                {25, 2025}, {30, 2909}, {37, 4405}};
    for (const auto& [s, count] : circles) {
        EXPECT_NEAR(static_cast<double>(pixels_of("circle", s)), static_cast<double>(count),
                    0.01 * static_cast<double>(count) + 1)
            << s;
    }
    const std::map<int, std::size_t> triangles = {{4, 41}, {13, 365}, {24, 1201}, {37, 2813}};
    for (const auto& [s, count] : triangles) {
        EXPECT_EQ(pixels_of("triangle", s), count) << s;
    }
    EXPECT_EQ(pixels_of("square", 10), 21u * 21u);
    EXPECT_EQ(pixels_of("cross", 12), 2u * 25u * 9u - 9u * 9u);
}

TEST(DrawnPictures, WhatCannotBeDrawnIsNamed) {
    const Json good = {{"size", {4, 4}},
                       {"ground", {0, 0, 0}},
                       {"shapes", Json::array({{"circle", 1, 1, 1, 9, 9, 9}})}};
    EXPECT_TRUE(draw_picture(good).ok());
    const auto refused = [&](auto change, const char* name) {
        Json draw = good;
        change(draw);
        const auto picture = draw_picture(draw);
        ASSERT_FALSE(picture.ok());
        EXPECT_NE(picture.error().message().find(name), std::string::npos)
            << picture.error().message();
    };
    refused([](Json& d) { d = 3; }, "object");
    refused([](Json& d) { d.erase("size"); }, "size");
    refused([](Json& d) { d["size"] = {0, 5}; }, "size");
    refused([](Json& d) { d["size"] = {5, 100000}; }, "size");
    refused([](Json& d) { d["ground"] = {0, 0, 256}; }, "ground");
    refused([](Json& d) { d["shapes"][0][0] = "star"; }, "star");
    refused([](Json& d) { d["shapes"][0].erase(6); }, "shape");
    refused([](Json& d) { d["shapes"][0][3] = -1; }, "size");
    refused([](Json& d) { d["shapes"][0][5] = 300; }, "colours");
}

TEST(DrawnTasks, AreTheSameFromTheSameSeedAndBalanced) {
    const auto items = draw_task_items(300, 7), more = draw_task_items(301, 7);
    ASSERT_EQ(items.size(), 4u * 300u);
    std::map<std::string, std::map<std::string, int>> answers;
    std::set<std::string> efforts, asked;
    for (std::size_t i = 0; i < items.size(); ++i) {
        const TaskItem& same = more[i / 300 * 301 + i % 300];
        EXPECT_EQ(items[i].messages, same.messages);
        EXPECT_EQ(items[i].want, same.want);
        ++answers[items[i].task][items[i].want];
        efforts.insert(items[i].reasoning_effort);
        asked.insert(items[i].messages.dump());
    }
    EXPECT_NE(draw_task_items(1, 8)[0].messages, items[0].messages);
    EXPECT_EQ(asked.size(), items.size());
    EXPECT_EQ(efforts, (std::set<std::string>{"high", "low", "max"}));
    EXPECT_EQ(answers["vision colour"].size(), 8u);
    EXPECT_EQ(answers["vision count"].size(), 7u);
    EXPECT_EQ(answers["vision position"].size(), 9u);
    EXPECT_EQ(answers["vision shape"].size(), 4u);
}

// The answer can be read off the description.
TEST(DrawnTasks, AnswersAreWhatIsDrawn) {
    for (const TaskItem& item : draw_task_items(200, 3)) {
        Json draw;
        for (const Json& part : item.messages[0]["content"]) {
            if (part["type"] == "image") draw = part["draw"];
        }
        const Json& shapes = draw["shapes"];
        if (item.task == "vision count") {
            EXPECT_EQ(std::to_string(shapes.size()), item.want);
            continue;
        }
        ASSERT_EQ(shapes.size(), 1u);
        if (item.task == "vision shape") {
            EXPECT_EQ(shapes[0][0], item.want);
        }
        if (item.task == "vision position") {
            const int column = shapes[0][1].get<int>() * 3 / draw["size"][1].get<int>();
            const int row = shapes[0][2].get<int>() * 3 / draw["size"][0].get<int>();
            EXPECT_EQ(item.want.find("left") != std::string::npos, column == 0);
            EXPECT_EQ(item.want.find("right") != std::string::npos, column == 2);
            EXPECT_EQ(item.want.find("top") != std::string::npos, row == 0);
            EXPECT_EQ(item.want.find("bottom") != std::string::npos, row == 2);
        }
    }
}

// The embedded model's published figures are .98 and more on all four; 25 items each.
TEST(DrawnTasks, TheEmbeddedModelSeesThem) {
    const auto folder = resolve_model("").value();
    const ChatFormat format = ChatFormat::load(folder).value();
    LoadOptions options;
    options.folder = folder;
    options.threads = 2;
    options.kv_memory = Bytes{64} << 20;
    const auto engine = load_engine(options, format.tokenizer()).value();
    const auto items = draw_task_items(25, 5);
    std::vector<bool> right(items.size());
    const Status asked = run_tasks(*engine, format, items, {.streams = 16, .max_tokens = 48},
                                   [&](std::size_t item, bool answered) {
                                       right[item] = answered;
                                       return Status();
                                   });
    ASSERT_TRUE(asked.ok()) << asked.error().message();
    EXPECT_EQ(engine->status().images_encoded, items.size());
    for (const TaskScore& score : score_tasks(items, right)) {
        EXPECT_GE(score.right, 23u) << score.task;
    }
}

}  // namespace
}  // namespace percheron::tools
