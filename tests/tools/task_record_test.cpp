#include "tools/task_record.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

namespace percheron::tools {
namespace {

class TaskRecords : public testing::Test {
  protected:
    void SetUp() override { std::filesystem::remove(file_); }
    void TearDown() override { std::filesystem::remove(file_); }

    std::string content() const {
        std::ostringstream text;
        text << std::ifstream(file_).rdbuf();
        return text.str();
    }
    void append(const std::string& text) const { std::ofstream(file_, std::ios::app) << text; }

    // Its own for every test: they run beside each other.
    std::filesystem::path file_ =
        std::filesystem::path(testing::TempDir()) /
        (std::string("task_record_") +
         testing::UnitTest::GetInstance()->current_test_info()->name() + ".jsonl");
};

TEST_F(TaskRecords, WhatWasAddedIsKnownAgainAndToAJoinedFile) {
    for (std::uint64_t half = 0; half < 2; ++half) {
        auto record = TaskRecord::open(file_, "m");
        ASSERT_TRUE(record.ok()) << record.error().message();
        for (std::uint64_t key = half; key < 100; key += 2) {
            EXPECT_FALSE(record->outcome(key).has_value());
            ASSERT_TRUE(record->add(key, key % 3 == 0).ok());
            EXPECT_EQ(record->outcome(key), key % 3 == 0);
        }
    }
    append(content());  // the same outcomes twice, as when parts overlap
    const auto record = TaskRecord::open(file_, "m");
    ASSERT_TRUE(record.ok()) << record.error().message();
    for (std::uint64_t key = 0; key < 100; ++key)
        EXPECT_EQ(record->outcome(key), key % 3 == 0) << key;
    EXPECT_FALSE(record->outcome(100).has_value());
}

TEST_F(TaskRecords, AKilledWriterLosesOnlyItsLastLine) {
    std::string whole;
    {
        auto record = TaskRecord::open(file_, "m");
        ASSERT_TRUE(record.ok());
        ASSERT_TRUE(record->add(1, true).ok());
        whole = content();
        ASSERT_TRUE(record->add(2, true).ok());
    }
    const std::string both = content();
    for (std::size_t cut = whole.size(); cut < both.size(); ++cut) {
        std::ofstream(file_) << both.substr(0, cut);
        auto record = TaskRecord::open(file_, "m");
        ASSERT_TRUE(record.ok()) << record.error().message();
        EXPECT_EQ(record->outcome(1), true);
        EXPECT_FALSE(record->outcome(2).has_value());
        ASSERT_TRUE(record->add(2, true).ok());
        EXPECT_EQ(content(), both);
    }
}

TEST_F(TaskRecords, LinesThatAreNoneAndOtherModelsAreNamed) {
    for (const char* bad : {"", "[]", "{}", R"({"model":"m","item":"12","right":true})",
                            R"({"model":"m","item":"00000000000000zz","right":true})",
                            R"({"model":"m","item":"0000000000000001","right":1})",
                            R"({"model":"other","item":"0000000000000001","right":true})"}) {
        std::filesystem::remove(file_);
        append(R"({"model":"m","item":"0000000000000001","right":true})");
        append(std::string("\n") + bad + "\n");
        const auto record = TaskRecord::open(file_, "m");
        ASSERT_FALSE(record.ok()) << bad;
        EXPECT_NE(record.error().message().find("line 2"), std::string::npos)
            << record.error().message();
    }
    EXPECT_FALSE(TaskRecord::open(file_ / "below-a-file", "m").ok());
}

TEST_F(TaskRecords, AFullDiskIsAnError) {
    auto record = TaskRecord::open("/dev/full", "m");
    ASSERT_FALSE(record.ok() && record->add(1, true).ok());
}

TEST(ItemKeys, DifferWhereTheQuestionDiffers) {
    TaskItem base;
    base.task = "t";
    base.messages = {{{"role", "user"}, {"content", "2 + 2"}}};
    base.reasoning_effort = "low";
    base.want = "4";
    std::vector<TaskItem> others(6, base);
    others[0].task = "u";
    others[1].messages = {{{"role", "user"}, {"content", "2 + 3"}}};
    others[2].tools = {{{"type", "function"}}};
    others[3].reasoning_effort = "max";
    others[4].want = "5";
    others[5].check = TaskItem::Check::number;
    for (const TaskItem& other : others)
        EXPECT_NE(item_key(other), item_key(base));
    EXPECT_EQ(item_key(TaskItem(base)), item_key(base));
}

TEST(AskedModels, DifferByConfigurationShardAndReplyLength) {
    const auto folder = std::filesystem::path(testing::TempDir()) / "asked_model_test";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "config.json") << "{}";
    std::ofstream(folder / "model.safetensors") << "12345678";
    const auto first = asked_model(folder, 100);
    ASSERT_TRUE(first.ok()) << first.error().message();
    EXPECT_EQ(*asked_model(folder, 100), *first);
    EXPECT_NE(*asked_model(folder, 101), *first);
    std::ofstream(folder / "model.safetensors") << "123456789";
    EXPECT_NE(*asked_model(folder, 100), *first);
    std::ofstream(folder / "model.safetensors") << "12345678";
    std::ofstream(folder / "config.json") << "{ }";
    EXPECT_NE(*asked_model(folder, 100), *first);
    std::filesystem::remove_all(folder);
    EXPECT_FALSE(asked_model(folder, 100).ok());
}

}  // namespace
}  // namespace percheron::tools
