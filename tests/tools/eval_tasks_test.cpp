#include "tools/eval_tasks.h"

#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

namespace percheron::tools {
namespace {

TaskItem item(std::string task, TaskItem::Check check, std::string want) {
    TaskItem result;
    result.task = std::move(task);
    result.check = check;
    result.want = std::move(want);
    return result;
}

std::filesystem::path written(const std::string& name, const std::string& content) {
    const auto file = std::filesystem::path(testing::TempDir()) / name;
    std::ofstream(file, std::ios::binary) << content;
    return file;
}

TEST(TaskItems, TheShippedFileHoldsTwoThousandOfEveryTask) {
    const auto items = read_task_items(std::filesystem::path(PERCHERON_SOURCE_DIR) /
                                       "bench/nano_tasks/items.jsonl.zst");
    ASSERT_TRUE(items.ok()) << items.error().message();
    std::map<std::string, std::size_t> counts;
    for (const TaskItem& each : *items)
        ++counts[each.task];
    EXPECT_EQ(counts.size(), 17u);
    for (const auto& [task, count] : counts)
        EXPECT_EQ(count, 2000u) << task;
}

TEST(TaskItems, ALineThatIsNoItemIsNamed) {
    const std::string good =
        R"({"task":"a","messages":[],"tools":null,"reasoning_effort":"low","check":"text","want":"x"})";
    const std::string bad[] = {
        "[]",
        "{",
        R"({"task":1,"messages":[],"reasoning_effort":"low","want":""})",
        R"({"task":"a","messages":{},"reasoning_effort":"low","want":""})",
        R"({"task":"a","messages":[],"want":""})",
        R"({"task":"a","messages":[],"reasoning_effort":"low"})",
        R"({"task":"a","messages":[],"reasoning_effort":"","want":"","check":7})",
        R"({"task":")" + std::string(65, 'a') +
            R"(","messages":[],"reasoning_effort":"","want":""})"};
    for (const std::string& line : bad) {
        const auto items = read_task_items(written("items.jsonl", good + "\n" + line + "\n"));
        ASSERT_FALSE(items.ok()) << line;
        EXPECT_NE(items.error().message().find("line 2"), std::string::npos)
            << items.error().message();
    }
    EXPECT_TRUE(read_task_items(written("items.jsonl", good + "\n\n")).ok());
    EXPECT_FALSE(read_task_items(written("items.jsonl", "")).ok());
    EXPECT_FALSE(read_task_items(written("items.zst", "\x28\xb5\x2f\xfd broken")).ok());
}

TEST(TaskItems, ChoosingTakesTheFirstOfEachNamedTask) {
    std::vector<TaskItem> items;
    for (int i = 0; i < 10; ++i) {
        items.push_back(
            item(i % 2 == 0 ? "even" : "odd", TaskItem::Check::text, std::to_string(i)));
    }
    const std::string names[] = {"odd"};
    const auto chosen = choose_task_items(items, names, 3);
    ASSERT_TRUE(chosen.ok());
    ASSERT_EQ(chosen->size(), 3u);
    EXPECT_EQ((*chosen)[2].want, "5");
    EXPECT_EQ(choose_task_items(items, {}, 4)->size(), 8u);
    const std::string unknown[] = {"prime"};
    EXPECT_FALSE(choose_task_items(items, unknown, 3).ok());
}

TEST(TaskAnswers, TextIsComparedAfterTheReasoning) {
    const TaskItem text = item("t", TaskItem::Check::text, "<tool_call>f</tool_call>");
    EXPECT_TRUE(answers(text, "I need f.</think><tool_call>f</tool_call>"));
    EXPECT_TRUE(answers(text, "</think> <tool_call>f</tool_call>\n"));
    EXPECT_FALSE(answers(text, "</think>f"));
    EXPECT_FALSE(answers(text, ""));
}

TEST(TaskAnswers, NumbersAreTheLastOnesOfEachSide) {
    const TaskItem number = item("n", TaskItem::Check::number, "3 + 4 = 7");
    EXPECT_TRUE(answers(number, "3+4=7. So 7.</think>The answer is 7."));
    EXPECT_TRUE(answers(number, "</think>7"));
    EXPECT_FALSE(answers(number, "</think>-7"));
    EXPECT_FALSE(answers(number, "</think>7.5"));
    EXPECT_FALSE(answers(number, "</think>seven"));
    EXPECT_TRUE(answers(item("n", TaskItem::Check::number, "-12.5 dollars"), "</think>x = -12.5."));
}

// The band must be the plain standard error of the paired differences.
TEST(TaskComparison, AgreesWithTheDefinitionOnRandomOutcomes) {
    std::mt19937 random(3);
    std::vector<TaskItem> items;
    std::vector<bool> base;
    std::vector<bool> model;
    for (int i = 0; i < 1000; ++i) {
        items.push_back(item(i % 3 == 0 ? "a" : "b", TaskItem::Check::text, ""));
        base.push_back(random() % 10 < 8);
        model.push_back(random() % 10 < 7 ? base.back() : random() % 2 == 0);
    }
    for (const TaskDifference& row : compare_tasks(items, base, model)) {
        std::vector<double> pairs;
        for (std::size_t i = 0; i < items.size(); ++i) {
            if (items[i].task == row.task) pairs.push_back(double(model[i]) - double(base[i]));
        }
        double mean = 0;
        for (const double pair : pairs)
            mean += pair / double(pairs.size());
        double variance = 0;
        for (const double pair : pairs)
            variance += (pair - mean) * (pair - mean) / double(pairs.size());
        EXPECT_EQ(row.items, pairs.size());
        EXPECT_NEAR(row.difference, mean, 1e-12);
        EXPECT_NEAR(row.band.value(), 1.96 * std::sqrt(variance / double(pairs.size())), 1e-12);
    }
}

TEST(TaskComparison, OneItemHasNoBand) {
    const std::vector<TaskItem> items = {item("a", TaskItem::Check::text, ""),
                                         item("b", TaskItem::Check::text, ""),
                                         item("b", TaskItem::Check::text, "")};
    for (const TaskDifference& row : compare_tasks(items, {true, true, false}, {true, true, true}))
        EXPECT_EQ(row.band.has_value(), row.items > 1) << row.task;
}

// Answers every prompt with the reversed prompt, several tokens a step.
class EchoEngine final : public Engine {
  public:
    EchoEngine() { description_.stop_tokens = {TokenId{0}}; }
    const EngineDescription& description() const override { return description_; }
    EngineStatus status() const override { return {}; }
    Result<RequestId> submit(GenerationRequest request, EngineEventSink& sink) override {
        const RequestId id{++last_};
        if (last_ == fail_at_) {
            EngineEvents events;
            events.finished.push_back({id,
                                       0,
                                       FinishReason::failed,
                                       Error(ErrorCode::internal, "numbers went wrong"),
                                       {}});
            sink.on_events(events);
            return id;
        }
        for (auto token = request.prompt.rbegin(); token != request.prompt.rend(); ++token) {
            EngineEvents events;
            events.tokens = {*token};
            events.runs.push_back({id, 0, 0, 1, false, 0});
            sink.on_events(events);
        }
        EngineEvents events;
        events.tokens = {TokenId{0}, TokenId{5}};  // nothing counts after the stop token
        events.runs.push_back({id, 0, 0, 2, false, 0});
        events.finished.push_back({id, 0, FinishReason::stop_token, std::nullopt, {}});
        sink.on_events(events);
        return id;
    }
    void cancel(RequestId, std::uint32_t) override {}

    std::uint64_t fail_at_ = 0;

  private:
    EngineDescription description_;
    std::uint64_t last_ = 0;
};

class TaskRun : public testing::Test {
  protected:
    static ChatFormat format() {
        const auto nano = std::filesystem::path(PERCHERON_SOURCE_DIR) / "models/nano";
        auto tokenizer = Tokenizer::load(nano / "tokenizer.json");
        EXPECT_TRUE(tokenizer.ok());
        auto format = ChatFormat::make(std::move(tokenizer).value(),
                                       "{% for m in messages %}{{ m.content }}{% endfor %}");
        EXPECT_TRUE(format.ok());
        return std::move(format).value();
    }
    static std::vector<TaskItem> letters(std::size_t count) {
        std::vector<TaskItem> items;
        for (std::size_t i = 0; i < count; ++i) {
            // One byte-token each, so that reversing tokens reverses the text.
            TaskItem next = item("echo", TaskItem::Check::text, i % 4 == 0 ? "wrong" : "1 2 3");
            next.messages = {{{"role", "user"}, {"content", "3 2 1"}}};
            items.push_back(std::move(next));
        }
        return items;
    }
};

TEST_F(TaskRun, EveryItemIsJudgedByItsOwnReply) {
    EchoEngine engine;
    const auto items = letters(100);
    std::vector<int> told(items.size(), 0);
    const Status run =
        run_tasks(engine, format(), items, {.streams = 7}, [&](std::size_t index, bool right) {
            ++told[index];
            EXPECT_EQ(right, index % 4 != 0) << index;
            return Status();
        });
    ASSERT_TRUE(run.ok()) << run.error().message();
    EXPECT_EQ(told, std::vector<int>(items.size(), 1));
}

TEST_F(TaskRun, AFailedRequestEndsTheRunWithItsError) {
    EchoEngine engine;
    engine.fail_at_ = 42;
    const Status run = run_tasks(engine, format(), letters(100), {.streams = 7},
                                 [](std::size_t, bool) { return Status(); });
    ASSERT_FALSE(run.ok());
    EXPECT_EQ(run.error().message(), "numbers went wrong");
}

TEST_F(TaskRun, ARecordThatTakesNoMoreEndsTheRun) {
    EchoEngine engine;
    std::size_t told = 0;
    const Status run =
        run_tasks(engine, format(), letters(100), {.streams = 7}, [&](std::size_t, bool) -> Status {
            if (++told < 10) return {};
            return Error(ErrorCode::io, "the disk is full");
        });
    ASSERT_FALSE(run.ok());
    EXPECT_EQ(run.error().message(), "the disk is full");
    EXPECT_EQ(told, 10u);
}

TEST(TaskParts, TogetherTheyAreEveryItemOnce) {
    std::vector<TaskItem> items;
    for (int i = 0; i < 23; ++i)
        items.push_back(item("t", TaskItem::Check::text, std::to_string(i)));
    for (const std::size_t of : {1u, 2u, 5u, 23u, 30u}) {
        std::multiset<std::string> seen;
        for (std::size_t number = 1; number <= of; ++number) {
            for (const TaskItem& each : part_of_items(items, {number, of}))
                seen.insert(each.want);
        }
        EXPECT_EQ(seen.size(), items.size()) << of;
        EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), items.size()) << of;
    }
    const auto part = parse_task_part("3/16");
    ASSERT_TRUE(part.ok());
    EXPECT_EQ(part->number, 3u);
    EXPECT_EQ(part->of, 16u);
    for (const char* bad : {"", "1", "0/4", "5/4", "1/", "/2", "a/b", "1/2 ", "-1/2", "1/2/3"})
        EXPECT_FALSE(parse_task_part(bad).ok()) << bad;
}

}  // namespace
}  // namespace percheron::tools
