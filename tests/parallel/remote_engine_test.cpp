// An engine in a rank process: the same replies as in this one, and an end for every request
// whatever happens to the rank.  This program is its own rank: main() below.
#include "parallel/remote_engine.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/config.h"
#include "engine/reply_collector.h"
#include "grammar/grammar_compiler.h"
#include "parallel/control_link.h"
#include "parallel/messages.h"
#include "parallel/rank_server.h"
#include "tools/nano_model.h"

namespace percheron::parallel {
namespace {

using engine::testing::CollectedReply;
using engine::testing::ReplyCollector;
using std::chrono::milliseconds;

constexpr const char* rules = R"(root ::= "{" [a-z]{3,8} ":" [0-9]{2,6} "}")";

class RemoteEngineTest : public tools::NanoModel {
  public:
    static tools::LoadOptions load_options() { return options(Bytes{64} << 20, 8); }
    static grammar::GrammarCompiler compiler(const EngineDescription& description) {
        grammar::GrammarCompilerOptions options;
        options.vocabulary = description.vocabulary;
        options.stop_tokens = description.stop_tokens;
        return grammar::GrammarCompiler(tokenizer(), options);
    }

    // The rank's side.
    static Status serve(int connection) {
        EngineDescription description;
        return serve_rank(connection, {[&](const auto& say) {
                                           tools::LoadOptions options = load_options();
                                           options.on_stage = say;
                                           auto engine = tools::load_engine(options, tokenizer());
                                           if (engine.ok()) description = (*engine)->description();
                                           return engine;
                                       },
                                       [&](const std::string& text) {
                                           return compiler(description).compile(text);
                                       }});
    }

  protected:
    static RemoteOptions remote_options() {
        RemoteOptions options;
        options.arguments = {"rank"};
        options.first_wait = milliseconds(1);
        options.longest_wait = milliseconds(10);
        return options;
    }
    static std::unique_ptr<Engine> remote(RemoteOptions options = remote_options()) {
        auto engine = start_remote_engine(std::move(options));
        EXPECT_TRUE(engine.ok()) << (engine.ok() ? "" : engine.error().message());
        return std::move(engine).value();
    }

    static GenerationRequest request(unsigned seed, std::uint32_t output = 24) {
        std::mt19937 random(seed);
        GenerationRequest result;
        const std::size_t length = 1 + random() % 300;
        const std::size_t first = random() % (text().size() - length);
        result.prompt.assign(text().begin() + static_cast<std::ptrdiff_t>(first),
                             text().begin() + static_cast<std::ptrdiff_t>(first + length));
        result.sampling.temperature = seed % 3 == 0 ? 0.0f : 1.0f;
        result.sampling.top_p = 0.95f;
        result.sampling.seed = random();
        result.max_tokens = output;
        result.ignore_eos = true;
        return result;
    }

    // One request for everything that can be asked.
    static std::vector<GenerationRequest> all_kinds(const OutputGrammar* grammar) {
        std::vector<GenerationRequest> result;
        for (unsigned seed = 0; seed < 6; ++seed)
            result.push_back(request(seed));
        result[1].sampling.top_logprobs = 4;
        result[1].choices = 3;
        result[2].prompt_logprobs = 3;
        result[3].report_progress = true;
        result[4].sampling.logit_bias = {{TokenId(300), 4.0f}};
        result[4].sampling.repetition_penalty = 1.2f;
        result[4].sampling.frequency_penalty = 0.4f;
        result[5].draft = false;
        result[5].min_tokens = 8;
        result[5].ignore_eos = false;
        GenerationRequest& ruled = result.emplace_back(request(6));
        ruled.ignore_eos = false;
        ruled.thinking_budget = 4;
        ruled.grammar = std::shared_ptr<const OutputGrammar>(std::shared_ptr<void>(), grammar);
        GenerationRequest& late = result.emplace_back(request(7));
        late.deadline = std::chrono::steady_clock::now() - std::chrono::seconds(1);
        GenerationRequest& seeing = result.emplace_back(request(8));
        const auto canvas = std::make_shared<ImageCanvas>();
        canvas->height = 56;
        canvas->width = 84;
        canvas->pixels.assign(std::size_t{3} * 56 * 84, 90);
        const TokenId placeholder = checkpoint::read_config(folder()).value().image_token;
        seeing.prompt.insert(seeing.prompt.begin(), 6, placeholder);
        PromptImage image;
        image.count = 6;
        image.grid_height = 4;
        image.grid_width = 6;
        image.canvas = canvas;
        image.content_hash[0] = 9;
        seeing.images = {image};
        return result;
    }

    static pid_t process_of(const Engine& engine) {
        return static_cast<pid_t>(engine.status().ranks.at(0).process);
    }
    // Gives way until it is so; a rank that never comes is the test runner's time-out.
    template <class Condition>
    static void until(const Condition& holds) {
        while (!holds())
            std::this_thread::yield();
    }
    static void until_up_again(const Engine& engine, std::uint64_t restarts) {
        until([&] {
            const RankStatus rank = engine.status().ranks.at(0);
            return rank.up && rank.restarts >= restarts;
        });
    }
    static std::vector<TokenId> reply_to(Engine& engine, const GenerationRequest& request) {
        ReplyCollector collector;
        const auto id = engine.submit(request, collector);
        if (!id.ok()) return {};
        collector.wait_for(1);
        EXPECT_EQ(collector.complaint(), "");
        return collector.reply(*id).tokens;
    }
    static std::size_t open_descriptors() {
        const std::filesystem::directory_iterator all("/proc/self/fd");
        return static_cast<std::size_t>(std::distance(begin(all), end(all)));
    }
    static bool has_children() { return ::waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD; }

  private:
    tests::QuietLog quiet_;
};

void expect_equal(const CollectedReply& here, const CollectedReply& there) {
    EXPECT_EQ(here.tokens, there.tokens);
    EXPECT_EQ(here.seed, there.seed);
    EXPECT_EQ(here.cached, there.cached);
    const auto same = [](const auto& one, const auto& other) {
        ASSERT_EQ(one.size(), other.size());
        for (std::size_t i = 0; i < one.size(); ++i) {
            EXPECT_EQ(one[i].chosen, other[i].chosen);
            ASSERT_EQ(one[i].top.size(), other[i].top.size());
            for (std::size_t k = 0; k < one[i].top.size(); ++k) {
                EXPECT_EQ(one[i].top[k].id, other[i].top[k].id);
                EXPECT_EQ(one[i].top[k].logprob, other[i].top[k].logprob);
            }
        }
    };
    same(here.logprobs, there.logprobs);
    same(here.prompt_scores, there.prompt_scores);
    EXPECT_EQ(here.progress.empty(), there.progress.empty());
    ASSERT_TRUE(here.finished && there.finished);
    EXPECT_EQ(here.finished->reason, there.finished->reason);
    EXPECT_EQ(here.finished->statistics.prompt_tokens, there.finished->statistics.prompt_tokens);
    EXPECT_EQ(here.finished->statistics.generated_tokens,
              there.finished->statistics.generated_tokens);
}

TEST_F(RemoteEngineTest, GivesEveryReplyThatAnEngineOfThisProcessGives) {
    const auto local = load(load_options());
    const auto far = remote();
    const EngineDescription& one = local->description();
    const EngineDescription& other = far->description();
    EXPECT_EQ(one.model_name, other.model_name);
    EXPECT_EQ(one.context_tokens, other.context_tokens);
    EXPECT_EQ(one.stop_tokens, other.stop_tokens);
    EXPECT_EQ(one.proposer, other.proposer);
    auto compiled = compiler(one);
    const auto grammar = compiled.compile(rules).value();
    const auto requests = all_kinds(grammar.get());
    // Alone, so that what was cached is the same; then all at once.
    for (const bool together : {false, true}) {
        ReplyCollector here;
        ReplyCollector there;
        std::vector<std::pair<RequestId, RequestId>> ids;
        std::size_t choices = 0;
        for (const GenerationRequest& request : requests) {
            const auto near_id = local->submit(request, here);
            const auto far_id = far->submit(request, there);
            ASSERT_TRUE(near_id.ok() && far_id.ok());
            ids.emplace_back(*near_id, *far_id);
            choices += request.choices;
            if (together) continue;
            here.wait_for(choices);
            there.wait_for(choices);
            until([&] { return far->status().reprefill_pending == 0; });
            until([&] { return local->status().reprefill_pending == 0; });
        }
        here.wait_for(choices);
        there.wait_for(choices);
        EXPECT_EQ(there.complaint(), "");
        for (std::size_t i = 0; i < requests.size(); ++i) {
            for (std::uint32_t choice = 0; choice < requests[i].choices; ++choice) {
                CollectedReply near_reply = here.reply(ids[i].first, choice);
                CollectedReply far_reply = there.reply(ids[i].second, choice);
                if (together) near_reply.cached = far_reply.cached = 0;
                SCOPED_TRACE("request " + std::to_string(i));
                expect_equal(near_reply, far_reply);
            }
        }
        EXPECT_FALSE(here.reply(ids[2].first).prompt_scores.empty());
        EXPECT_FALSE(here.reply(ids[3].first).progress.empty());
        EXPECT_EQ(there.reply(ids[7].second).finished->reason, FinishReason::deadline);
    }
}

TEST_F(RemoteEngineTest, RefusesWhatAnEngineOfThisProcessRefuses) {
    const auto local = load(load_options());
    const auto far = remote();
    ReplyCollector collector;
    const auto expect_same = [&](auto change) {
        GenerationRequest wrong = request(1);
        change(wrong);
        const auto one = local->submit(wrong, collector);
        const auto other = far->submit(wrong, collector);
        ASSERT_FALSE(one.ok() || other.ok());
        EXPECT_EQ(one.error().message(), other.error().message());
        EXPECT_EQ(one.error().reason(), other.error().reason());
        EXPECT_EQ(one.error().code(), other.error().code());
    };
    using R = GenerationRequest&;
    expect_same([](R r) { r.prompt.clear(); });
    expect_same([](R r) { r.sampling.top_p = 0; });
    expect_same([](R r) { r.choices = 1'000'000; });
    expect_same([](R r) { r.max_tokens = 1'000'000; });
    expect_same([](R r) { r.prompt[0] = TokenId(-1); });
    expect_same([](R r) { r.images.emplace_back(); });
    EXPECT_EQ(collector.calls(), 0u);
}

TEST_F(RemoteEngineTest, CancelledRequestsEndOnce) {
    const auto far = remote();
    auto compiled = compiler(far->description());
    ReplyCollector collector;
    std::vector<RequestId> ids;
    for (unsigned i = 0; i < 12; ++i) {
        GenerationRequest long_one = request(i, 3000);
        // Some while their grammar is compiled.
        if (i % 3 == 0) {
            long_one.grammar = compiled.compile(R"(root ::= [a-z ]{2000,3000})").value();
        }
        ids.push_back(far->submit(std::move(long_one), collector).value());
        if (i % 2 == 0) far->cancel(ids.back());
    }
    for (const RequestId id : ids)
        far->cancel(id);
    collector.wait_for(12);
    EXPECT_EQ(collector.complaint(), "");
    EXPECT_EQ(collector.reply(ids[0]).finished->reason, FinishReason::cancelled);
}

// S6: each ends exactly once, and says of whom and how.
TEST_F(RemoteEngineTest, EndsEveryRequestOfAKilledRankAndStartsItAgain) {
    const std::size_t descriptors = open_descriptors();
    {
        const auto far = remote();
        const GenerationRequest probe = request(3);
        const std::vector<TokenId> expected = reply_to(*far, probe);
        ASSERT_EQ(expected.size(), 24u);
        std::mt19937 random(11);
        for (std::uint64_t kills = 1; kills <= 20; ++kills) {
            ReplyCollector collector;
            std::vector<RequestId> ids;
            // More than run at a time: some are never begun.
            for (unsigned i = 0; i < 12; ++i)
                ids.push_back(far->submit(request(100 + i, 4000), collector).value());
            // At any moment from the first prompts to far into the replies.
            collector.wait_for_tokens(random() % 2 == 0 ? 0 : random() % 200, 12);
            ASSERT_EQ(::kill(process_of(*far), SIGKILL), 0);
            collector.wait_for(12);
            until_up_again(*far, kills);
            EXPECT_EQ(collector.finished(), 12u);
            for (const RequestId id : ids) {
                const CollectedReply reply = collector.reply(id);
                ASSERT_TRUE(reply.finished);
                ASSERT_EQ(reply.finished->reason, FinishReason::failed);
                EXPECT_EQ(reply.finished->error->reason(), reasons::engine_dead);
                const std::string& message = reply.finished->error->message();
                EXPECT_NE(message.find("rank 0 was ended by signal 9"), std::string::npos)
                    << message;
                EXPECT_NE(message.find("while serving"), std::string::npos) << message;
                EXPECT_EQ(reply.finished->statistics.generated_tokens, reply.tokens.size());
            }
            EXPECT_EQ(reply_to(*far, probe), expected);
        }
        const RankStatus rank = far->status().ranks.at(0);
        EXPECT_EQ(rank.restarts, 20u);
        EXPECT_EQ(rank.stage, "serving");
        EXPECT_NE(rank.last_end.find("signal 9"), std::string::npos);
    }
    EXPECT_EQ(open_descriptors(), descriptors);
    EXPECT_FALSE(has_children());
}

TEST_F(RemoteEngineTest, KilledWhileIdleAndAgainWhileItStarts) {
    const auto far = remote();
    const std::vector<TokenId> expected = reply_to(*far, request(3));
    ASSERT_EQ(::kill(process_of(*far), SIGKILL), 0);
    for (int i = 0; i < 5; ++i) {
        // Whatever process there is next, as early as it is seen.
        pid_t next = 0;
        until([&] {
            const RankStatus rank = far->status().ranks.at(0);
            next = static_cast<pid_t>(rank.process);
            return next != 0 && rank.restarts >= 1;
        });
        ::kill(next, SIGKILL);
        ReplyCollector collector;
        const auto refused = far->submit(request(1), collector);
        if (!refused.ok()) {
            EXPECT_EQ(refused.error().code(), ErrorCode::unavailable);
            EXPECT_EQ(refused.error().reason(), reasons::engine_dead);
            EXPECT_NE(refused.error().message().find("rank 0 is "), std::string::npos);
        } else {
            collector.wait_for(1);
        }
    }
    until([&] { return reply_to(*far, request(3)) == expected; });
}

TEST_F(RemoteEngineTest, KilledInEveryStageOfItsFirstStart) {
    std::vector<std::string> seen;
    RemoteOptions options = remote_options();
    options.on_stage = [&](const std::string& stage) {
        if (std::find(seen.begin(), seen.end(), stage) != seen.end()) return;
        // Told by the thread that started it.
        std::ifstream children("/proc/thread-self/children");
        pid_t rank = 0;
        if (!(children >> rank)) return;
        seen.push_back(stage);
        ::kill(rank, SIGKILL);
    };
    const auto far = remote(options);
    EXPECT_GE(seen.size(), 3u);
    EXPECT_GE(far->status().ranks.at(0).restarts, 3u);
    EXPECT_EQ(reply_to(*far, request(3)).size(), 24u);
}

TEST_F(RemoteEngineTest, AStoppedRankIsKilledAndStartedAgain) {
    RemoteOptions options = remote_options();
    options.patience = milliseconds(1500);
    const auto far = remote(options);
    ReplyCollector collector;
    const RequestId id = far->submit(request(1, 4000), collector).value();
    collector.wait_for_tokens(3, 1);
    ASSERT_EQ(::kill(process_of(*far), SIGSTOP), 0);
    collector.wait_for(1);
    const CollectedReply reply = collector.reply(id);
    EXPECT_NE(reply.finished->error->message().find("made no step for"), std::string::npos);
    until_up_again(*far, 1);
    EXPECT_EQ(reply_to(*far, request(3)).size(), 24u);
}

Error start_error(const char* how) {
    RemoteOptions options;
    options.arguments = {"rank", how};
    auto engine = start_remote_engine(options);
    EXPECT_FALSE(engine.ok());
    return engine.ok() ? Error(ErrorCode::internal, "") : engine.error();
}

TEST_F(RemoteEngineTest, ARefusalIsPassedOnWord) {
    const Error refused = start_error("refuses");
    EXPECT_EQ(refused.code(), ErrorCode::corrupt);
    EXPECT_EQ(refused.message(), "these weights are damaged");
    const Error usage = start_error("wrong-usage");
    EXPECT_EQ(usage.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(usage.message(), "percheron rank: no such flag");
    const Error other = start_error("other-build");
    EXPECT_EQ(other.code(), ErrorCode::unsupported);
    EXPECT_NE(other.message().find("build 1234"), std::string::npos) << other.message();
    EXPECT_NE(other.message().find(own_build()), std::string::npos) << other.message();
    EXPECT_FALSE(has_children());
}

// Ranks that talk nonsense as soon as they serve: their requests end, and nothing else.
TEST_F(RemoteEngineTest, SenselessMessagesEndTheRankAlone) {
    for (const char* how :
         {"noise", "unknown-request", "twice-admitted", "ends-unbegun", "exits"}) {
        SCOPED_TRACE(how);
        RemoteOptions options = remote_options();
        options.arguments = {"rank", how};
        const auto far = remote(options);
        for (std::uint64_t i = 0; i < 3; ++i) {
            until_up_again(*far, i);
            ReplyCollector collector;
            GenerationRequest simple;
            simple.prompt = {TokenId(1)};
            const auto id = far->submit(simple, collector);
            if (!id.ok()) continue;
            collector.wait_for(1);
            EXPECT_EQ(collector.reply(*id).finished->error->reason(), reasons::engine_dead);
            EXPECT_EQ(collector.finished(), 1u);
        }
    }
}

TEST_F(RemoteEngineTest, GivesUpOnARefusalThatWouldRepeat) {
    const auto file =
        std::filesystem::temp_directory_path() / ("rank-once-" + std::to_string(::getpid()));
    std::filesystem::remove(file);
    RemoteOptions options = remote_options();
    options.arguments = {"rank", "once", file.string()};
    std::promise<Error> gave_up;
    options.on_gave_up = [&](const Error& error) { gave_up.set_value(error); };
    const auto far = remote(options);
    ::kill(process_of(*far), SIGKILL);
    EXPECT_EQ(gave_up.get_future().get().message(), "these weights are damaged");
    EXPECT_FALSE(far->status().alive);
    std::filesystem::remove(file);
}

// The ranks of the tests above.
int be_rank(const std::string& how, const std::string& file, int connection) {
    if (how == "nano") return RemoteEngineTest::serve(connection).ok() ? 0 : 1;
    if (how == "wrong-usage") {
        std::fputs("percheron rank: no such flag\n", stderr);
        return 2;
    }
    const Error damaged(ErrorCode::corrupt, "these weights are damaged");
    ControlLink link{Descriptor(connection)};
    link.send(frame_of(Hello{how == "other-build" ? "1234" : own_build()}));
    if (how == "refuses" || (how == "once" && std::filesystem::exists(file))) {
        link.send(frame_of(Refused{damaged}));
        link.flush();
        return 1;
    }
    if (how == "once") std::ofstream(file) << "started";
    EngineDescription description;
    description.limits = {100, 100, 100};
    link.send(frame_of(Ready{description}));
    while (link.wait(milliseconds(1000))) {
        auto frame = link.next();
        if (!frame.ok() || !*frame || how == "once") continue;
        Submit submit;
        if (!read((*frame)->fields, submit)) continue;
        if (how == "exits") {
            std::fputs("error: the device is gone\n", stderr);
            return 3;
        }
        Events message{submit.sink, {}};
        EngineEvents& events = message.events;
        const RequestId id = submit.request;
        if (how == "unknown-request") events.admitted = {{RequestId(77), 0, 0, 0}};
        if (how == "twice-admitted") events.admitted = {{id, 0, 0, 0}, {id, 0, 0, 0}};
        if (how == "ends-unbegun") events.finished.emplace_back().request = id;
        Message bytes = frame_of(message);
        if (how == "noise") {
            std::mt19937 random(static_cast<unsigned>(::getpid()));
            // Not its length: the end of a longer message might be waited for.
            for (std::size_t i = sizeof(std::uint32_t); i < bytes.size(); ++i)
                bytes[i] = static_cast<std::uint8_t>(random());
        }
        link.send(bytes);
    }
    return 0;
}

}  // namespace
}  // namespace percheron::parallel

// "rank [HOW [FILE]] --connection N" is a rank, anything else the tests.
int main(int argc, char** argv) {
    if (argc > 3 && std::strcmp(argv[1], "rank") == 0) {
        return percheron::parallel::be_rank(argc > 4 ? argv[2] : "nano", argc > 5 ? argv[3] : "",
                                            std::atoi(argv[argc - 1]));
    }
    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
