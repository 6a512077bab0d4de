// Every field of sampling, limits and stops reaches the engine as it was sent, on every route.
#include <gtest/gtest.h>

#include "server/recording_engine.h"
#include "server/replay_server.h"

namespace percheron::test {
namespace {

struct RouteForm {
    const char* path;
    Json body;
    const char* limit;  // its name of max_tokens
    const char* stop;
};

TEST(SamplingFields, ReachTheEngineOnEveryRoute) {
    Recording recording;
    ReplayServerOptions options;
    options.wrap = [&](std::unique_ptr<Engine> engine) {
        return std::make_unique<RecordingEngine>(std::move(engine), recording);
    };
    const ReplayServer server(Lines{{{"match", ""}, {"steps", {"</think>one STOP two"}}}}, options);
    const RouteForm routes[] = {
        {"/v1/chat/completions",
         {{"messages", user_message("x")}},
         "max_completion_tokens",
         "stop"},
        {"/v1/completions", {{"prompt", "x"}}, "max_tokens", "stop"},
        {"/v1/messages", {{"messages", user_message("x")}}, "max_tokens", "stop_sequences"},
        {"/v1/responses", {{"input", "x"}}, "max_output_tokens", "stop"}};
    for (const RouteForm& route : routes) {
        SCOPED_TRACE(route.path);
        Json body = route.body;
        body.update({{"temperature", 0.5},
                     {"top_p", 0.25},
                     {"min_p", 0.125},
                     {"top_k", 7},
                     {"repetition_penalty", 1.5},
                     {"presence_penalty", -0.5},
                     {"frequency_penalty", 0.75},
                     {"logit_bias", {{"5", -100}, {"9", 2.5}}},
                     {"seed", 11},
                     {"min_tokens", 2},
                     {"ignore_eos", true},
                     {"stop_token_ids", {3, 4}},
                     {"draft", false},
                     {"cache_prompt", false},
                     {"cache_salt", "salt"},
                     {"priority", 5},
                     {"deadline_s", 1000},
                     {route.limit, 50},
                     {route.stop, {"STOP"}}});
        const ClientReply reply = server.connect().request("POST", route.path, body.dump());
        ASSERT_EQ(reply.status, 200) << reply.body;
        EXPECT_NE(reply.body.find("one "), std::string::npos) << reply.body;
        EXPECT_EQ(reply.body.find("STOP two"), std::string::npos) << reply.body;
        const GenerationRequest request = recording.latest();
        const SamplingParameters& sampling = request.sampling;
        EXPECT_EQ(sampling.temperature, 0.5f);
        EXPECT_EQ(sampling.top_p, 0.25f);
        EXPECT_EQ(sampling.min_p, 0.125f);
        EXPECT_EQ(sampling.top_k, 7);
        EXPECT_EQ(sampling.repetition_penalty, 1.5f);
        EXPECT_EQ(sampling.presence_penalty, -0.5f);
        EXPECT_EQ(sampling.frequency_penalty, 0.75f);
        ASSERT_EQ(sampling.logit_bias.size(), 2u);
        EXPECT_EQ(sampling.logit_bias[0], (std::pair<TokenId, float>(TokenId{5}, -100.0f)));
        EXPECT_EQ(sampling.logit_bias[1], (std::pair<TokenId, float>(TokenId{9}, 2.5f)));
        EXPECT_EQ(sampling.seed, 11u);
        EXPECT_EQ(request.min_tokens, 2u);
        EXPECT_TRUE(request.ignore_eos);
        EXPECT_EQ(request.extra_stop_tokens, (std::vector<TokenId>{TokenId{3}, TokenId{4}}));
        EXPECT_FALSE(request.draft);
        EXPECT_FALSE(request.use_cache);
        EXPECT_EQ(request.cache_salt, "salt");
        EXPECT_EQ(request.priority, 5);
        EXPECT_TRUE(request.deadline.has_value());
        EXPECT_EQ(request.max_tokens, 50u);
    }
}

}  // namespace
}  // namespace percheron::test
