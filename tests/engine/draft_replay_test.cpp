// Choosing drafts without a clock: replies of the embedded model, of which it is written down what
// drafts would have held where (tests/data/draft_traces.txt, made by tests/tools/draft_traces.cpp),
// are gone through as the engine does, by times that follow a table and are blurred as real ones
// are.  So every cell of streams, kind of text and temperature compares `auto` with what the best
// fixed setting would have got.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/draft_depths.h"
#include "engine/step_probe.h"

namespace percheron::engine {
namespace {

constexpr std::uint32_t deepest = 7;
constexpr std::uint32_t copies = 0, layer = 1;  // proposers

struct Trace {
    std::string strength, named, held, layer_held;

    std::size_t places() const { return named.size(); }
    static std::uint32_t digit(const std::string& digits, std::size_t place) {
        return static_cast<std::uint32_t>(digits[place] - '0');
    }
};

using Cells = std::map<std::string, std::vector<Trace>>;  // by kind and temperature

Cells read_traces() {
    std::ifstream in(std::string(PERCHERON_SOURCE_DIR) + "/tests/data/draft_traces.txt");
    Cells cells;
    std::string line;
    while (std::getline(in, line)) {
        std::istringstream words(line);
        std::string kind, temperature;
        Trace trace;
        words >> kind >> temperature >> trace.strength >> trace.named >> trace.held >>
            trace.layer_held;
        cells[kind + ", T = " + temperature].push_back(std::move(trace));
    }
    return cells;
}

class Named final : public draft::Proposer {
  public:
    explicit Named(bool takes_time) : takes_time_(takes_time) {}
    std::string_view name() const override { return takes_time_ ? "mtp" : "copy"; }
    bool takes_time() const override { return takes_time_; }
    bool bridges_gaps() const override { return true; }
    void begin(RequestSlot) override {}
    Status propose(ops::NumericClass, std::span<draft::DraftSequence>) override { return {}; }

  private:
    bool takes_time_;
};

// Milliseconds of a step by its rows and of a pass by its sequences, between these straight lines;
// every sequence beyond the first adds to a step.
struct Machine {
    const char* name;
    std::map<double, double> step;
    std::map<double, double> pass;
    double sequence = 0;

    double step_at(double rows, double sequences) const {
        return at(step, rows) + sequence * (sequences - 1);
    }
    static double at(const std::map<double, double>& table, double rows) {
        auto above = table.upper_bound(rows);
        if (above == table.end()) --above;
        const auto below = std::prev(above);
        const double part = (rows - below->first) / (above->first - below->first);
        return below->second + part * (above->second - below->second);
    }
};

// The embedded model on two cores; the same by kernels that take rows by eights; one whose weights
// do not fit the processor's caches, where a step reads most of what it reads for one row too; and
// the second with states that take a quarter of a step of sixteen sequences.
const std::array<Machine, 4> machines = {{
    {"nano",
     {{1, 1.19}, {2, 1.5}, {4, 2.15}, {8, 3.4}, {16, 6}, {32, 11.5}, {128, 46}},
     {{1, 0.42}, {4, 1.2}, {16, 4}}},
    {"stairs",
     {{1, 1.19},
      {2, 1.6},
      {4, 2.4},
      {8, 4.7},
      {9, 6},
      {16, 8.8},
      {17, 11.3},
      {24, 11.8},
      {25, 14.1},
      {32, 14.3},
      {33, 17},
      {128, 56}},
     {{1, 0.42}, {4, 1.2}, {16, 4}}},
    {"wide",
     {{1, 50}, {2, 58}, {4, 72}, {8, 98}, {16, 145}, {32, 230}, {128, 700}},
     {{1, 8}, {4, 14}, {16, 30}}},
    {"states",
     {{1, 1.19},
      {2, 1.5},
      {4, 2.1},
      {8, 4},
      {9, 5.2},
      {16, 7.4},
      {17, 9.8},
      {24, 10.2},
      {25, 12.4},
      {32, 12.6},
      {33, 15.2},
      {128, 50}},
     {{1, 0.42}, {4, 1.3}, {8, 2.4}, {16, 4.6}},
     0.15},
}};

struct Setting {
    bool adaptive = false;
    std::uint32_t copied = 0;  // drafts of fixed settings
    std::uint32_t timed = 0;
};

struct Outcome {
    double rate = 0;  // tokens a millisecond
    std::uint64_t copied = 0, timed = 0;
};

// How far measured times are from the table's: each by itself; at the engine's start, all alike and
// by number of rows; and while it runs, for seconds at a time.
struct Conditions {
    const char* name;
    double blur = 0.06;
    double slow_start = 1;
    double blurred_start = 0;
    double weather = 0;
    double slow_begin = 1;    // of each wave's first steps,
    std::uint32_t begin = 5;  // so many
    // The last two streams of many join only after so many steps.
    std::uint32_t late = 0;
    double fold = 0;  // what rows of drafts take more than rows of the start, as a share of it
    double draw = 0;  // of a plain step of one row, to draw a token: in no step of the start
};

class Replay {
  public:
    Replay(const Machine& machine, const Conditions& conditions, unsigned seed)
        : machine_(machine), conditions_(conditions), random_(seed), weather_random_(seed + 1000) {
        proposers_.push_back(std::make_unique<Named>(false));
        proposers_.push_back(std::make_unique<Named>(true));
        depths_ = std::make_unique<DraftDepths>(proposers_, draft::StepShape{});
        // As the engine does at its start.
        std::map<std::uint32_t, double> start;
        for (const std::uint32_t rows : probed_rows)
            start[rows] = conditions.slow_start * std::exp(conditions.blurred_start * draw());
        double one = 1e9, together = 1e9, apart = 1e9;
        for (int round = 0; round < 3; ++round) {
            for (const std::uint32_t rows : probed_rows) {
                const std::uint32_t sequences = (rows + deepest) / (deepest + 1);
                const double took = start[rows] * blurred(machine_.step_at(rows, sequences));
                depths_->probed_step(rows, sequences, took);
                if (rows == 1) one = std::min(one, took);
                if (rows != 1 && rows != probed_sequences) continue;
                depths_->probed_passes(layer, rows, 2,
                                       start[rows] * 2 * blurred(Machine::at(machine_.pass, rows)));
                if (rows != probed_sequences) continue;
                together = std::min(together, took);
                apart = std::min(apart, start[rows] * blurred(machine_.step_at(rows, rows)));
                depths_->probed_sequence(std::max(0.0, apart - together) / (rows - sequences) /
                                         one);
            }
        }
    }

    // Waves of so many streams.
    Outcome run(const std::vector<Trace>& traces, std::uint32_t streams, const Setting& setting) {
        const std::size_t all = std::max<std::size_t>(traces.size(), streams);
        for (std::size_t first = 0; first < all; first += streams) {
            streams_.clear();
            for (std::size_t i = first; i < std::min(all, first + streams); ++i) {
                streams_.push_back(std::make_unique<Stream>());
                streams_.back()->trace = &traces[i % traces.size()];
                streams_.back()->joins =
                    streams > 2 && i + 2 >= first + streams ? conditions_.late : 0;
                depths_->begin(streams_.back()->sequence);
            }
            steps_ = 0;
            while (step(setting)) {
                ++steps_;
            }
        }
        outcome_.rate = static_cast<double>(tokens_) / time_;
        return outcome_;
    }

  private:
    struct Stream {
        const Trace* trace = nullptr;
        Sequence sequence;
        std::size_t place = 0;
        std::uint32_t drafted = 0, held = 0;
        std::uint32_t joins = 0;  // with this step of its wave

        bool over() const { return place >= trace->places(); }
        std::uint32_t left() const {
            return static_cast<std::uint32_t>(trace->places() - place) - 1;
        }
    };

    bool runs(const Stream& stream) const { return !stream.over() && stream.joins <= steps_; }
    double draw_of_a_token() const { return conditions_.draw * machine_.step.at(1); }
    double draw() { return std::normal_distribution<double>(0, 1)(random_); }
    double blurred(double time) {
        if (steps_ < conditions_.begin) time *= conditions_.slow_begin;
        while (conditions_.weather > 0 && time_ >= weather_until_) {
            // A hundred steps of one row, more or less.
            weather_until_ += machine_.step.at(1) * (30 + weather_random_() % 140);
            weather_ = std::exp(conditions_.weather *
                                std::normal_distribution<double>(0, 1)(weather_random_));
        }
        return time * weather_ * std::exp(conditions_.blur * draw());
    }

    // What was chosen for the step that comes.
    std::uint32_t choose(const Setting& setting) {
        std::vector<DraftDepths::Candidate> candidates;
        std::vector<Stream*> owners;
        for (const auto& stream : streams_) {
            stream->drafted = stream->held = 0;
            if (!runs(*stream) || stream->left() == 0) continue;
            const Trace& trace = *stream->trace;
            const std::uint32_t most = std::min(deepest, stream->left());
            Drafting& drafting = stream->sequence.drafting;
            const std::uint32_t named = std::min(Trace::digit(trace.named, stream->place), most);
            if (named > 0) {
                drafting.proposer = copies;
                drafting.strength = Trace::digit(trace.strength, stream->place);
            }
            candidates.push_back({&stream->sequence, named, most});
            owners.push_back(stream.get());
        }
        if (setting.adaptive) {
            depths_->choose(candidates);
        } else {
            for (DraftDepths::Candidate& candidate : candidates) {
                candidate.copied = std::min(candidate.copies, setting.copied);
                candidate.timed = std::min(candidate.most, setting.timed);
            }
        }
        std::uint32_t passes = 0, passing = 0, drafts = 0;
        for (std::size_t i = 0; i < owners.size(); ++i) {
            const auto& [sequence, named, most, copied, timed] = candidates[i];
            Stream& stream = *owners[i];
            stream.drafted = copied + timed;
            stream.held = std::min(stream.drafted, Trace::digit(timed > 0 ? stream.trace->layer_held
                                                                          : stream.trace->held,
                                                                stream.place));
            outcome_.copied += copied;
            outcome_.timed += timed;
            passes = std::max(passes, timed);
            passing += timed > 0 ? 1 : 0;
            drafts += timed;
        }
        if (passes > 0) {
            const double took = passes * blurred(Machine::at(machine_.pass, passing)) +
                                drafts * blurred(draw_of_a_token());
            time_ += took;
            if (setting.adaptive) depths_->saw_passes(layer, passing, passes, drafts, took);
        }
        return passes;
    }

    bool step(const Setting& setting) {
        std::uint32_t rows = 0, sequences = 0, tokens = 0;
        for (const auto& stream : streams_) {
            if (!runs(*stream)) continue;
            ++sequences;
            rows += 1 + stream->drafted;
        }
        if (sequences == 0) {
            return std::any_of(streams_.begin(), streams_.end(),
                               [](const auto& stream) { return !stream->over(); });
        }
        const double plain = machine_.step_at(sequences, sequences);
        const double drafts = machine_.step_at(rows, sequences) - plain;
        const double took = blurred(plain + (1 + conditions_.fold) * drafts);
        time_ += took;
        for (const auto& stream : streams_) {
            if (!runs(*stream)) continue;
            if (stream->drafted > 0 && setting.adaptive) {
                draft::Verdict verdict;
                verdict.accepted = stream->held;
                verdict.taken = stream->held + 1;
                depths_->learn(stream->sequence, stream->drafted, verdict);
            }
            tokens += 1 + stream->held;
            stream->place += 1 + stream->held;
        }
        tokens_ += tokens;
        const double drawing = tokens * blurred(draw_of_a_token());
        time_ += drawing;
        if (setting.adaptive) depths_->saw_step(rows, sequences, tokens, took, drawing);
        choose(setting);
        return true;
    }

    const Machine& machine_;
    const Conditions& conditions_;
    std::mt19937 random_, weather_random_;
    double weather_ = 1, weather_until_ = 0;
    std::uint32_t steps_ = 0;  // of the wave
    DraftDepths::Proposers proposers_;
    std::unique_ptr<DraftDepths> depths_;
    std::vector<std::unique_ptr<Stream>> streams_;
    double time_ = 0;
    std::uint64_t tokens_ = 0;
    Outcome outcome_;
};

constexpr std::array<Setting, 6> fixed_settings = {
    {{false, 0, 0}, {false, 4, 0}, {false, 7, 0}, {false, 0, 1}, {false, 0, 2}, {false, 0, 3}}};

double median_of(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

TEST(DraftReplay, ChosenDraftsAreNeverFarFromTheBestSetting) {
    const Cells cells = read_traces();
    ASSERT_EQ(cells.size(), 8u);
    std::uint32_t by_copies = 0, by_layer = 0, by_nobody = 0;
    std::vector<double> shares;
    for (const Machine& machine : machines) {
        for (const auto& [cell, traces] : cells) {
            for (const std::uint32_t streams : {1u, 4u, 16u}) {
                std::vector<double> fixed;
                for (const Setting& setting : fixed_settings) {
                    fixed.push_back(Replay(machine, Conditions{"none", 0}, 1)
                                        .run(traces, streams, setting)
                                        .rate);
                }
                std::vector<double> chosen;
                Outcome outcome;
                for (unsigned seed = 0; seed < 5; ++seed) {
                    outcome = Replay(machine, Conditions{"calm"}, seed)
                                  .run(traces, streams, {true, 0, 0});
                    chosen.push_back(outcome.rate);
                }
                const double best = *std::max_element(fixed.begin(), fixed.end());
                const double rate = median_of(chosen);
                std::ostringstream what;
                what << machine.name << ", " << streams << " x " << cell << ": " << rate / fixed[0]
                     << " of none, best " << best / fixed[0] << ", drafted " << outcome.copied
                     << " + " << outcome.timed;
                // Of five runs and as short as these; the mean is held closer.
                EXPECT_GT(rate, 0.93 * best) << what.str();
                EXPECT_GT(rate, 0.95 * fixed[0]) << what.str();
                shares.push_back(std::min(rate / best, 1.0));
                by_copies += outcome.copied > 200 ? 1 : 0;
                by_layer += outcome.timed > 200 ? 1 : 0;
                by_nobody += outcome.copied + outcome.timed < 100 ? 1 : 0;
            }
        }
    }
    EXPECT_EQ(shares.size(), 24 * machines.size());
    EXPECT_GT(std::accumulate(shares.begin(), shares.end(), 0.0) / shares.size(), 0.985);
    EXPECT_GT(by_copies, 0u);
    EXPECT_GT(by_layer, 0u);
    EXPECT_GT(by_nobody, 0u);
}

// What the start measured may be far from true, and the machine may have slow seconds.
TEST(DraftReplay, WrongTimesAreNotBelievedForLong) {
    const std::array<std::pair<Conditions, double>, 10> cases = {{
        {{"three times slower at the start", 0.06, 3, 0, 0}, 0.99},
        {{"each number of rows by its own at the start", 0.06, 1, 0.4, 0}, 0.99},
        {{"both", 0.06, 3, 0.4, 0}, 0.985},
        {{"slow and fast seconds", 0.06, 1, 0, 0.2}, 0.99},
        {{"slow first steps", 0.06, 1, 0, 0, 3}, 0.985},
        {{"a slow beginning", 0.06, 1, 0, 0, 2, 25}, 0.97},
        {{"streams that join late", 0.06, 1, 0, 0, 1, 0, 15}, 0.99},
        {{"streams that join late after a slow beginning", 0.06, 1, 0, 0, 2, 25, 15}, 0.965},
        {{"drafts whose rows take half as much again", 0.06, 1, 0, 0, 1, 0, 0, 0.5}, 0.995},
        {{"tokens that take a sixth of a step to draw", 0.06, 1, 0, 0, 1, 0, 0, 0, 0.17}, 1.0},
    }};
    const Cells cells = read_traces();
    for (const auto& [conditions, least] : cases) {
        const Conditions only_weather = {"weather",
                                         0,
                                         1,
                                         0,
                                         conditions.weather,
                                         conditions.slow_begin,
                                         conditions.begin,
                                         conditions.late,
                                         conditions.fold,
                                         conditions.draw};
        double sum = 0;
        int count = 0;
        for (const Machine& machine : machines) {
            for (const auto& [cell, traces] : cells) {
                for (const std::uint32_t streams : {1u, 4u, 16u}) {
                    for (unsigned seed = 0; seed < 3; ++seed) {
                        double best = 0;
                        for (const Setting& setting : fixed_settings) {
                            best = std::max(best, Replay(machine, only_weather, seed)
                                                      .run(traces, streams, setting)
                                                      .rate);
                        }
                        sum += Replay(machine, conditions, seed)
                                   .run(traces, streams, {true, 0, 0})
                                   .rate /
                               best;
                        ++count;
                    }
                }
            }
        }
        std::printf("%s: %.3f of the best setting\n", conditions.name, sum / count);
        EXPECT_GT(sum / count, least) << conditions.name;
    }
}

}  // namespace
}  // namespace percheron::engine
