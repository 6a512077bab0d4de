// The scheduler alone, without tokens, caches or clock: invariants S1, S2, S4 and S7 to S10 of
// docs/SCHEDULER.md in random lives.
#include "engine/scheduler.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "cache/cache_shape.h"

namespace percheron::engine {
namespace {

std::unique_ptr<Sequence> make_sequence(std::uint64_t arrival, std::uint32_t prompt,
                                        std::uint32_t output, int priority = 0) {
    auto sequence = std::make_unique<Sequence>();
    sequence->request = RequestId(arrival);
    sequence->arrival = arrival;
    sequence->priority = priority;
    sequence->prompt_tokens = prompt;
    sequence->token_limit = output;
    sequence->tokens.resize(prompt);
    return sequence;
}

// Plays the engine: every planned row that wants a token gets one, full sequences leave.
class Player {
  public:
    explicit Player(const SchedulerOptions& options) : options_(options), scheduler_(options) {}

    Scheduler& scheduler() { return scheduler_; }
    const StepPlan& plan() const { return plan_; }
    std::uint64_t preemptions() const { return preemptions_; }

    // One step; false when there was nothing to do.
    bool step(double seconds = 0.01) {
        scheduler_.plan(plan_);
        preemptions_ += plan_.preempted.size();
        check_plan();
        if (plan_.rows.empty()) {
            return false;
        }
        scheduler_.commit(plan_, seconds);
        for (const StateCopy& copy : plan_.copies) {
            EXPECT_EQ(copy.position % 64, 0u);
            EXPECT_LT(to_int(copy.checkpoint), options_.checkpoints);
        }
        for (const Admission& admission : plan_.admitted) {
            hits += admission.restore ? 1 : 0;
        }
        for (const PlannedRows& planned : plan_.rows) {
            if (planned.wants_token) {
                planned.sequence->tokens.push_back(TokenId(1));
                if (planned.sequence->generated() >= planned.sequence->token_limit) {
                    finished.push_back(planned.sequence->arrival);
                    scheduler_.remove(*planned.sequence);
                }
            }
        }
        return true;
    }

    std::vector<Sequence*> all() const {
        std::vector<Sequence*> sequences;
        scheduler_.append_all(sequences);
        return sequences;
    }

    std::vector<std::uint64_t> finished;
    std::uint64_t hits = 0;

  private:
    void check_plan() {
        const bool prefill = plan_.numeric_class == ops::NumericClass::prefill;
        std::uint32_t rows = 0;
        std::set<PageId> pages;
        std::set<RequestSlot> slots;
        for (const PlannedRows& planned : plan_.rows) {
            const Sequence& sequence = *planned.sequence;
            rows += planned.count;
            ASSERT_GT(planned.count, 0u);
            ASSERT_EQ(planned.first, sequence.computed);
            const std::uint32_t end = planned.first + planned.count;
            if (prefill) {
                // S1 and S2.
                ASSERT_LE(end, sequence.prompt_tokens);
                ASSERT_EQ(planned.first % 64, 0u);
                ASSERT_TRUE(end % 64 == 0 || end == sequence.prompt_tokens);
                ASSERT_EQ(planned.wants_token,
                          end == sequence.prompt_tokens && sequence.generated() == 0);
            } else {
                ASSERT_GE(planned.first, sequence.prompt_tokens);
                ASSERT_LE(planned.count, options_.refeed_rows);
                ASSERT_EQ(planned.wants_token, end == sequence.tokens.size());
            }
            // S3 and S4.
            ASSERT_TRUE(sequence.slot.has_value());
            ASSERT_TRUE(slots.insert(*sequence.slot).second);
            ASSERT_GE(sequence.pages.size() * 64, end);
            // What is written is nobody else's.
            for (std::uint32_t i = planned.first / 64; i <= (end - 1) / 64; ++i) {
                ASSERT_EQ(scheduler_.cache().pages().readers(sequence.pages[i]), 1u);
            }
        }
        ASSERT_LE(rows, prefill ? options_.prefill_rows : options_.decode_rows);
        for (const Sequence* sequence : all()) {
            pages.insert(sequence->pages.begin(), sequence->pages.end());
            ASSERT_EQ(sequence->slot.has_value(), !sequence->pages.empty());
        }
        ASSERT_EQ(pages.size() + scheduler_.cache().available(), options_.pages);
        // Something always moves: with sequences alive there are rows.
        ASSERT_EQ(plan_.rows.empty(), scheduler_.running() + scheduler_.waiting() == 0);
    }

    SchedulerOptions options_;
    Scheduler scheduler_;
    StepPlan plan_;
    std::uint64_t preemptions_ = 0;
};

TEST(Scheduler, KeepsItsInvariantsInRandomLives) {
    std::uint64_t preemptions = 0;
    std::uint64_t finished = 0;
    std::uint64_t hits = 0;
    for (unsigned seed = 0; seed < 400 && !::testing::Test::HasFatalFailure(); ++seed) {
        std::mt19937 random(seed);
        const auto between = [&](std::uint32_t low, std::uint32_t high) {
            return low + random() % (high - low + 1);
        };
        SchedulerOptions options;
        options.pages = between(3, 40);
        options.max_running = between(1, 10);
        options.prefill_rows = 64 * between(1, 5);
        options.decode_rows = between(options.max_running, 48);
        options.refeed_rows = between(1, 9);
        options.decode_share = between(0, 9) / 10.0;
        options.checkpoints = between(0, 1) * between(1, 9);
        Player player(options);
        std::uint64_t arrivals = 0;
        std::uint64_t removed = 0;
        const std::uint32_t most = options.pages * 64;
        for (int step = 0; step < 600 && !::testing::Test::HasFatalFailure(); ++step) {
            if (arrivals < 20 && between(0, 9) == 0) {
                const std::uint32_t prompt = between(1, std::min(most - 1, 700u));
                player.scheduler().add(make_sequence(++arrivals, prompt,
                                                     between(1, std::min(most - prompt, 200u)),
                                                     static_cast<int>(between(0, 2))));
            }
            const auto all = player.all();
            if (!all.empty() && between(0, 99) == 0) {
                player.scheduler().remove(*all[random() % all.size()]);
                ++removed;
            }
            player.step(between(1, 100) / 1000.0);
        }
        while (!::testing::Test::HasFatalFailure() && player.step()) {
        }
        // S6, S7 and S8: everybody got through, everything is free.
        EXPECT_EQ(player.finished.size() + removed, arrivals);
        EXPECT_EQ(player.scheduler().cache().available(), options.pages);
        EXPECT_EQ(player.scheduler().slots().free(), options.max_running);
        preemptions += player.preemptions();
        finished += player.finished.size();
        hits += player.hits;
    }
    EXPECT_GT(preemptions, 100u);
    EXPECT_GT(finished, 4000u);
    EXPECT_GT(hits, 500u);
}

TEST(Scheduler, AdmitsByPriorityThenByArrival) {
    SchedulerOptions options;
    options.pages = 64;
    options.max_running = 1;
    Player player(options);
    std::mt19937 random(9);
    std::vector<std::pair<int, std::uint64_t>> order;
    for (std::uint64_t arrival = 1; arrival <= 40; ++arrival) {
        const int priority = static_cast<int>(random() % 5) - 2;
        player.scheduler().add(make_sequence(arrival, 1 + random() % 100, 3, priority));
        order.emplace_back(-priority, arrival);
    }
    while (player.step()) {
    }
    std::sort(order.begin(), order.end());
    ASSERT_EQ(player.finished.size(), order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
        EXPECT_EQ(player.finished[i], order[i].second);
    }
}

// The last in order pays: the first of highest priority is never preempted.
TEST(Scheduler, TheFirstInOrderIsNeverPreempted) {
    SchedulerOptions options;
    options.pages = 10;
    options.max_running = 4;
    Player player(options);
    for (std::uint64_t arrival = 1; arrival <= 4; ++arrival) {
        player.scheduler().add(make_sequence(arrival, 100, 400));
    }
    std::uint64_t first = 1;
    while (player.step()) {
        for (const Sequence* sequence : player.plan().preempted) {
            EXPECT_GT(sequence->arrival, first);
        }
        first = player.finished.size() + 1;
    }
    EXPECT_GT(player.preemptions(), 0u);
    EXPECT_EQ(player.finished, (std::vector<std::uint64_t>{1, 2, 3, 4}));
}

// S9: while a long prompt is computed, decoding gets its share of the time, and no prefill step is
// longer than the slice once the rate is known.
TEST(Scheduler, ALongPromptLeavesRunningStreamsTheirShare) {
    for (const double share : {0.25, 0.5, 0.8}) {
        SchedulerOptions options;
        options.pages = 4000;
        options.max_running = 8;
        options.decode_share = share;
        options.prefill_slice = 0.1;
        Player player(options);
        constexpr double seconds_per_row = 0.001;
        for (std::uint64_t arrival = 1; arrival <= 4; ++arrival) {
            player.scheduler().add(make_sequence(arrival, 64, 100'000));
        }
        ASSERT_TRUE(player.step(0.02));
        while (player.plan().numeric_class == ops::NumericClass::prefill) {
            ASSERT_TRUE(player.step(0.02));
        }
        player.scheduler().add(make_sequence(5, 100'000, 10));
        double decode_seconds = 0;
        double prefill_seconds = 0;
        double longest_prefill = 0;
        int prefill_steps = 0;
        double waited = 0;
        double longest_wait = 0;
        StepPlan plan;
        Scheduler& scheduler = player.scheduler();
        for (int i = 0; i < 3000; ++i) {
            scheduler.plan(plan);
            double seconds = 0.02;
            if (plan.numeric_class == ops::NumericClass::prefill) {
                seconds = plan.rows.front().count * seconds_per_row;
                prefill_seconds += seconds;
                longest_prefill = std::max(longest_prefill, ++prefill_steps > 8 ? seconds : 0.0);
                waited += seconds;
            } else {
                decode_seconds += seconds;
                waited = 0;
                for (const PlannedRows& planned : plan.rows) {
                    planned.sequence->tokens.push_back(TokenId(1));
                }
            }
            longest_wait = std::max(longest_wait, prefill_steps > 8 ? waited : 0.0);
            scheduler.commit(plan, seconds);
        }
        ASSERT_GT(prefill_steps, 100);
        EXPECT_GE(decode_seconds / (decode_seconds + prefill_seconds), share * 0.98);
        EXPECT_LE(decode_seconds / (decode_seconds + prefill_seconds), share + 0.15);
        EXPECT_LE(longest_prefill, options.prefill_slice + 1e-9);
        EXPECT_LE(longest_wait, options.prefill_slice + 1e-9);
    }
}

// S9 and M2: a stream that waits for its mask may have it in a moment, and does not find the device
// busy for longer than a slice.
TEST(Scheduler, AStreamThatWaitsForItsMaskFindsShortSteps) {
    SchedulerOptions options;
    options.pages = 4000;
    options.max_running = 2;
    options.prefill_rows = 8192;
    options.prefill_slice = 0.1;
    Player player(options);
    constexpr double seconds_per_row = 0.001;
    player.scheduler().add(make_sequence(1, 64, 100'000));
    ASSERT_TRUE(player.step(64 * seconds_per_row));
    Sequence& stream = *player.all().front();
    player.scheduler().add(make_sequence(2, 100'000, 10));
    StepPlan plan;
    for (const bool held : {true, false}) {
        // A stream that is there sits out; nobody else decodes.
        stream.held_logits.assign(held ? 1 : 0, 0.0f);
        if (!held) player.scheduler().remove(stream);
        for (int i = 0; i < 4; ++i) {
            player.scheduler().plan(plan);
            ASSERT_EQ(plan.numeric_class, ops::NumericClass::prefill);
            const std::uint32_t rows = plan.rows.front().count;
            const double seconds = rows * seconds_per_row;
            if (held) {
                EXPECT_LE(seconds, options.prefill_slice + 1e-9);
            } else {
                EXPECT_EQ(rows, options.prefill_rows);
            }
            player.scheduler().commit(plan, seconds);
        }
    }
}

// S9, the other way round: a newcomer's prompt begins at the next step though others decode.
TEST(Scheduler, ANewcomerNeverWaitsForAGeneration) {
    SchedulerOptions options;
    options.pages = 1000;
    options.max_running = 8;
    Player player(options);
    player.scheduler().add(make_sequence(1, 64, 10'000));
    for (int i = 0; i < 200; ++i) {
        ASSERT_TRUE(player.step(0.01));
    }
    for (std::uint64_t arrival = 2; arrival < 6; ++arrival) {
        player.scheduler().add(make_sequence(arrival, 50, 10'000));
        ASSERT_TRUE(player.step(0.01));
        EXPECT_EQ(player.plan().numeric_class, ops::NumericClass::prefill);
        for (int i = 0; i < 20; ++i) {
            ASSERT_TRUE(player.step(0.01));
        }
    }
}

// Plays time: a prompt row takes a millisecond, a decode step twenty.
class Clockwork {
  public:
    explicit Clockwork(const SchedulerOptions& options) : scheduler(options) {}

    // Streams that decode, and the rate measured.
    void start_streams(std::uint64_t count) {
        for (std::uint64_t arrival = 1; arrival <= count; ++arrival)
            scheduler.add(make_sequence(arrival, 64, 1'000'000));
        for (int i = 0; i < 20; ++i)
            step();
    }

    void step() {
        scheduler.plan(plan);
        double seconds = 0.02;
        if (plan.numeric_class == ops::NumericClass::prefill) {
            seconds = 0;
            for (const PlannedRows& planned : plan.rows) {
                seconds += planned.count * 0.001;
                rows_of[planned.sequence->arrival] += planned.count;
            }
            silence += seconds;
        } else {
            decoded += seconds;
            longest_silence = std::max(longest_silence, silence);
            silence = 0;
        }
        now += seconds;
        scheduler.commit(plan, seconds);
        for (const PlannedRows& planned : plan.rows) {
            if (!planned.wants_token) continue;
            planned.sequence->tokens.push_back(TokenId(1));
            first_token.emplace(planned.sequence->arrival, now);
            if (planned.sequence->generated() >= planned.sequence->token_limit)
                scheduler.remove(*planned.sequence);
        }
    }

    Scheduler scheduler;
    StepPlan plan;
    double now = 0;
    double decoded = 0;
    double silence = 0;  // of the streams
    double longest_silence = 0;
    std::map<std::uint64_t, std::uint32_t> rows_of;
    std::map<std::uint64_t, double> first_token;
};

// S9: whoever asks for little gets it beside long prompts and streams, after the step under way.
TEST(Scheduler, ANewcomerNeverWaitsForALongPrompt) {
    std::mt19937 random(9);
    const auto between = [&](std::uint32_t low, std::uint32_t high) {
        return std::uniform_int_distribution<std::uint32_t>(low, high)(random);
    };
    for (const std::uint64_t streams : {0, 1, 4}) {
        SchedulerOptions options;
        options.pages = 20000;
        options.max_running = 12;
        options.prefill_slice = 0.4;  // 400 rows; a quarter is 100, 64 on the grid
        Clockwork clockwork(options);
        clockwork.start_streams(streams);
        std::uint64_t arrival = streams;
        for (int i = 0; i < 3; ++i)
            clockwork.scheduler.add(make_sequence(++arrival, between(200'000, 300'000), 1));
        clockwork.longest_silence = 0;
        for (int newcomer = 0; newcomer < 60; ++newcomer) {
            for (std::uint32_t steps = between(3, 40); steps > 0; --steps)
                clockwork.step();
            const double came = clockwork.now;
            clockwork.scheduler.add(make_sequence(++arrival, between(1, 64), 1));
            while (!clockwork.first_token.contains(arrival))
                clockwork.step();
            // Its own rows, and perhaps one decode step.
            EXPECT_LE(clockwork.first_token[arrival] - came, 0.064 + 0.02 + 1e-9) << newcomer;
        }
        EXPECT_LE(clockwork.longest_silence, 1.5 * options.prefill_slice);
    }
}

// S9: newcomers without end leave the first in line half of the prompt rows, and streams their
// share.
TEST(Scheduler, TheFirstInLineKeepsHalfOfTheRows) {
    std::mt19937 random(10);
    const auto between = [&](std::uint32_t low, std::uint32_t high) {
        return std::uniform_int_distribution<std::uint32_t>(low, high)(random);
    };
    for (const std::uint32_t longest : {64, 300, 3000}) {
        SchedulerOptions options;
        options.pages = 20000;
        options.max_running = 12;
        options.prefill_slice = 0.4;
        Clockwork clockwork(options);
        clockwork.start_streams(2);
        const double decoded = clockwork.decoded;
        const double begin = clockwork.now;
        constexpr std::uint64_t first = 3;
        clockwork.scheduler.add(make_sequence(first, 1'000'000, 1));
        std::uint64_t arrival = first;
        std::uint32_t others = 0;
        for (int i = 0; i < 4000; ++i) {
            while (clockwork.scheduler.waiting() + clockwork.scheduler.running() < 9)
                clockwork.scheduler.add(make_sequence(++arrival, between(1, longest), 1));
            clockwork.step();
            others = 0;
            for (const auto& [who, rows] : clockwork.rows_of)
                others += who > first ? rows : 0;
            ASSERT_LE(others, clockwork.rows_of[first] + 4 * options.prefill_rows) << i;
        }
        EXPECT_GT(others, 20'000u);
        EXPECT_GT(2 * others, clockwork.rows_of[first]);
        const double time = clockwork.now - begin;
        EXPECT_GE((clockwork.decoded - decoded) / time, options.decode_share * 0.98);
    }
}

// S9: of prompts that came together the shortest rest is computed first.
TEST(Scheduler, TheShortestRestGoesFirst) {
    std::mt19937 random(11);
    for (int round = 0; round < 20; ++round) {
        SchedulerOptions options;
        options.pages = 20000;
        options.max_running = 12;
        Clockwork clockwork(options);
        std::map<std::uint64_t, std::uint32_t> length;
        for (std::uint64_t arrival = 1; arrival <= 12; ++arrival) {
            // The first in line has the longest, so that it is the same one all the time.
            length[arrival] = arrival == 1 ? 100'000 : 1 + random() % 5000;
            clockwork.scheduler.add(make_sequence(arrival, length[arrival], 1));
        }
        while (!clockwork.scheduler.idle())
            clockwork.step();
        for (const auto& [arrival, time] : clockwork.first_token) {
            for (const auto& [other, other_time] : clockwork.first_token) {
                if (length[other] < length[arrival]) {
                    EXPECT_LE(other_time, time) << length[other] << " " << length[arrival];
                }
            }
        }
    }
}

}  // namespace
}  // namespace percheron::engine
