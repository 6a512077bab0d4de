// Anthropic's messages over the real server and a replay: the order of events for every cut, bodies
// that mean what chat bodies mean, errors in Anthropic's form.
#include <gtest/gtest.h>

#include "server/named_events.h"
#include "server/recording_engine.h"
#include "server/understood.h"
#include "support/base64.h"
#include "support/plain_png.h"

namespace percheron::test {
namespace {

ClientReply post(const ReplayServer& server, const Json& body, const char* path = "/v1/messages") {
    return server.connect().request("POST", path, body.dump());
}

Json message_tool(const std::string& name, const Json& properties) {
    return {{"name", name},
            {"description", "Does it."},
            {"input_schema", {{"type", "object"}, {"properties", properties}}}};
}

// The message that a stream adds up to, checked event by event.
Json joined(const std::vector<Json>& events) {
    if (events.size() < 3) return {};
    EXPECT_EQ(events.front()["type"], "message_start");
    EXPECT_EQ(events[events.size() - 2]["type"], "message_delta");
    EXPECT_EQ(events.back()["type"], "message_stop");
    Json message = events.front()["message"];
    EXPECT_EQ(message["content"], Json::array());
    EXPECT_EQ(message["usage"]["output_tokens"], 0);
    std::string partial;
    bool open = false;
    bool is_signed = false;
    for (std::size_t i = 1; i + 2 < events.size(); ++i) {
        const Json& event = events[i];
        Json& content = message["content"];
        if (event["type"] == "content_block_start") {
            EXPECT_FALSE(open);
            EXPECT_EQ(event["index"], content.size());
            content.push_back(event["content_block"]);
            open = true;
            is_signed = false;
            partial.clear();
            continue;
        }
        EXPECT_TRUE(open);
        EXPECT_EQ(event["index"], content.size() - 1);
        Json& block = content.back();
        if (event["type"] == "content_block_delta") {
            const Json& delta = event["delta"];
            EXPECT_FALSE(is_signed);
            if (delta["type"] == "text_delta") {
                block["text"] = block["text"].get<std::string>() + delta["text"].get<std::string>();
            } else if (delta["type"] == "thinking_delta") {
                block["thinking"] =
                    block["thinking"].get<std::string>() + delta["thinking"].get<std::string>();
            } else if (delta["type"] == "signature_delta") {
                block["signature"] = delta["signature"];
                is_signed = true;
            } else {
                EXPECT_EQ(delta["type"], "input_json_delta");
                partial += delta["partial_json"].get<std::string>();
            }
        } else {
            EXPECT_EQ(event["type"], "content_block_stop");
            if (block["type"] == "tool_use") block["input"] = Json::parse(partial);
            if (block["type"] == "thinking") {
                EXPECT_TRUE(is_signed);
            }
            open = false;
        }
    }
    EXPECT_FALSE(open);
    const Json& end = events[events.size() - 2];
    message.update(end["delta"]);
    message["usage"].update(end["usage"]);
    message["seed"] = end["seed"];
    return message;
}

Json without_ids(Json message) {
    EXPECT_EQ(message["type"], "message");
    EXPECT_EQ(message["id"].get<std::string>().substr(0, 4), "msg_");
    message.erase("id");
    for (Json& block : message["content"]) {
        if (block.contains("signature")) {
            EXPECT_NE(block["signature"], "");
            block.erase("signature");
        }
        if (block["type"] == "tool_use") {
            EXPECT_NE(block["id"], "");
            block.erase("id");
        }
    }
    return message;
}

Json same_for_every_cut(const std::vector<TokenId>& ids, const Json& request) {
    return test::same_for_every_cut(
        ids, request,
        [](const ReplayServer& server, const Json& body) {
            return without_ids(post(server, body).json());
        },
        [](const ReplayServer& server, const Json& body) {
            return without_ids(joined(named_events(post(server, body))));
        });
}

Json ask_messages(const std::string& text = "Go on.") {
    return {{"max_tokens", 500}, {"messages", user_message(text)}};
}

TEST(Messages, ThinkingTextAndCallComeInOrderForEveryCut) {
    Json request = ask_messages();
    request["tools"] = {message_tool(
        "set_alarm", {{"hour", {{"type", "integer"}}}, {"label", {{"type", "string"}}}})};
    const auto ids = tokens_of(
        "Six o'clock.</think>Done soon.<tool_call>set_alarm<arg_key>hour</arg_key><arg_value>7"
        "</arg_value><arg_key>label</arg_key><arg_value>gym bag</arg_value></tool_call>"
        "<|observation|>");
    const Json message = same_for_every_cut(ids, request);
    const Json& content = message["content"];
    ASSERT_EQ(content.size(), 3u);
    EXPECT_EQ(content[0], Json({{"type", "thinking"}, {"thinking", "Six o'clock."}}));
    EXPECT_EQ(content[1], Json({{"type", "text"}, {"text", "Done soon."}}));
    EXPECT_EQ(content[2]["name"], "set_alarm");
    EXPECT_EQ(content[2]["input"], Json({{"hour", 7}, {"label", "gym bag"}}));
    EXPECT_EQ(message["stop_reason"], "tool_use");
    EXPECT_TRUE(message["stop_sequence"].is_null());
    EXPECT_EQ(message["usage"]["output_tokens"], ids.size());
}

TEST(Messages, EndsAreNamedAsTheApiDoes) {
    Json request = ask_messages();
    const auto plain = tokens_of("a</think>b c<|user|>");
    EXPECT_EQ(same_for_every_cut(plain, request)["stop_reason"], "end_turn");
    request["stop_sequences"] = {"zz", "STOP"};
    const Json stopped = same_for_every_cut(tokens_of("a</think>red STOP green"), request);
    EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
    EXPECT_EQ(stopped["stop_sequence"], "STOP");
    EXPECT_EQ(stopped["content"].back()["text"], "red ");
    request["max_tokens"] = 2;
    const Json cut = same_for_every_cut(tokens_of("one two three four"), request);
    EXPECT_EQ(cut["stop_reason"], "max_tokens");
    EXPECT_EQ(cut["usage"]["output_tokens"], 2);
    // A call that the end cuts is nothing to be run.
    request["max_tokens"] = 8;
    request["tools"] = {message_tool("f", {{"a", {{"type", "string"}}}})};
    const ReplayServer server(
        Lines{{{"match", ""},
               {"steps", {"</think><tool_call>f<arg_key>a</arg_key><arg_value>long long long"}}}});
    const Json broken = post(server, request).json();
    EXPECT_EQ(broken["stop_reason"], "max_tokens");
    EXPECT_EQ(broken["content"], Json::array());
}

struct Recorded {
    Recording recording;
    ReplayServer server;
    explicit Recorded(const Lines& lines = {{{"match", ""}, {"steps", {"a</think>ok"}}}})
        : server(lines, options()) {}

    ReplayServerOptions options() {
        ReplayServerOptions options;
        options.wrap = [this](std::unique_ptr<Engine> engine) {
            return std::make_unique<RecordingEngine>(std::move(engine), recording);
        };
        return options;
    }
};

// The same conversation in both forms is the same prompt, limits and sampling.
TEST(Messages, MeanWhatTheChatBodyMeans) {
    Recorded recorded;
    const Json call{{"id", "c1"},
                    {"type", "function"},
                    {"function", {{"name", "look"}, {"arguments", {{"at", "x"}}}}}};
    const Json history =
        Json::array({{{"role", "system"}, {"content", "Be brief.\nBe kind."}},
                     {{"role", "user"}, {"content", "Look."}},
                     {{"role", "assistant"},
                      {"content", "I look."},
                      {"reasoning_content", "Hm."},
                      {"tool_calls", {call}}},
                     {{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "a wall"}},
                     {{"role", "user"}, {"content", "And now?"}}});
    const Json tools = {tool("look", {{"at", {{"type", "string"}}}})};
    recorded.server.chat({{"messages", history},
                          {"tools", tools},
                          {"stop", {"X"}},
                          {"max_tokens", 77},
                          {"temperature", 0.5},
                          {"top_k", 9},
                          {"reasoning_effort", "low"},
                          {"seed", 3}});
    const GenerationRequest expected = recorded.recording.latest();
    const Json assistant = Json::array(
        {{{"type", "thinking"}, {"thinking", "Hm."}, {"signature", "s"}},
         {{"type", "redacted_thinking"}, {"data", "zzz"}},
         {{"type", "text"}, {"text", "I look."}},
         {{"type", "tool_use"}, {"id", "c1"}, {"name", "look"}, {"input", {{"at", "x"}}}}});
    const auto result = [](const Json& content) {
        return Json::array(
            {{{"type", "tool_result"}, {"tool_use_id", "c1"}, {"content", content}},
             {{"type", "text"}, {"text", "And now?"}, {"cache_control", {{"type", "ephemeral"}}}}});
    };
    const Json systems[] = {
        "Be brief.\nBe kind.", "x-anthropic-billing-header: cch=1;\nBe brief.\nBe kind.",
        Json::array({{{"type", "text"}, {"text", "x-anthropic-billing-header: cc_version=2.1"}},
                     {{"type", "text"}, {"text", "Be brief."}},
                     {{"type", "text"}, {"text", "Be kind."}}})};
    const Json results[] = {"a wall", Json::array({{{"type", "text"}, {"text", "a wall"}}})};
    for (const Json& system : systems) {
        for (const Json& content : results) {
            Json messages = Json::array({{{"role", "user"}, {"content", "Look."}},
                                         {{"role", "assistant"}, {"content", assistant}},
                                         {{"role", "user"}, {"content", result(content)}}});
            const Json body{
                {"model", "nano"},
                {"max_tokens", 77},
                {"system", system},
                {"messages", messages},
                {"stop_sequences", {"X"}},
                {"temperature", 0.5},
                {"top_k", 9},
                {"seed", 3},
                {"metadata", {{"user_id", "u"}}},
                {"thinking", {{"type", "adaptive"}}},
                {"output_config", {{"effort", "low"}}},
                {"tool_choice", {{"type", "auto"}}},
                {"tools",
                 {{{"name", "look"}, {"input_schema", tools[0]["function"]["parameters"]}},
                  {{"type", "web_search_20250305"}, {"name", "web_search"}}}}};
            const ClientReply reply = post(recorded.server, body);
            ASSERT_EQ(reply.status, 200) << reply.body;
            const GenerationRequest got = recorded.recording.latest();
            EXPECT_EQ(got.prompt, expected.prompt) << nano_tokenizer().decode(got.prompt);
            EXPECT_EQ(got.max_tokens, expected.max_tokens);
            EXPECT_EQ(got.sampling.temperature, expected.sampling.temperature);
            EXPECT_EQ(got.sampling.top_k, expected.sampling.top_k);
            EXPECT_EQ(got.sampling.seed, expected.sampling.seed);
            const Json counted = post(recorded.server, body, "/v1/messages/count_tokens").json();
            EXPECT_EQ(counted["input_tokens"], got.prompt.size());
            EXPECT_EQ(reply.json()["usage"]["input_tokens"], got.prompt.size());
        }
    }
}

TEST(Messages, SystemMessagesKeepTheirPlaceAndTextIsContinued) {
    Recorded recorded;
    const Json messages = Json::array({{{"role", "user"}, {"content", "One."}},
                                       {{"role", "system"}, {"content", "Now in French."}},
                                       {{"role", "user"}, {"content", "Two."}}});
    recorded.server.chat({{"messages", messages}});
    const auto expected = recorded.recording.latest().prompt;
    ASSERT_EQ(post(recorded.server, {{"max_tokens", 9}, {"messages", messages}}).status, 200);
    EXPECT_EQ(recorded.recording.latest().prompt, expected);

    Json prefilled = user_message("Name one.");
    prefilled.push_back({{"role", "assistant"}, {"content", "The answer is"}});
    ASSERT_EQ(post(recorded.server, {{"max_tokens", 9}, {"messages", prefilled}}).status, 200);
    const std::string prompt = nano_tokenizer().decode(recorded.recording.latest().prompt);
    EXPECT_TRUE(prompt.ends_with("</think>The answer is")) << prompt;
    prefilled.back()["content"] = Json::array(
        {{{"type", "tool_use"}, {"id", "c"}, {"name", "f"}, {"input", Json::object()}}});
    EXPECT_EQ(post(recorded.server, {{"messages", prefilled}}).status, 400);
}

TEST(Messages, PicturesStandWhereTheyWereSent) {
    Recorded recorded;
    const std::string data = base64(plain_png(40, 30));
    const std::string url = "data:image/png;base64," + data;
    const Json source{{"type", "base64"}, {"media_type", "image/png"}, {"data", data}};
    const Json picture{{"type", "image"}, {"source", source}};
    const Json part{{"type", "image_url"}, {"image_url", {{"url", url}}}};
    const Json text{{"type", "text"}, {"text", "What?"}};
    recorded.server.chat({{"messages", {{{"role", "user"}, {"content", {part, text, part}}}}}});
    const GenerationRequest expected = recorded.recording.latest();
    ASSERT_EQ(expected.images.size(), 2u);
    const Json body{{"max_tokens", 9},
                    {"messages", {{{"role", "user"}, {"content", {picture, text, picture}}}}}};
    ASSERT_EQ(post(recorded.server, body).status, 200);
    const GenerationRequest got = recorded.recording.latest();
    EXPECT_EQ(got.prompt, expected.prompt);
    ASSERT_EQ(got.images.size(), 2u);
    EXPECT_EQ(got.images[1].content_hash, expected.images[1].content_hash);
    EXPECT_EQ(post(recorded.server, body, "/v1/messages/count_tokens").json()["input_tokens"],
              got.prompt.size());
    // What is wrong with one is said of its place in the client's own body.
    Json broken = body;
    broken["system"] = "Hm.";
    broken["messages"][0]["content"][2]["source"]["data"] = "AAAA";
    EXPECT_EQ(post(recorded.server, broken).json()["error"]["param"], "messages[0].content[2]");
    broken["messages"][0]["content"][2]["source"] = {{"type", "url"}, {"url", "https://a.b/c"}};
    EXPECT_EQ(post(recorded.server, broken).status, 400);
}

TEST(Messages, ErrorsHaveTheirForm) {
    ReplayServerOptions options;
    options.server.strict_model = true;
    const ReplayServer server(
        Lines{{{"match", "break"}, {"steps", {"</think>x"}}, {"finish", "error"}}}, options);
    const auto expect_error = [&](const ClientReply& reply, int status, const std::string& type,
                                  const std::string& param) {
        EXPECT_EQ(reply.status, status) << reply.body;
        const Json json = reply.json();
        EXPECT_EQ(json["type"], "error");
        EXPECT_EQ(json["error"]["type"], type) << reply.body;
        EXPECT_NE(json["error"]["message"], "");
        if (!param.empty()) {
            EXPECT_EQ(json["error"]["param"], param) << reply.body;
        }
    };
    const std::string invalid = "invalid_request_error";
    const std::vector<std::pair<Json, std::string>> wrong{
        {Json::object(), "messages"},
        {{{"messages", Json::array()}}, "messages"},
        {{{"messages", {{{"role", "robot"}, {"content", "x"}}}}}, "messages[0].role"},
        {{{"messages", {{{"role", "user"}}}}}, "messages[0].content"},
        {{{"messages", {{{"role", "user"}, {"content", {5}}}}}}, "messages[0].content[0]"},
        {{{"messages", {{{"role", "user"}, {"content", {{{"type", "video"}}}}}}}},
         "messages[0].content[0]"},
        {{{"messages", user_message("x")}, {"system", 5}}, "system"},
        {{{"messages", user_message("x")}, {"max_tokens", 0}}, "max_tokens"},
        {{{"messages", user_message("x")}, {"temperature", 3}}, "temperature"},
        {{{"messages", user_message("x")}, {"stop_sequences", 5}}, "stop_sequences"},
        {{{"messages", user_message("x")}, {"tools", {{{"name", ""}}}}}, "tools[0].name"},
        {{{"messages", user_message("x")}, {"tool_choice", {{"type", "maybe"}}}}, "tool_choice"},
        {{{"messages", user_message("x")},
          {"thinking", {{"type", "enabled"}, {"budget_tokens", -1}}}},
         "thinking.budget_tokens"},
        {{{"messages", user_message("x")}, {"output_config", {{"effort", "none"}}}},
         "output_config.effort"},
        {{{"messages", user_message("x")}, {"n", 2}}, "n"},
        {{{"messages", user_message(std::string(60000, '7'))}}, "messages"}};
    for (const auto& [body, param] : wrong) {
        expect_error(post(server, body), 400, invalid, param);
        const bool rendered = param.substr(0, 8) == "messages";
        if (rendered) post(server, body, "/v1/messages/count_tokens");
    }
    expect_error(server.connect().request("POST", "/v1/messages", "{"), 400, invalid, "");
    expect_error(post(server, {{"model", "other"}, {"messages", user_message("x")}}), 404,
                 "not_found_error", "model");
    expect_error(server.get("/v1/messages"), 405, invalid, "");
    expect_error(post(server, {{"messages", user_message("break")}}), 500, "api_error", "");
    const ClientReply stream =
        post(server, {{"messages", user_message("break")}, {"stream", true}});
    const auto events = named_events(stream);
    ASSERT_GT(events.size(), 2u);
    EXPECT_EQ(events.back()["type"], "error");
    EXPECT_EQ(events.back()["error"]["code"], "numerical_fault");
}

}  // namespace
}  // namespace percheron::test
