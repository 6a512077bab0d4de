// Fields, models, metrics, tokens: what clients and harnesses read beside the replies.
#include <algorithm>
#include <mutex>

#include <gtest/gtest.h>

#include "core/logging.h"
#include "server/replay_server.h"

namespace percheron::test {
namespace {

const Json quick{{"match", ""}, {"steps", {"Hm.</think>", "ok"}}};

Json ask(Json more = Json::object()) {
    more["messages"] = user_message("Hello.");
    return more;
}

TEST(FieldsTest, WhatHarnessesSendIsAccepted) {
    const ReplayServer server(Lines{quick});
    const std::vector<Json> bodies{
        ask({{"model", "anything"},
             {"max_completion_tokens", 20},
             {"ignore_eos", true},
             {"repetition_penalty", 1.0},
             {"stream", false}}),
        ask({{"max_tokens", 4}, {"chat_template_kwargs", {{"enable_thinking", false}}}}),
        ask({{"stop", nullptr}, {"logprobs", nullptr}, {"tools", nullptr}, {"seed", nullptr}}),
        ask({{"stop", Json::array()}, {"temperature", 0}, {"top_p", 1}, {"n", 1}}),
        ask({{"stop", Json::array({"", "x"})}, {"seed", -5}, {"top_k", -1}, {"min_p", 0.05}}),
        ask({{"cache_prompt", false},
             {"return_token_ids", true},
             {"cache_salt", "s"},
             {"priority", 3},
             {"user", "u"},
             {"metadata", {{"a", "b"}}},
             {"store", false}}),
        ask({{"presence_penalty", 1.5}, {"frequency_penalty", -1}, {"logit_bias", {{"5", -100}}}}),
        ask({{"response_format", {{"type", "text"}}},
             {"parallel_tool_calls", true},
             {"tool_choice", "auto"},
             {"loop_guard", false},
             {"draft", false}}),
        ask({{"seed", 18446744073709551615ULL}, {"max_tokens", 3.0}, {"some_new_field", {1, 2}}}),
        {{"messages", {{{"role", "user"}, {"content", ""}, {"name", "tester"}}}}},
        {{"messages",
          {{{"role", "developer"}, {"content", "Be kind."}},
           {{"role", "user"}, {"content", Json::array({{{"type", "text"}, {"text", "Hi"}}})}},
           {{"role", "assistant"},
            {"content", nullptr},
            {"tool_calls",
             {{{"id", "c1"},
               {"type", "function"},
               {"function", {{"name", "f"}, {"arguments", "{\"a\":1}"}}}}}}},
           {{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "3"}}}}}};
    for (const Json& body : bodies) {
        const ClientReply reply = server.chat(body);
        EXPECT_EQ(reply.status, 200) << body << reply.body;
    }
}

TEST(FieldsTest, OutOfRangeNamesTheField) {
    const ReplayServer server(Lines{quick});
    const std::pair<const char*, std::vector<Json>> wrong[] = {
        {"temperature", {-0.1, 2.5, "hot", true}},
        {"top_p", {0, 1.1, -1}},
        {"min_p", {-0.1, 1}},
        {"top_k", {-2, 1.5, "x"}},
        {"repetition_penalty", {0, -1}},
        {"presence_penalty", {3}},
        {"frequency_penalty", {-2.1}},
        {"max_tokens", {0, -1, "many", 1.5}},
        {"max_completion_tokens", {0, -7}},
        {"n", {0, 65, "2"}},
        {"seed", {1.5, "x"}},
        {"stop", {5, Json::array({5}), std::string(2000, 'x')}},
        {"stream", {"yes", 1}},
        {"logit_bias", {Json{{"x", 1}}, Json{{"999999", 1}}, Json{{"1", 200}}, 3}},
        {"top_logprobs", {21, -1, 3}},
        {"stream_options", {5}},
        {"messages", {Json::array(), "x", nullptr}},
        {"tools", {5, Json::array({5})}},
        {"tool_choice", {"maybe", 5, "required"}},
        {"reasoning_effort", {"none", "huge"}},
        {"stop_token_ids", {5, Json::array({-1}), Json::array({99999999})}},
        {"deadline_s", {0, -1}},
        {"response_format", {5, "json", Json{{"type", "json_schema"}}}},
        {"guided_json", {"no schema"}},
        {"guided_choice", {"a", Json::array(), Json::array({1})}},
        {"guided_regex", {5}},
        {"structured_outputs", {5}},
        {"chat_template_kwargs", {5}}};
    for (const auto& [name, values] : wrong) {
        for (const Json& value : values) {
            Json body = ask();
            body[name] = value;
            const ClientReply reply = server.chat(body);
            EXPECT_EQ(reply.status, 400) << name << " " << value;
            const Json error = reply.json()["error"];
            EXPECT_EQ(error["code"], "invalid_value") << name << " " << value;
            const std::string param = error["param"].is_string() ? error["param"] : "";
            EXPECT_EQ(param.substr(0, std::string(name).size()), name) << error;
        }
    }
}

TEST(FieldsTest, PlacesInsideMessagesAreNamedInFull) {
    const ReplayServer server(Lines{quick});
    const auto with_call = [](const Json& function) {
        return Json::array(
            {{{"role", "user"}, {"content", "x"}},
             {{"role", "assistant"}, {"tool_calls", {{{"id", "c"}, {"function", function}}}}}});
    };
    const std::pair<Json, std::string> wrong[] = {
        {with_call({{"name", "f"}, {"arguments", "[1"}}),
         "messages[1].tool_calls[0].function.arguments"},
        {with_call({{"arguments", "{}"}}), "messages[1].tool_calls[0].function"},
        {with_call(5), "messages[1].tool_calls[0].function"},
        {Json::array({{{"role", "assistant"}, {"reasoning", 5}}}), "messages[0].reasoning"}};
    for (const auto& [messages, param] : wrong) {
        const Json error = server.chat({{"messages", messages}}).json()["error"];
        EXPECT_EQ(error["param"], param) << error;
        EXPECT_EQ(error["message"].get<std::string>().find(param), 0u) << error;
    }
}

TEST(FieldsTest, WhatIsNotDoneIsRefusedAndNeverIgnored) {
    const ReplayServer server(Lines{quick});
    const std::vector<std::pair<const char*, Json>> foreign{
        {"response_format", {{"type", "json_object"}}},
        {"response_format",
         {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", Json::object()}}}}},
        {"structured_outputs", {{"regex", "a"}}},
        {"grammar", "root ::= \"a\""},
        {"tool_choice", "required"},
        {"tool_choice", {{"type", "function"}, {"function", {{"name", "f"}}}}},
        {"functions", Json::array()},
        {"guided_json", Json::object()},
        {"prompt_logprobs", 1},
        {"use_beam_search", true},
        {"loop_guard", true},
        {"echo", true},
        {"thinking_budget", 5},
        {"modalities", {"text", "audio"}}};
    for (const auto& [name, value] : foreign) {
        Json body = ask();
        body[name] = value;
        if (std::string_view(name) == "tool_choice") {
            body["tools"] = Json::array({{{"function", {{"name", "f"}}}}});
        }
        const ClientReply reply = server.chat(body);
        ASSERT_EQ(reply.status, 400) << name;
        EXPECT_EQ(reply.json()["error"]["code"], "unsupported_parameter") << name;
        EXPECT_TRUE(reply.json()["error"]["param"].get<std::string>().starts_with(name))
            << reply.body;
    }
}

// Keeps what is logged while it lives.
class KeptLog final : public LogSink {
  public:
    KeptLog() : before_(set_log_sink(this)) {}
    ~KeptLog() override { set_log_sink(before_); }
    void write(LogLevel /*level*/, std::string_view message) override {
        const std::lock_guard lock(mutex_);
        lines_.emplace_back(message);
    }
    std::size_t lines_with(const std::string& text) const {
        const std::lock_guard lock(mutex_);
        return static_cast<std::size_t>(std::count_if(
            lines_.begin(), lines_.end(),
            [&](const std::string& line) { return line.find(text) != std::string::npos; }));
    }

  private:
    LogSink* before_;
    mutable std::mutex mutex_;
    std::vector<std::string> lines_;
};

TEST(FieldsTest, WhatHasNoEffectIsNamedOnceInTheLog) {
    KeptLog log;
    const ReplayServer server(Lines{quick});
    const std::pair<const char*, Json> fields[] = {
        {"thinking", {{"type", "disabled"}}}, {"user", "somebody"},           {"store", true},
        {"include_reasoning", false},         {"skip_special_tokens", false}, {"temprature", 0}};
    for (int round = 0; round < 3; ++round) {
        for (const auto& [name, value] : fields)
            EXPECT_EQ(server.chat(ask({{name, value}})).status, 200) << name;
    }
    for (const auto& [name, value] : fields)
        EXPECT_EQ(log.lines_with(std::string("field=") + name), 1u) << name;
    EXPECT_EQ(log.lines_with("field=messages"), 0u);
}

// The bounds that the message names are those that hold.
TEST(FieldsTest, SeedsAreAllOf64Bits) {
    const ReplayServer server(Lines{quick});
    const auto send = [&](const std::string& seed) {
        return server.connect().request(
            "POST", "/v1/chat/completions",
            R"({"messages":[{"role":"user","content":"quick"}],"seed":)" + seed + "}");
    };
    const std::pair<const char*, std::uint64_t> seeds[] = {
        {"0", 0},
        {"-1", ~std::uint64_t{0}},
        {"3.0", 3},
        {"18446744073709551615", ~std::uint64_t{0}},
        {"-9223372036854775808", std::uint64_t{1} << 63}};
    for (const auto& [text, seed] : seeds) {
        const ClientReply reply = send(text);
        ASSERT_EQ(reply.status, 200) << reply.body;
        EXPECT_EQ(reply.json()["seed"], seed);
    }
    for (const char* text :
         {"18446744073709551616", "-9223372036854775809", "1e30", "0.5", "true", "\"1\"", "[1]"}) {
        const ClientReply reply = send(text);
        EXPECT_EQ(reply.status, 400) << text;
        const std::string message = reply.json()["error"]["message"];
        EXPECT_NE(message.find("from -9223372036854775808 to 18446744073709551615"),
                  std::string::npos)
            << message;
    }
}

TEST(ModelsTest, ListAndSingle) {
    const ReplayServer server(Lines{quick});
    for (const char* path : {"/v1/models", "/models", "/v1/models/"}) {
        const ClientReply reply = server.get(path);
        EXPECT_EQ(reply.status, 200);
        const Json model = reply.json()["data"][0];
        EXPECT_EQ(model["id"], "nano");
        EXPECT_EQ(model["object"], "model");
        EXPECT_EQ(model["owned_by"], "percheron");
        EXPECT_EQ(model["max_model_len"], 4096);
        EXPECT_EQ(model["root"], nano_folder().string());
        EXPECT_TRUE(model["created"].is_number_integer());
    }
    EXPECT_EQ(server.get("/v1/models/nano").json()["id"], "nano");
    EXPECT_EQ(server.get("/v1/models/other").status, 404);
    EXPECT_EQ(server.get("/v1/models/n%61n%6F").json()["id"], "nano");
    for (const char* odd : {"nan%6", "nan%", "nan%6g", "nan%-1", "nano%00"})
        EXPECT_EQ(server.get("/v1/models/" + std::string(odd)).status, 404) << odd;
}

TEST(ModelsTest, StrictModelRefusesOtherNames) {
    ReplayServerOptions options;
    options.server.strict_model = true;
    const ReplayServer server(Lines{quick}, options);
    EXPECT_EQ(server.chat(ask({{"model", "nano"}})).status, 200);
    const ClientReply reply = server.chat(ask({{"model", "gpt"}}));
    EXPECT_EQ(reply.status, 404);
    EXPECT_EQ(reply.json()["error"]["code"], "model_not_found");
}

TEST(HealthTest, Is503UntilTheModelIsThere) {
    server::ServerOptions options;
    options.port = 0;
    const auto server = server::Server::listen(options);
    ASSERT_TRUE(server.ok());
    for (const char* path : {"/health", "/v1/models", "/status", "/tokenizer_info"}) {
        HttpClient client((*server)->port());
        const ClientReply reply = client.request("GET", path);
        EXPECT_EQ(reply.status, 503) << path;
        EXPECT_EQ(reply.json()["error"]["code"], "starting");
    }
    HttpClient chat((*server)->port());
    EXPECT_EQ(chat.request("POST", "/v1/chat/completions", ask().dump()).status, 503);
    HttpClient metrics((*server)->port());
    EXPECT_EQ(metrics.request("GET", "/metrics").status, 200);
}

TEST(MetricsTest, AllNamesAreThereAtZeroFromTheStart) {
    const ReplayServer server(Lines{quick});
    const std::string text = server.get("/metrics").body;
    for (const std::string prefix : {"vllm:", "percheron:"}) {
        for (const std::string name :
             {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
              "prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_total",
              "generation_tokens_total", "request_success_total",
              "time_to_first_token_seconds_count", "inter_token_latency_seconds_count",
              "e2e_request_latency_seconds_count", "spec_decode_num_drafts_total",
              "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total",
              "spec_decode_num_accepted_tokens_per_pos_total"}) {
            const std::size_t at = text.find("\n" + prefix + name + "{");
            ASSERT_NE(at, std::string::npos) << prefix << name;
            EXPECT_EQ(text.substr(text.find("} ", at) + 2, 2), "0\n") << prefix << name;
        }
        EXPECT_NE(text.find("\n" + prefix + "cache_config_info{"), std::string::npos);
    }
    for (const char* reason : {"stop", "length", "tool_calls", "abort", "error"}) {
        EXPECT_NE(text.find("finished_reason=\"" + std::string(reason) + "\"} 0"),
                  std::string::npos);
    }
}

TEST(MetricsTest, CountWhatHappened) {
    Json line{{"match", ""}, {"steps", {"a", " b</think>", "c d", "<|user|>"}}};
    const ReplayServer server(Lines{line});
    int prompt = 0;
    int completion = 0;
    for (int i = 0; i < 5; ++i) {
        const Json usage = server.chat(ask()).json()["usage"];
        prompt += usage["prompt_tokens"].get<int>();
        completion += usage["completion_tokens"].get<int>();
    }
    EXPECT_EQ(server.metric("vllm:prompt_tokens_total"), prompt);
    EXPECT_EQ(server.metric("vllm:generation_tokens_total"), completion);
    EXPECT_EQ(server.metric("percheron:time_to_first_token_seconds_count"), 5);
    EXPECT_EQ(server.metric("percheron:e2e_request_latency_seconds_count"), 5);
    EXPECT_EQ(server.metric("vllm:prefix_cache_queries_total"), prompt);
    const std::string text = server.get("/metrics").body;
    EXPECT_NE(text.find("finished_reason=\"stop\"} 5"), std::string::npos);
}

TEST(TokenizeTest, CountsAndComesBack) {
    const ReplayServer server(Lines{quick});
    const auto post = [&](const char* path, const Json& body) {
        return server.connect().request("POST", path, body.dump());
    };
    for (const std::string text : {"Hello there, 123 \xC3\xA9", "", "<|user|>x", " \n"}) {
        const Json tokens = post("/tokenize", {{"prompt", text}, {"model", "m"}}).json();
        EXPECT_EQ(tokens["count"], tokens["tokens"].size());
        EXPECT_EQ(tokens["max_model_len"], 4096);
        const Json named =
            post("/tokenize", {{"prompt", text}, {"return_token_strs", true}}).json();
        EXPECT_EQ(named["token_strs"].size(), tokens["count"]);
        EXPECT_FALSE(tokens.contains("token_strs"));
        const Json back = post("/detokenize", {{"tokens", tokens["tokens"]}}).json();
        EXPECT_EQ(back["prompt"], text);
    }
    const Json chat = post("/tokenize", {{"messages", user_message("Hello.")}}).json();
    EXPECT_EQ(chat["count"], server.chat(ask()).json()["usage"]["prompt_tokens"]);
    EXPECT_EQ(post("/tokenize", {{"prompt", 5}}).status, 400);
    EXPECT_EQ(post("/detokenize", {{"tokens", {-1}}}).status, 400);
    EXPECT_EQ(post("/detokenize", Json::object()).status, 400);
    const Json info = server.get("/tokenizer_info").json();
    EXPECT_EQ(info["eos_token"], "<|endoftext|>");
    EXPECT_NE(info["chat_template"].get<std::string>().find("{%"), std::string::npos);
}

// Four ways to say the same history give the same prompt.
TEST(PromptTest, HistoryShapesAreOne) {
    const ReplayServer server(Lines{quick});
    const auto ids = [&](const Json& messages) {
        const ClientReply reply =
            server.connect().request("POST", "/tokenize", Json{{"messages", messages}}.dump());
        EXPECT_EQ(reply.status, 200) << reply.body;
        return reply.json()["tokens"];
    };
    const auto history = [](const char* role, const Json& arguments, const Json& content,
                            const Json& result) {
        return Json::array({{{"role", role}, {"content", "Be brief."}},
                            {{"role", "user"}, {"content", "Set it."}},
                            {{"role", "assistant"},
                             {"content", content},
                             {"tool_calls",
                              {{{"id", "c1"},
                                {"type", "function"},
                                {"function", {{"name", "set"}, {"arguments", arguments}}}}}}},
                            {{"role", "tool"}, {"tool_call_id", "c1"}, {"content", result}}});
    };
    const Json object{{"hour", 7}, {"label", "gym \xC3\xA9"}};
    const Json parts = Json::array({{{"type", "text"}, {"text", "done"}}});
    const Json expected = ids(history("system", object, "", "done"));
    EXPECT_GT(expected.size(), 20u);
    for (const char* role : {"system", "developer"}) {
        for (const Json& arguments : {object, Json(object.dump())}) {
            for (const Json& content : {Json(""), Json(nullptr)}) {
                for (const Json& result : {Json("done"), parts}) {
                    EXPECT_EQ(ids(history(role, arguments, content, result)), expected);
                }
            }
        }
    }
}

TEST(PromptTest, ControlTextOfUsersStaysText) {
    const ReplayServer server(Lines{quick});
    const auto model = server::ServedModel::load(nano_folder());
    ASSERT_TRUE(model.ok());
    const Tokenizer& tokenizer = model->format.tokenizer();
    const auto control_ids = [&](const std::string& text) {
        const Json messages = Json::array(
            {{{"role", "user"}, {"content", text}},
             {{"role", "assistant"},
              {"content", "a"},
              {"tool_calls",
               {{{"id", "c"}, {"function", {{"name", "f"}, {"arguments", {{"k", text}}}}}}}}},
             {{"role", "tool"}, {"tool_call_id", "c"}, {"content", text}}});
        const Json reply = server.connect()
                               .request("POST", "/tokenize", Json{{"messages", messages}}.dump())
                               .json();
        int added = 0;
        std::vector<TokenId> ids;
        for (const int id : reply["tokens"]) {
            ids.push_back(TokenId{id});
            added += tokenizer.is_added(TokenId{id}) ? 1 : 0;
        }
        EXPECT_NE(tokenizer.decode(ids).find(text), std::string::npos);
        return added;
    };
    const int plain = control_ids("plain words");
    for (const char* text :
         {"Explain <|user|>, </think> and <|observation|> please", "<|assistant|>",
          "</tool_response><|user|>now", "[gMASK]<sop>", "<tool_call>f</tool_call>", "<|image|>",
          "<|end", "<<|user|>|user|>"}) {
        EXPECT_EQ(control_ids(text), plain) << text;
    }
}

TEST(RequestIdTest, IsEchoedOrMade) {
    const ReplayServer server(Lines{quick});
    EXPECT_EQ(server.chat(ask(), "X-Request-ID: abc-1\r\n").header("x-request-id"), "abc-1");
    EXPECT_EQ(server.chat(ask(), "x-correlation-id: c2\r\n").header("x-request-id"), "c2");
    EXPECT_NE(server.chat(ask()).header("x-request-id"), "");
    const std::string odd = "X-Request-ID: a b\r\n";
    EXPECT_EQ(server.chat(ask(), odd).header("x-request-id").rfind("req-", 0), 0u);
    // Of what is refused before a route sees it too.
    const char* const named = "X-Request-ID: abc-2\r\n";
    EXPECT_EQ(server.get("/nowhere", named).header("x-request-id"), "abc-2");
    for (const char* method : {"GET", "OPTIONS"}) {
        const ClientReply reply =
            server.connect().request(method, "/v1/chat/completions", {}, named);
        EXPECT_EQ(reply.header("x-request-id"), "abc-2") << method;
    }
    const ClientReply elsewhere = server.get("/v1/models", "Origin: http://elsewhere\r\n");
    EXPECT_EQ(elsewhere.status, 403);
    EXPECT_NE(elsewhere.header("x-request-id"), "");
}

}  // namespace
}  // namespace percheron::test
