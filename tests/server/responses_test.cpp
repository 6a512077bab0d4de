// The Responses API over the real server and a replay: the whole sequence of events for every cut,
// items that mean what chat messages mean, stored turns, tools of every kind.
#include <gtest/gtest.h>

#include "server/named_events.h"
#include "server/recording_engine.h"
#include "server/response_store.h"
#include "server/understood.h"
#include "support/base64.h"
#include "support/plain_png.h"

namespace percheron::test {
namespace {

ClientReply post(const ReplayServer& server, const Json& body) {
    return server.connect().request("POST", "/v1/responses", body.dump());
}

Json flat_tool(const std::string& name, const Json& properties) {
    return {{"type", "function"},
            {"name", name},
            {"parameters", {{"type", "object"}, {"properties", properties}}}};
}

// What is certain of every stream: numbers, one item at a time in order, texts that join, ids that
// are those of the final object.  Returns the final object.
Json checked(const std::vector<Json>& events) {
    std::size_t number = 0;
    std::size_t items = 0;
    bool open = false;
    std::string text;
    std::vector<Json> done;
    for (const Json& event : events) {
        EXPECT_EQ(event["sequence_number"], number++);
        const std::string type = event["type"];
        if (type == "response.output_item.added") {
            EXPECT_FALSE(open);
            EXPECT_EQ(event["output_index"], items);
            EXPECT_EQ(event["item"]["status"], "in_progress");
            open = true;
            text.clear();
        } else if (type == "response.output_item.done") {
            EXPECT_TRUE(open);
            EXPECT_EQ(event["output_index"], items++);
            done.push_back(event["item"]);
            open = false;
        } else if (event.contains("output_index")) {
            EXPECT_TRUE(open);
            EXPECT_EQ(event["output_index"], items);
            if (event.contains("delta")) text += event["delta"].get<std::string>();
            for (const char* whole : {"text", "arguments", "input"}) {
                if (event.contains(whole)) {
                    EXPECT_EQ(event[whole], text) << type;
                }
            }
        }
    }
    EXPECT_FALSE(open);
    if (events.size() < 3) return {};
    EXPECT_EQ(events[0]["type"], "response.created");
    EXPECT_EQ(events[1]["type"], "response.in_progress");
    const Json& last = events.back();
    EXPECT_EQ(last["type"], "response." + last["response"]["status"].get<std::string>());
    EXPECT_EQ(last["response"]["id"], events[0]["response"]["id"]);
    EXPECT_EQ(last["response"]["output"], Json(done));
    for (const Json& event : events) {
        if (event.contains("item_id")) {
            EXPECT_EQ(event["item_id"], done.at(event["output_index"])["id"]);
        }
    }
    return last["response"];
}

Json without_ids(Json response) {
    EXPECT_EQ(response["id"].get<std::string>().substr(0, 5), "resp_");
    response.erase("id");
    response.erase("created_at");
    for (Json& item : response["output"]) {
        EXPECT_NE(item["id"], "");
        item.erase("id");
        if (item.contains("call_id")) item["call_id"] = "";
    }
    return response;
}

Json same_for_every_cut(const std::vector<TokenId>& ids, const Json& request) {
    return test::same_for_every_cut(
        ids, request,
        [](const ReplayServer& server, const Json& body) {
            const ClientReply reply = post(server, body);
            EXPECT_EQ(reply.status, 200) << reply.body;
            return without_ids(reply.json());
        },
        [](const ReplayServer& server, const Json& body) {
            return without_ids(checked(named_events(post(server, body))));
        });
}

TEST(Responses, TextAndCallsForEveryCutWithToolsOfEveryKind) {
    const Json tools =
        Json::array({flat_tool("set_alarm", {{"hour", {{"type", "integer"}}}}),
                     {{"type", "custom"}, {"name", "patch"}, {"description", "Edits."}},
                     {{"type", "web_search"}},
                     {{"type", "namespace"},
                      {"name", "files"},
                      {"tools", {flat_tool("list_files", Json::object())}}}});
    const auto ids = tokens_of(
        "Hm.</think>Now.<tool_call>set_alarm<arg_key>hour</arg_key><arg_value>7</arg_value>"
        "</tool_call><tool_call>patch<arg_key>input</arg_key><arg_value>+ \"a\"\n</arg_value>"
        "</tool_call><tool_call>list_files</tool_call><|observation|>");
    const Json response = same_for_every_cut(ids, {{"input", "Go."}, {"tools", tools}});
    EXPECT_EQ(response["status"], "completed");
    EXPECT_EQ(response["object"], "response");
    EXPECT_EQ(response["model"], "nano");
    EXPECT_EQ(response["tools"], tools);
    const Json& output = response["output"];
    ASSERT_EQ(output.size(), 5u);
    EXPECT_EQ(output[0]["type"], "reasoning");
    EXPECT_EQ(output[0]["content"][0]["text"], "Hm.");
    EXPECT_EQ(output[1]["type"], "message");
    EXPECT_EQ(output[1]["content"][0]["text"], "Now.");
    EXPECT_EQ(output[2]["type"], "function_call");
    EXPECT_EQ(output[2]["name"], "set_alarm");
    EXPECT_EQ(Json::parse(output[2]["arguments"].get<std::string>()), Json({{"hour", 7}}));
    EXPECT_EQ(output[3]["type"], "custom_tool_call");
    EXPECT_EQ(output[3]["input"], "+ \"a\"\n");
    EXPECT_EQ(output[4]["arguments"], "{}");
    EXPECT_EQ(output[4]["namespace"], "files");
    EXPECT_EQ(response["usage"]["output_tokens"], ids.size());
    EXPECT_EQ(response["usage"]["output_tokens_details"]["reasoning_tokens"],
              tokens_of("Hm.").size());
}

TEST(Responses, TruncationIsSaid) {
    const Json text = same_for_every_cut(tokens_of("a</think>one two three four five"),
                                         {{"input", "Go."}, {"max_output_tokens", 4}});
    EXPECT_EQ(text["status"], "incomplete");
    EXPECT_EQ(text["incomplete_details"]["reason"], "max_output_tokens");
    EXPECT_EQ(text["output"].back()["status"], "incomplete");
    EXPECT_EQ(text["stop_reason"], "max_tokens");
    const Json thought = same_for_every_cut(tokens_of("on and on and on"),
                                            {{"input", "Go."}, {"max_output_tokens", 3}});
    EXPECT_EQ(thought["output"].size(), 1u);
    EXPECT_EQ(thought["output"][0]["type"], "reasoning");
}

TEST(Responses, NumbersComeBackAsTheyWereSent) {
    for (const char* number : {"0.95", "0.1", "0.3", "0.7", "1e-05", "1", "0.123456"}) {
        const Json value = Json::parse(number);
        const Json response = same_for_every_cut(
            tokens_of("a</think>b"), {{"input", "Go."}, {"temperature", value}, {"top_p", value}});
        EXPECT_EQ(response["temperature"].get<double>(), value.get<double>());
        EXPECT_EQ(response["top_p"].get<double>(), value.get<double>());
    }
}

struct Recorded {
    Recording recording;
    ReplayServer server;
    explicit Recorded(const Lines& lines, ReplayServerOptions options = {})
        : server(lines, with_recording(std::move(options))) {}

    ReplayServerOptions with_recording(ReplayServerOptions options) {
        options.wrap = [this](std::unique_ptr<Engine> engine) {
            return std::make_unique<RecordingEngine>(std::move(engine), recording);
        };
        return options;
    }
};

TEST(Responses, ItemsMeanWhatChatMessagesMean) {
    Recorded recorded(Lines{{{"match", ""}, {"steps", {"a</think>ok"}}}});
    const std::string url = "data:image/png;base64," + base64(plain_png(40, 30));
    const Json tools = {tool("look", {{"at", {{"type", "string"}}}})};
    const Json call{{"id", "c1"},
                    {"type", "function"},
                    {"function", {{"name", "look"}, {"arguments", {{"at", "x"}}}}}};
    const Json picture{{"type", "image_url"}, {"image_url", {{"url", url}}}};
    const Json what{{"type", "text"}, {"text", "What?"}};
    recorded.server.chat({{"messages",
                           {{{"role", "system"}, {"content", "Be brief."}},
                            {{"role", "user"}, {"content", {what, picture}}},
                            {{"role", "assistant"},
                             {"content", "I look."},
                             {"reasoning_content", "Hm."},
                             {"tool_calls", {call}}},
                            {{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "a wall"}},
                            {{"role", "system"}, {"content", "Hurry."}},
                            {{"role", "user"}, {"content", "And now?"}}}},
                          {"tools", tools},
                          {"max_tokens", 70},
                          {"reasoning_effort", "low"}});
    const GenerationRequest expected = recorded.recording.latest();
    ASSERT_EQ(expected.images.size(), 1u);
    const Json outputs[] = {"a wall", Json::array({{{"type", "input_text"}, {"text", "a wall"}}})};
    for (const Json& output : outputs) {
        const Json input =
            Json::array({{{"type", "message"},
                          {"role", "user"},
                          {"content",
                           {{{"type", "input_text"}, {"text", "What?"}},
                            {{"type", "input_image"}, {"image_url", url}, {"detail", "auto"}}}}},
                         {{"type", "reasoning"},
                          {"id", "rs_1"},
                          {"summary", Json::array()},
                          {"content", {{{"type", "reasoning_text"}, {"text", "Hm."}}}}},
                         {{"type", "message"},
                          {"role", "assistant"},
                          {"content", {{{"type", "output_text"}, {"text", "I look."}}}}},
                         {{"type", "function_call"},
                          {"call_id", "c1"},
                          {"name", "look"},
                          {"arguments", "{\"at\":\"x\"}"}},
                         {{"type", "web_search_call"}, {"id", "ws_1"}, {"status", "completed"}},
                         {{"type", "function_call_output"}, {"call_id", "c1"}, {"output", output}},
                         {{"role", "developer"}, {"content", "Hurry."}},
                         {{"role", "user"}, {"content", "And now?"}}});
        const ClientReply reply =
            post(recorded.server, {{"instructions", "Be brief."},
                                   {"input", input},
                                   {"tools", {flat_tool("look", {{"at", {{"type", "string"}}}})}},
                                   {"reasoning", {{"effort", "low"}, {"summary", "auto"}}},
                                   {"include", {"reasoning.encrypted_content"}},
                                   {"prompt_cache_key", "k"},
                                   {"max_output_tokens", 70}});
        ASSERT_EQ(reply.status, 200) << reply.body;
        const GenerationRequest got = recorded.recording.latest();
        EXPECT_EQ(got.prompt, expected.prompt) << nano_tokenizer().decode(got.prompt);
        EXPECT_EQ(got.max_tokens, expected.max_tokens);
        EXPECT_EQ(got.images.size(), 1u);
        EXPECT_EQ(reply.json()["reasoning"]["effort"], "low");
    }
}

TEST(Responses, TurnsGoOnFromStoredOnes) {
    Lines lines{{{"steps", {"t1</think>first"}}},
                {{"steps", {"</think><tool_call>f</tool_call><|observation|>"}}},
                {{"steps", {"t3</think>third"}}}};
    lines.resize(6, {{"steps", {"</think>x"}}});
    Recorded recorded(lines);
    const Json tools = {flat_tool("f", Json::object())};
    const Json one = post(recorded.server, {{"input", "One."}}).json();
    const auto events = named_events(post(recorded.server, {{"input", "Two."},
                                                            {"previous_response_id", one["id"]},
                                                            {"tools", tools},
                                                            {"stream", true}}));
    const Json two = checked(events);
    EXPECT_EQ(two["previous_response_id"], one["id"]);
    const Json call = two["output"].back();
    ASSERT_EQ(call["type"], "function_call");
    const Json result{
        {"type", "function_call_output"}, {"call_id", call["call_id"]}, {"output", "42"}};
    const Json three =
        post(recorded.server,
             {{"input", {result}}, {"previous_response_id", two["id"]}, {"tools", tools}})
            .json();
    const auto chained = recorded.recording.latest().prompt;
    // The same, all of it sent.
    Json whole = Json::array({{{"role", "user"}, {"content", "One."}}});
    for (const Json& item : one["output"])
        whole.push_back(item);
    whole.push_back({{"role", "user"}, {"content", "Two."}});
    for (const Json& item : two["output"])
        whole.push_back(item);
    whole.push_back(result);
    post(recorded.server, {{"input", whole}, {"tools", tools}, {"store", false}});
    EXPECT_EQ(recorded.recording.latest().prompt, chained) << nano_tokenizer().decode(chained);

    const auto path = [](const Json& response) {
        return "/v1/responses/" + response["id"].get<std::string>();
    };
    const auto remove = [&](const Json& response) {
        return recorded.server.connect().request("DELETE", path(response));
    };
    EXPECT_EQ(recorded.server.get(path(three)).json(), three);
    EXPECT_EQ(recorded.server.get(path(two)).json(), two);
    EXPECT_EQ(remove(two).json()["deleted"], true);
    EXPECT_EQ(remove(two).status, 404);
    EXPECT_EQ(recorded.server.get(path(two)).status, 404);
    // What went on from it still has it.
    EXPECT_EQ(
        post(recorded.server, {{"input", "Four."}, {"previous_response_id", three["id"]}}).status,
        200);
    const ClientReply lost =
        post(recorded.server, {{"input", "x"}, {"previous_response_id", two["id"]}});
    EXPECT_EQ(lost.status, 404);
    EXPECT_EQ(lost.json()["error"]["param"], "previous_response_id");
    const Json unkept = post(recorded.server, {{"input", "x"}, {"store", false}}).json();
    EXPECT_EQ(recorded.server.get(path(unkept)).status, 404);
}

TEST(Responses, WhatIsKeptIsBoundedAndItsOwnersAlone) {
    server::ResponseStore store(100'000);
    const Json item{{"text", std::string(2000, 'x')}, {"number", 5}, {"nothing", nullptr}};
    std::shared_ptr<const server::StoredResponse> previous;
    for (int i = 0; i < 200; ++i) {
        store.add({std::to_string(i), i % 2 == 0 ? "a" : "b", std::string(1000, 'o'),
                   Json::array({item}), Json::array(), i % 3 == 0 ? nullptr : previous});
        EXPECT_LE(store.bytes(), 110'000u) << i;
        previous = store.find(std::to_string(i), i % 2 == 0 ? "a" : "b");
        EXPECT_EQ(store.find(std::to_string(i), i % 2 == 0 ? "b" : "a"), nullptr);
        EXPECT_FALSE(store.erase(std::to_string(i), i % 2 == 0 ? "b" : "a"));
    }
    EXPECT_EQ(store.find("0", "a"), nullptr);
    EXPECT_NE(store.find("199", "b"), nullptr);
    EXPECT_TRUE(store.erase("199", "b"));
    EXPECT_EQ(store.find("199", "b"), nullptr);
}

TEST(Responses, WhatIsWrongIsNamed) {
    const ReplayServer server(
        Lines{{{"match", "break"}, {"steps", {"</think>x"}}, {"finish", "error"}}});
    const auto with_item = [](const Json& item) { return Json{{"input", {item}}}; };
    const std::vector<std::tuple<Json, std::string, std::string>> wrong{
        {Json::object(), "invalid_value", "input"},
        {{{"input", 5}}, "invalid_value", "input"},
        {{{"input", Json::array()}}, "invalid_value", "input"},
        {with_item(5), "invalid_value", "input[0]"},
        {with_item({{"role", "robot"}, {"content", "x"}}), "invalid_value", "input[0].role"},
        {with_item({{"role", "user"}}), "invalid_value", "input[0].content"},
        {with_item({{"type", "unheard"}}), "invalid_value", "input[0].type"},
        {with_item({{"type", "item_reference"}, {"id", "x"}}), "unsupported_parameter", "input[0]"},
        {with_item({{"type", "function_call"}, {"call_id", "c"}}), "invalid_value", "input[0]"},
        {with_item(
             {{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "["}}),
         "invalid_value", "input[0].arguments"},
        {with_item({{"role", "user"}, {"content", {{{"type", "input_file"}}}}}),
         "unsupported_parameter", "input[0].content[0]"},
        {with_item({{"role", "user"},
                    {"content", {{{"type", "input_image"}, {"image_url", "https://a/b"}}}}}),
         "invalid_value", "input[0].content[0]"},
        {{{"input", "x"}, {"max_output_tokens", 0}}, "invalid_value", "max_output_tokens"},
        {{{"input", "x"}, {"reasoning", {{"effort", "none"}}}},
         "invalid_value",
         "reasoning.effort"},
        {{{"input", "x"}, {"background", true}}, "unsupported_parameter", "background"},
        {{{"input", "x"}, {"conversation", "c"}}, "unsupported_parameter", "conversation"},
        {{{"input", "x"}, {"truncation", "auto"}}, "unsupported_parameter", "truncation"},
        {{{"input", "x"}, {"top_logprobs", 2}}, "unsupported_parameter", "top_logprobs"},
        {{{"input", "x"}, {"tools", 5}}, "invalid_value", "tools"},
        {{{"input", "x"}, {"tools", {{{"type", "function"}}}}}, "invalid_value", "tools[0].name"},
        {{{"input", "x"}, {"store", "no"}}, "invalid_value", "store"},
        {{{"input", "x"}, {"n", 2}}, "unsupported_parameter", "n"}};
    for (const auto& [body, code, param] : wrong) {
        const ClientReply reply = post(server, body);
        EXPECT_EQ(reply.status, 400) << body << reply.body;
        EXPECT_EQ(reply.json()["error"]["code"], code) << reply.body;
        EXPECT_EQ(reply.json()["error"]["param"], param) << reply.body;
    }
    EXPECT_EQ(post(server, {{"input", "break"}}).json()["error"]["code"], "numerical_fault");
    const auto events = named_events(post(server, {{"input", "break"}, {"stream", true}}));
    EXPECT_EQ(events.back()["type"], "response.failed");
    EXPECT_EQ(events.back()["response"]["error"]["code"], "numerical_fault");
}

}  // namespace
}  // namespace percheron::test
