#include "core/thread_pool.h"

#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace percheron {
namespace {

class ThreadPoolTest : public testing::TestWithParam<std::size_t> {};

TEST_P(ThreadPoolTest, RunsEveryTaskOnceAndSeesTheCallersWrites) {
    ThreadPool pool({.threads = GetParam()});
    std::mt19937 random(7);
    std::vector<std::uint32_t> input, output;
    for (int region = 0; region < 3000; ++region) {
        const std::size_t tasks = random() % 40;
        input.resize(tasks);
        output.assign(tasks, 0);
        for (auto& value : input)
            value = random();
        pool.parallel_for(tasks, [&](std::size_t task, std::size_t thread) {
            ASSERT_LT(thread, pool.threads());
            output[task] += input[task] + 1;  // plain memory: a second run of a task would show
        });
        for (std::size_t task = 0; task < tasks; ++task)
            ASSERT_EQ(output[task], input[task] + 1) << "region " << region << " task " << task;
    }
}

TEST_P(ThreadPoolTest, MoreTasksThanOneRegionCanCount) {
    ThreadPool pool({.threads = GetParam()});
    std::vector<std::uint8_t> runs(200'001, 0);
    pool.parallel_for(runs.size(), [&](std::size_t task, std::size_t) { ++runs[task]; });
    for (std::size_t task = 0; task < runs.size(); ++task)
        ASSERT_EQ(runs[task], 1) << task;
}

TEST_P(ThreadPoolTest, ThreadsNameScratchThatNobodyElseUses) {
    ThreadPool pool({.threads = GetParam()});
    std::vector<std::uint64_t> scratch(pool.threads() * 16, 0);
    std::uint64_t expected = 0;
    for (int region = 0; region < 500; ++region) {
        pool.parallel_for(
            17, [&](std::size_t task, std::size_t thread) { scratch[thread * 16] += task; });
        expected += 17 * 16 / 2;
    }
    std::uint64_t sum = 0;
    for (std::uint64_t value : scratch)
        sum += value;
    EXPECT_EQ(sum, expected);
}

// With no spinning at all every region meets parked workers and a caller that has to sleep.
TEST_P(ThreadPoolTest, WorksWhenEverybodyParksAtOnce) {
    ThreadPool pool({.threads = GetParam(), .spin = std::chrono::microseconds(0)});
    std::atomic<std::uint64_t> sum{0};
    for (int region = 0; region < 2000; ++region)
        pool.parallel_for(3, [&](std::size_t task, std::size_t) { sum += task + 1; });
    EXPECT_EQ(sum.load(), 2000u * 6);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 8));

// More threads than processors, two pools at once: the bounded spin must let both finish.
TEST(ThreadPool, TwoPoolsShareOneMachine) {
    std::atomic<std::uint64_t> sum{0};
    auto use = [&] {
        ThreadPool pool({.threads = available_threads() + 1, .pin = true});
        for (int region = 0; region < 300; ++region)
            pool.parallel_for(8, [&](std::size_t task, std::size_t) { sum += task; });
    };
    std::thread other(use);
    use();
    other.join();
    EXPECT_EQ(sum.load(), 2u * 300 * 28);
}

TEST(ThreadPool, ComesAndGoes) {
    for (int round = 0; round < 200; ++round) {
        ThreadPool pool({.threads = 3});
        int value = 0;
        if (round % 2 == 0) pool.parallel_for(1, [&](std::size_t, std::size_t) { value = 1; });
        EXPECT_EQ(value, round % 2 == 0 ? 1 : 0);
    }
}

TEST(ThreadPool, ZeroThreadsMeansWhatTheProcessMayUse) {
    ThreadPool pool;
    EXPECT_EQ(pool.threads(), available_threads());
    EXPECT_GE(available_threads(), 1u);
}

}  // namespace
}  // namespace percheron
