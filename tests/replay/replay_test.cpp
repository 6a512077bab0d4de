// The replay engine against what its file says: steps, ends, order, limits, cancel.
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>

#include <gtest/gtest.h>

#include "replay/replay_engine.h"

namespace percheron {
namespace {

const Tokenizer& tokenizer() {
    static const Tokenizer nano =
        Tokenizer::load(PERCHERON_SOURCE_DIR "/models/nano/tokenizer.json").value();
    return nano;
}

constexpr std::uint32_t vocabulary = 8192;
constexpr TokenId stop_token{8162};

Result<ReplayScript> parse(const std::string& text) {
    return ReplayScript::parse(text, tokenizer(), vocabulary);
}

// Keeps every event by choice and lets a test wait for ends.
class Recorder final : public EngineEventSink {
  public:
    struct Choice {
        int admitted = 0;
        int finished = 0;
        std::vector<std::vector<TokenId>> steps;
        EngineEvents::Finished end;
        std::uint64_t seed = 0;
    };

    void on_events(EngineEvents& events) override {
        const std::lock_guard lock(mutex_);
        for (const auto& admitted : events.admitted) {
            Choice& choice = choices_[{to_int(admitted.request), admitted.choice}];
            ++choice.admitted;
            choice.seed = admitted.seed;
        }
        for (const auto& run : events.runs) {
            Choice& choice = choices_[{to_int(run.request), run.choice}];
            EXPECT_EQ(choice.admitted, 1);
            EXPECT_EQ(choice.finished, 0);
            const auto begin = events.tokens.begin() + run.first;
            choice.steps.emplace_back(begin, begin + run.count);
        }
        for (const auto& finished : events.finished) {
            Choice& choice = choices_[{to_int(finished.request), finished.choice}];
            EXPECT_EQ(choice.admitted, 1);
            ++choice.finished;
            choice.end = finished;
            ++ends_;
        }
        changed_.notify_all();
    }

    void wait_for_ends(int count) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ends_ >= count; });
    }
    void wait_for_step(RequestId request) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return !choices_[{to_int(request), 0}].steps.empty(); });
    }
    Choice choice(RequestId request, std::uint32_t index = 0) {
        const std::lock_guard lock(mutex_);
        return choices_[{to_int(request), index}];
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::pair<std::uint64_t, std::uint32_t>, Choice> choices_;
    int ends_ = 0;
};

std::unique_ptr<Engine> engine_of(const std::string& lines, std::uint32_t max_running = 8,
                                  std::uint32_t context = 100) {
    auto script = parse(lines);
    EXPECT_TRUE(script.ok()) << (script.ok() ? "" : script.error().message());
    EngineDescription description;
    description.vocabulary = vocabulary;
    description.context_tokens = context;
    description.kv_tokens = 10000;
    description.max_running = max_running;
    description.stop_tokens = {stop_token};
    return make_replay_engine(std::move(*script), description);
}

GenerationRequest request_of(const std::string& last_message = "") {
    GenerationRequest request;
    request.prompt = {TokenId{1}, TokenId{2}, TokenId{3}};
    request.last_message = last_message;
    return request;
}

// Runs one request to its end.
Recorder::Choice run(Engine& engine, GenerationRequest request) {
    Recorder recorder;
    const auto id = engine.submit(std::move(request), recorder);
    EXPECT_TRUE(id.ok());
    recorder.wait_for_ends(1);
    return recorder.choice(*id);
}

TEST(ReplayScriptTest, EveryKindOfStep) {
    const auto engine = engine_of(
        R"({"steps":["7</think>",[5,6],{"plain":"</think>"},{"hex":"f09F"},["a",9,{"hex":"00"},{"plain":"<|user|>"}],[]]})");
    const auto choice = run(*engine, request_of());
    ASSERT_EQ(choice.steps.size(), 5u);  // a step without tokens is no event
    EXPECT_EQ(choice.steps[0].back(), tokenizer().added_token("</think>").value());
    EXPECT_EQ(choice.steps[1], (std::vector<TokenId>{TokenId{5}, TokenId{6}}));
    EXPECT_EQ(choice.steps[2], tokenizer().encode("</think>"));
    EXPECT_EQ(choice.steps[3],
              (std::vector<TokenId>{tokenizer().byte_token(0xf0), tokenizer().byte_token(0x9f)}));
    std::vector<TokenId> mixed = tokenizer().encode("a");
    mixed.push_back(TokenId{9});
    mixed.push_back(tokenizer().byte_token(0));
    const auto plain = tokenizer().encode("<|user|>");
    mixed.insert(mixed.end(), plain.begin(), plain.end());
    EXPECT_EQ(choice.steps[4], mixed);
    EXPECT_EQ(choice.end.reason, FinishReason::stop_token);
}

TEST(ReplayScriptTest, NullIsAbsentAndBlankLinesAreNone) {
    const auto script = parse(
        "\n{\"match\":null,\"steps\":[],\"finish\":null,\"prefill_ms\":null,\"delay_ms\":null,"
        "\"draft\":null,\"logprob\":null}\r\n   \n{\"steps\":[]}");
    ASSERT_TRUE(script.ok());
    EXPECT_EQ(script->size(), 2u);
}

TEST(ReplayScriptTest, WrongLinesAreNamed) {
    for (const char* line : {"x",
                             "[]",
                             "{}",
                             R"({"steps":5})",
                             R"({"steps":[5]} trailing)",
                             R"({"steps":[[-1]]})",
                             R"({"steps":[[8192]]})",
                             R"({"steps":[[1.5]]})",
                             R"({"steps":[{"hex":"abc"}]})",
                             R"({"steps":[{"hex":"zz"}]})",
                             R"({"steps":[{"other":"a"}]})",
                             R"({"steps":[[["a"]]]})",
                             R"({"steps":[],"finish":"end"})",
                             R"({"steps":[],"match":"("})",
                             R"({"steps":[],"match":5})",
                             R"({"steps":[],"delay_ms":-1})",
                             R"({"steps":[],"prefill_ms":"x"})",
                             R"({"steps":[],"logprob":1})",
                             R"({"steps":[],"draft":{"drafted":1,"accepted":2}})",
                             R"({"steps":[],"draft":3})"}) {
        const auto script = parse(std::string("{\"steps\":[]}\n") + line);
        ASSERT_FALSE(script.ok()) << line;
        EXPECT_EQ(script.error().message().rfind("line 2: ", 0), 0u) << script.error().message();
    }
}

TEST(ReplayScriptTest, MatchesComeFirstAndAreNotUsedUp) {
    const auto engine = engine_of(
        "{\"steps\":[[1]]}\n{\"match\":\"b+\",\"steps\":[[2]]}\n"
        "{\"match\":\"^abc$\",\"steps\":[[3]]}\n{\"steps\":[[4]]}");
    const auto token = [&](const std::string& message) {
        return to_int(run(*engine, request_of(message)).steps.at(0).at(0));
    };
    EXPECT_EQ(token("abc"), 2);
    EXPECT_EQ(token("none"), 1);
    EXPECT_EQ(token("abbbc"), 2);
    EXPECT_EQ(token("none"), 4);
    Recorder recorder;
    const auto refused = engine->submit(request_of("none"), recorder);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().reason(), reasons::replay_exhausted);
    EXPECT_EQ(token("b"), 2);
}

TEST(ReplayEngineTest, ChoicesTakeRepliesAllOrNone) {
    const auto engine = engine_of("{\"steps\":[[1]]}\n{\"steps\":[[2]]}\n{\"steps\":[[3]]}");
    Recorder recorder;
    GenerationRequest four = request_of();
    four.choices = 4;
    EXPECT_FALSE(engine->submit(four, recorder).ok());
    GenerationRequest three = request_of();
    three.choices = 3;
    three.sampling.seed = 77;
    const auto id = engine->submit(three, recorder);
    ASSERT_TRUE(id.ok());
    recorder.wait_for_ends(3);
    for (std::uint32_t i = 0; i < 3; ++i) {
        EXPECT_EQ(to_int(recorder.choice(*id, i).steps.at(0).at(0)), static_cast<int>(i) + 1);
        EXPECT_EQ(recorder.choice(*id, i).seed, 77u);
    }
}

TEST(ReplayEngineTest, LimitsEndAReplyWhereverTheyFallInAStep) {
    std::mt19937 random(9);
    for (int round = 0; round < 200; ++round) {
        // A reply of up to 60 tokens in random steps, with stop ids in some places.
        std::string steps;
        std::vector<TokenId> tokens;
        while (tokens.size() < 60) {
            steps += steps.empty() ? "[" : ",[";
            for (std::size_t i = 0; i < 1 + random() % 5; ++i) {
                const TokenId id{random() % 25 == 0 ? to_int(stop_token)
                                                    : static_cast<int>(random() % 5000)};
                steps += (i > 0 ? "," : "") + std::to_string(to_int(id));
                tokens.push_back(id);
            }
            steps += "]";
        }
        GenerationRequest request = request_of();
        const std::uint32_t context = 20 + random() % 60;
        if (random() % 2) request.max_tokens = 1 + random() % 70;
        request.ignore_eos = random() % 4 == 0;
        request.min_tokens = random() % 3 == 0 ? random() % 20 : 0;
        const auto engine =
            engine_of("{\"steps\":[" + steps + "],\"finish\":\"hang\"}", 8, context);

        const std::uint32_t room = context - 3;
        const std::uint32_t limit = std::min(request.max_tokens.value_or(room), room);
        std::size_t length = 0;
        FinishReason reason = FinishReason::cancelled;
        for (std::size_t i = 0; i < tokens.size() && reason == FinishReason::cancelled; ++i) {
            length = i + 1;
            if (!request.ignore_eos && tokens[i] == stop_token && length > request.min_tokens) {
                reason = FinishReason::stop_token;
            } else if (length == limit) {
                const bool context_first = request.max_tokens.value_or(room + 1) > room;
                reason = context_first ? FinishReason::context : FinishReason::max_tokens;
            }
        }
        Recorder recorder;
        const auto id = engine->submit(request, recorder);
        ASSERT_TRUE(id.ok());
        if (reason == FinishReason::cancelled) {
            recorder.wait_for_step(*id);
            engine->cancel(*id);
        }
        recorder.wait_for_ends(1);
        const auto choice = recorder.choice(*id);
        EXPECT_EQ(choice.end.reason, reason);
        std::vector<TokenId> seen;
        for (const auto& step : choice.steps)
            seen.insert(seen.end(), step.begin(), step.end());
        if (reason != FinishReason::cancelled) {
            EXPECT_EQ(seen, std::vector<TokenId>(tokens.begin(),
                                                 tokens.begin() + static_cast<long>(length)));
            EXPECT_EQ(choice.end.statistics.generated_tokens, length);
        }
        EXPECT_EQ(choice.end.statistics.prompt_tokens, 3u);
        EXPECT_EQ(choice.end.statistics.cached_tokens, 0u);
    }
}

TEST(ReplayEngineTest, EndsAreWhatTheLineSays) {
    const auto engine = engine_of(
        "{\"match\":\"stop\",\"steps\":[[1]]}\n{\"match\":\"length\",\"steps\":[[1]],\"finish\":"
        "\"length\"}\n{\"match\":\"error\",\"steps\":[[1]],\"finish\":\"error\"}\n"
        "{\"match\":\"hang\",\"steps\":[[1]],\"finish\":\"hang\"}");
    EXPECT_EQ(run(*engine, request_of("stop")).end.reason, FinishReason::stop_token);
    EXPECT_EQ(run(*engine, request_of("length")).end.reason, FinishReason::max_tokens);
    const auto failed = run(*engine, request_of("error"));
    EXPECT_EQ(failed.end.reason, FinishReason::failed);
    ASSERT_TRUE(failed.end.error.has_value());
    EXPECT_EQ(failed.end.error->reason(), reasons::numerical_fault);
    EXPECT_EQ(failed.steps.size(), 1u);
    GenerationRequest hanging = request_of("hang");
    hanging.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    EXPECT_EQ(run(*engine, hanging).end.reason, FinishReason::deadline);
}

TEST(ReplayEngineTest, CancelledInEveryPhaseEndsOnce) {
    const auto engine = engine_of(
        "{\"match\":\"prefill\",\"steps\":[[1]],\"prefill_ms\":600000}\n"
        "{\"match\":\"delay\",\"steps\":[[1],[2]],\"delay_ms\":600000}\n"
        "{\"match\":\"hang\",\"steps\":[[1]],\"finish\":\"hang\"}",
        1);
    for (const char* phase : {"prefill", "delay", "hang"}) {
        Recorder recorder;
        const auto running = engine->submit(request_of(phase), recorder);
        const auto waiting = engine->submit(request_of(phase), recorder);
        ASSERT_TRUE(running.ok() && waiting.ok());
        engine->cancel(*waiting);
        recorder.wait_for_ends(1);
        EXPECT_EQ(recorder.choice(*waiting).end.reason, FinishReason::cancelled);
        engine->cancel(*running);
        engine->cancel(*running);
        recorder.wait_for_ends(2);
        EXPECT_EQ(recorder.choice(*running).finished, 1);
        EXPECT_EQ(recorder.choice(*running).end.reason, FinishReason::cancelled);
    }
    EngineStatus status = engine->status();
    while (status.running + status.waiting > 0)
        status = engine->status();
    EXPECT_EQ(status.kv_tokens_free, status.kv_tokens_total);
}

TEST(ReplayEngineTest, RatesCountPromptsAndTokens) {
    const auto engine = engine_of("{\"match\":\"\",\"steps\":[[1,2],[1]]}");
    EXPECT_EQ(engine->status().prefill_tokens_per_second, 0);
    EXPECT_EQ(engine->status().decode_tokens_per_second, 0);
    run(*engine, request_of());
    // Published at the end of the step that told of the end.
    EngineStatus status = engine->status();
    while (status.decode_tokens_per_second == 0)
        status = engine->status();
    EXPECT_GT(status.prefill_tokens_per_second, 0);
}

TEST(ReplayEngineTest, RefusesWhatCannotRun) {
    const auto engine = engine_of("{\"match\":\"\",\"steps\":[[1]]}", 8, 10);
    Recorder recorder;
    GenerationRequest request = request_of();
    request.prompt.assign(10, TokenId{1});
    const auto full = engine->submit(request, recorder);
    ASSERT_FALSE(full.ok());
    EXPECT_EQ(full.error().reason(), reasons::context_length_exceeded);
    request.prompt.assign(9, TokenId{1});
    EXPECT_EQ(run(*engine, request).end.reason, FinishReason::context);
    request.prompt.clear();
    EXPECT_FALSE(engine->submit(request, recorder).ok());
    request = request_of();
    request.thinking_budget = 3;
    EXPECT_EQ(engine->submit(request, recorder).error().reason(), reasons::unsupported_parameter);
}

}  // namespace
}  // namespace percheron
