// Chat completions over the real server and a replay: what a client sees, streamed and whole, for
// every way a reply's tokens may be cut into engine steps.
#include <random>

#include <gtest/gtest.h>

#include "server/replay_server.h"

namespace percheron::test {
namespace {

const Tokenizer& nano_tokenizer() {
    static const server::ServedModel model = std::move(*server::ServedModel::load(nano_folder()));
    return model.format.tokenizer();
}

// Tokens of a text written as replay strings are.
std::vector<TokenId> tokens_of(const std::string& text) {
    return nano_tokenizer().encode_trusted(text);
}

// Ordinary tokens alone.
std::vector<TokenId> plain_tokens_of(const std::string& text) {
    return nano_tokenizer().encode(text);
}

Json ids_json(const std::vector<TokenId>& ids) {
    Json list = Json::array();
    for (const TokenId id : ids)
        list.push_back(to_int(id));
    return list;
}

// The same tokens as steps of `size` tokens each.
Json steps_of(const std::vector<TokenId>& ids, std::size_t size) {
    Json steps = Json::array();
    for (std::size_t at = 0; at < ids.size(); at += size) {
        const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(at + size, ids.size()));
        steps.push_back(ids_json({ids.begin() + static_cast<std::ptrdiff_t>(at), end}));
    }
    return steps;
}

// All ways worth trying: each fixed size, and two steps with the border at each token.
std::vector<Json> all_step_forms(const std::vector<TokenId>& ids) {
    std::vector<Json> forms;
    for (std::size_t size = 1; size <= ids.size(); ++size)
        forms.push_back(steps_of(ids, size));
    for (std::size_t border = 1; border < ids.size(); ++border) {
        const auto middle = ids.begin() + static_cast<std::ptrdiff_t>(border);
        forms.push_back(
            Json::array({ids_json({ids.begin(), middle}), ids_json({middle, ids.end()})}));
    }
    return forms;
}

// A reply as its client understands it.
struct Understood {
    std::string content;
    std::string reasoning;
    struct Call {
        std::string id, name, arguments;
        int starts = 0;
    };
    std::vector<Call> calls;
    std::string finish;
    std::string stop_reason;
    Json usage;
    std::vector<int> token_ids;
};

Understood understand_whole(const ClientReply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    Understood result;
    const Json json = reply.json();
    EXPECT_EQ(json["object"], "chat.completion");
    const Json& choice = json["choices"][0];
    const Json& message = choice["message"];
    EXPECT_EQ(message["role"], "assistant");
    if (message["content"].is_string()) result.content = message["content"];
    if (message.contains("reasoning_content")) {
        result.reasoning = message["reasoning_content"];
        EXPECT_EQ(message["reasoning"], message["reasoning_content"]);
    }
    if (message.contains("tool_calls")) {
        for (const Json& call : message["tool_calls"]) {
            EXPECT_EQ(call["type"], "function");
            result.calls.push_back(
                {call["id"], call["function"]["name"], call["function"]["arguments"], 1});
        }
    }
    result.finish = choice["finish_reason"];
    result.stop_reason = choice["stop_reason"];
    result.usage = json["usage"];
    if (choice.contains("token_ids"))
        result.token_ids = choice["token_ids"].get<std::vector<int>>();
    return result;
}

void take_delta(const Json& delta, Understood& result) {
    for (const auto& [key, value] : delta.items()) {
        EXPECT_FALSE(value.is_null()) << key;
    }
    if (delta.contains("content")) result.content += delta["content"].get<std::string>();
    if (delta.contains("reasoning_content")) {
        result.reasoning += delta["reasoning_content"].get<std::string>();
        EXPECT_EQ(delta["reasoning"], delta["reasoning_content"]);
    }
    if (!delta.contains("tool_calls")) return;
    for (const Json& call : delta["tool_calls"]) {
        const std::size_t index = call["index"];
        if (index >= result.calls.size()) {
            EXPECT_EQ(index, result.calls.size());
            result.calls.resize(index + 1);
        }
        auto& known = result.calls[index];
        if (call.contains("id")) {
            ++known.starts;
            known.id = call["id"];
            known.name = call["function"]["name"];
            EXPECT_EQ(call["type"], "function");
        } else {
            EXPECT_FALSE(call["function"].contains("name"));
        }
        known.arguments += call["function"]["arguments"].get<std::string>();
    }
}

Understood understand_stream(const ClientReply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.header("content-type"), "text/event-stream");
    EXPECT_TRUE(reply.whole);
    const EventStream stream(reply.body);
    EXPECT_TRUE(stream.well_formed) << reply.body;
    EXPECT_TRUE(stream.done);
    Understood result;
    bool first = true;
    for (const Json& event : stream.events) {
        EXPECT_EQ(event["object"], "chat.completion.chunk");
        if (event.contains("usage")) result.usage = event["usage"];
        if (event["choices"].empty()) continue;
        const Json& choice = event["choices"][0];
        EXPECT_EQ(choice["delta"].contains("role"), first);
        first = false;
        take_delta(choice["delta"], result);
        if (!choice["finish_reason"].is_null()) {
            EXPECT_EQ(result.finish, "");
            result.finish = choice["finish_reason"];
            result.stop_reason = choice["stop_reason"];
        }
        if (choice.contains("token_ids")) {
            for (const int id : choice["token_ids"])
                result.token_ids.push_back(id);
        }
    }
    return result;
}

void expect_equal(const Understood& streamed, const Understood& whole) {
    EXPECT_EQ(streamed.content, whole.content);
    EXPECT_EQ(streamed.reasoning, whole.reasoning);
    ASSERT_EQ(streamed.calls.size(), whole.calls.size());
    for (std::size_t i = 0; i < whole.calls.size(); ++i) {
        EXPECT_EQ(streamed.calls[i].name, whole.calls[i].name);
        EXPECT_EQ(streamed.calls[i].arguments, whole.calls[i].arguments);
        EXPECT_EQ(streamed.calls[i].starts, 1);
        for (std::size_t k = 0; k < i; ++k)
            EXPECT_NE(whole.calls[i].id, whole.calls[k].id);
    }
    EXPECT_EQ(streamed.finish, whole.finish);
    EXPECT_EQ(streamed.stop_reason, whole.stop_reason);
    EXPECT_EQ(streamed.usage, whole.usage);
    EXPECT_EQ(streamed.token_ids, whole.token_ids);
}

// Sends the request streamed and whole to each step form, expects all to be the same, and returns
// what they are.
Understood same_for_all_steps(const std::vector<Json>& forms, Json request,
                              Json line = Json::object(), ReplayServerOptions options = {}) {
    std::vector<Json> lines;
    for (const Json& steps : forms) {
        line["steps"] = steps;
        lines.push_back(line);
        lines.push_back(line);
    }
    const ReplayServer server(lines, options);
    Understood expected;
    for (std::size_t i = 0; i < forms.size(); ++i) {
        SCOPED_TRACE("steps " + forms[i].dump());
        request["stream"] = false;
        const Understood whole = understand_whole(server.chat(request));
        request["stream"] = true;
        request["stream_options"] = {{"include_usage", true}};
        const Understood streamed = understand_stream(server.chat(request));
        expect_equal(streamed, whole);
        if (i == 0) {
            expected = whole;
        } else {
            Understood again = whole;
            expect_equal(again, expected);
        }
        if (testing::Test::HasFailure()) break;
    }
    return expected;
}

Json ask(const std::string& text = "Go on.") {
    return {{"messages", user_message(text)}};
}

Json tool(const std::string& name, const Json& properties) {
    return {{"type", "function"},
            {"function",
             {{"name", name}, {"parameters", {{"type", "object"}, {"properties", properties}}}}}};
}

// ---- tool calls -------------------------------------------------------------------------------

TEST(ChatTools, OneCallIsTheSameForEveryCut) {
    Json request = ask();
    request["tools"] = Json::array(
        {tool("set_alarm", {{"hour", {{"type", "integer"}}}, {"label", {{"type", "string"}}}})});
    const auto ids = tokens_of(
        "Let me see.</think><tool_call>set_alarm<arg_key>hour</arg_key><arg_value>7</arg_value>"
        "<arg_key>label</arg_key><arg_value>gym bag</arg_value></tool_call><|observation|>");
    const Understood reply = same_for_all_steps(all_step_forms(ids), request);
    ASSERT_EQ(reply.calls.size(), 1u);
    EXPECT_EQ(reply.calls[0].name, "set_alarm");
    EXPECT_EQ(Json::parse(reply.calls[0].arguments), Json({{"hour", 7}, {"label", "gym bag"}}));
    EXPECT_EQ(reply.finish, "tool_calls");
    EXPECT_EQ(reply.stop_reason, "tool_calls");
    EXPECT_EQ(reply.content, "");
    EXPECT_EQ(reply.reasoning, "Let me see.");
}

TEST(ChatTools, ParallelCallsHaveRisingIndexesAndOwnIds) {
    Json request = ask();
    request["tools"] = Json::array(
        {tool("list_rooms", Json::object()), tool("book", {{"room", {{"type", "string"}}}})});
    const auto ids = tokens_of(
        "x</think>I look.<tool_call>list_rooms</tool_call><tool_call>book<arg_key>room</arg_key>"
        "<arg_value>12</arg_value></tool_call><tool_call>list_rooms</tool_call><|observation|>");
    const Understood reply = same_for_all_steps(all_step_forms(ids), request);
    ASSERT_EQ(reply.calls.size(), 3u);
    EXPECT_EQ(reply.calls[0].arguments, "{}");
    EXPECT_EQ(Json::parse(reply.calls[1].arguments), Json({{"room", "12"}}));
    EXPECT_EQ(reply.calls[2].name, "list_rooms");
    EXPECT_EQ(reply.content, "I look.");
}

TEST(ChatTools, CallWithoutArgumentsIsAnnouncedBeforeTheEnd) {
    Json request = ask();
    request["tools"] = Json::array({tool("list_rooms", Json::object())});
    request["stream"] = true;
    const auto ids = tokens_of("</think><tool_call>list_rooms</tool_call><|observation|>");
    for (std::size_t size = 1; size <= ids.size(); ++size) {
        const ReplayServer server(Lines{{{"steps", steps_of(ids, size)}}});
        const EventStream stream(server.chat(request).body);
        std::string arguments;
        bool before_finish = false;
        for (const Json& event : stream.events) {
            const Json& choice = event["choices"][0];
            if (choice["delta"].contains("tool_calls")) {
                EXPECT_TRUE(choice["finish_reason"].is_null());
                before_finish = true;
                arguments += choice["delta"]["tool_calls"][0]["function"]["arguments"];
            }
        }
        EXPECT_TRUE(before_finish);
        EXPECT_EQ(arguments, "{}");
    }
}

TEST(ChatTools, SchemaDecidesTypes) {
    Json request = ask();
    request["tools"] = Json::array({tool("f", {{"count", {{"type", "integer"}}},
                                               {"tags", {{"type", "array"}}},
                                               {"note", {{"type", "string"}}},
                                               {"strict", {{"type", "boolean"}}},
                                               {"limit", {{"type", {"integer", "null"}}}},
                                               {"code", {{"type", "string"}}}})});
    std::string text = "</think><tool_call>f";
    const std::pair<const char*, const char*> values[] = {
        {"count", "3"},     {"tags", "[\"a\",\"b\"]"}, {"note", "{\"x\": 1}"},
        {"strict", "true"}, {"limit", "null"},         {"code", "007"}};
    for (const auto& [key, value] : values) {
        text += std::string("<arg_key>") + key + "</arg_key><arg_value>" + value + "</arg_value>";
    }
    text += "</tool_call><|observation|>";
    const Understood reply = same_for_all_steps(all_step_forms(tokens_of(text)), request);
    ASSERT_EQ(reply.calls.size(), 1u);
    EXPECT_EQ(Json::parse(reply.calls[0].arguments), Json({{"count", 3},
                                                           {"tags", {"a", "b"}},
                                                           {"note", "{\"x\": 1}"},
                                                           {"strict", true},
                                                           {"limit", nullptr},
                                                           {"code", "007"}}));
}

// A closing tag closes a value only before a key, the call's end or the reply's end, whether it is
// the tag's own token or spelled in ordinary ones.
TEST(ChatTools, TagsInsideAValueAreText) {
    Json request = ask();
    request["tools"] = Json::array(
        {tool("write_file", {{"path", {{"type", "string"}}}, {"body", {{"type", "string"}}}})});
    const std::string bodies[] = {"print(\"</arg_value>\")",
                                  "</arg_value> first",
                                  "a</arg_value></arg_value>b",
                                  "x <arg_value> y </arg_value> z",
                                  "<tool_call>f</arg_value>\n\n</arg_value>.",
                                  "<|user|>no, {\"k\": \"</arg_value>\"}"};
    for (const std::string& body : bodies) {
        for (const bool spelled : {false, true}) {
            SCOPED_TRACE(body + (spelled ? ", spelled" : ", tokens"));
            std::vector<TokenId> ids =
                tokens_of("</think><tool_call>write_file<arg_key>body</arg_key><arg_value>");
            const auto append = [&](const std::vector<TokenId>& more) {
                ids.insert(ids.end(), more.begin(), more.end());
            };
            const bool stops = body.find("<|user|>") != std::string::npos;
            append(spelled || stops ? plain_tokens_of(body) : tokens_of(body));
            append(
                tokens_of("</arg_value><arg_key>path</arg_key><arg_value>a.py</arg_value>"
                          "</tool_call><|observation|>"));
            const Understood reply = same_for_all_steps(all_step_forms(ids), request);
            ASSERT_EQ(reply.calls.size(), 1u);
            EXPECT_EQ(reply.calls[0].name, "write_file");
            EXPECT_EQ(Json::parse(reply.calls[0].arguments),
                      Json({{"body", body}, {"path", "a.py"}}));
            EXPECT_EQ(reply.content, "");
            EXPECT_EQ(reply.finish, "tool_calls");
        }
    }
}

TEST(ChatTools, TagsInThinkingOrWithoutToolsAreNoCalls) {
    const auto thinking =
        tokens_of("I could <tool_call>f</tool_call> but no.</think>Done.<|endoftext|>");
    Json request = ask();
    request["tools"] = Json::array({tool("f", Json::object())});
    const Understood reply = same_for_all_steps(all_step_forms(thinking), request);
    EXPECT_TRUE(reply.calls.empty());
    EXPECT_EQ(reply.finish, "stop");
    EXPECT_EQ(reply.content, "Done.");

    const auto call = tokens_of("</think><tool_call>f</tool_call><|observation|>");
    for (const Json& plain : {ask(), Json{{"messages", user_message("x")},
                                          {"tools", request["tools"]},
                                          {"tool_choice", "none"}}}) {
        const Understood none = same_for_all_steps(all_step_forms(call), plain);
        EXPECT_TRUE(none.calls.empty());
        EXPECT_EQ(none.finish, "stop");
    }
}

TEST(ChatTools, CutCallFinishesByLength) {
    Json request = ask();
    request["tools"] = Json::array({tool("f", {{"a", {{"type", "string"}}}})});
    const auto ids =
        tokens_of("</think><tool_call>f<arg_key>a</arg_key><arg_value>some words that are cut");
    request["max_tokens"] = ids.size();
    const Understood reply =
        same_for_all_steps({steps_of(ids, 1), steps_of(ids, 3), steps_of(ids, ids.size())}, request,
                           {{"finish", "hang"}});
    EXPECT_EQ(reply.finish, "length");
    EXPECT_EQ(reply.stop_reason, "max_tokens");
}

TEST(ChatTools, OneCallWhenParallelIsOff) {
    Json request = ask();
    request["tools"] = Json::array({tool("f", Json::object())});
    request["parallel_tool_calls"] = false;
    const auto ids =
        tokens_of("</think><tool_call>f</tool_call><tool_call>f</tool_call><|observation|>");
    const Understood reply = same_for_all_steps(all_step_forms(ids), request);
    EXPECT_EQ(reply.calls.size(), 1u);
    EXPECT_EQ(reply.finish, "tool_calls");
}

// ---- reasoning --------------------------------------------------------------------------------

TEST(ChatReasoning, CannotBeSwitchedOff) {
    Json request = ask();
    request["chat_template_kwargs"] = {{"enable_thinking", false}};
    const auto ids = tokens_of("Six times seven.</think>42<|user|>");
    const Understood reply = same_for_all_steps(all_step_forms(ids), request);
    EXPECT_EQ(reply.content, "42");
    EXPECT_EQ(reply.reasoning, "Six times seven.");
    EXPECT_EQ(reply.usage["completion_tokens"], ids.size());
    EXPECT_LE(reply.usage["completion_tokens_details"]["reasoning_tokens"], ids.size());
}

TEST(ChatReasoning, EffortIsMappedEchoedAndRefused) {
    const std::pair<const char*, const char*> levels[] = {{"minimal", "low"}, {"low", "low"},
                                                          {"medium", "high"}, {"high", "high"},
                                                          {"xhigh", "max"},   {"max", "max"}};
    const ReplayServer server(Lines{{{"match", ""}, {"steps", {"</think>ok"}}}});
    std::map<std::string, int> prompt_tokens;
    for (const auto& [given, effective] : levels) {
        Json request = ask();
        request["reasoning_effort"] = given;
        const Json reply = server.chat(request).json();
        EXPECT_EQ(reply["reasoning_effort"], effective);
    }
    EXPECT_EQ(server.chat(ask()).json()["reasoning_effort"], "max");
    Json null_effort = ask();
    null_effort["reasoning_effort"] = nullptr;
    EXPECT_EQ(server.chat(null_effort).json()["reasoning_effort"], "max");
    for (const Json& wrong : {Json("none"), Json("MAX"), Json(3), Json("")}) {
        Json request = ask();
        request["reasoning_effort"] = wrong;
        const ClientReply reply = server.chat(request);
        EXPECT_EQ(reply.status, 400);
        EXPECT_EQ(reply.json()["error"]["code"], "invalid_value");
        EXPECT_EQ(reply.json()["error"]["param"], "reasoning_effort");
    }
}

// ---- usage ------------------------------------------------------------------------------------

TEST(ChatUsage, ComesExactlyWhenAskedFor) {
    const ReplayServer server(
        Lines{{{"match", ""}, {"steps", {"a", " b", "</think>", "c", " d"}}}});
    Json request = ask();
    request["stream"] = true;
    const auto events_with = [&](const Json& options) {
        if (!options.is_null()) request["stream_options"] = options;
        const ClientReply reply = server.chat(request);
        const EventStream stream(reply.body);
        EXPECT_TRUE(stream.done && stream.well_formed);
        return stream.events;
    };
    for (const Json& options : {Json(), Json::object(), Json{{"include_usage", false}}}) {
        for (const Json& event : events_with(options)) {
            EXPECT_FALSE(event.contains("usage"));
            EXPECT_FALSE(event["choices"].empty());
        }
    }
    auto events = events_with({{"include_usage", true}});
    for (std::size_t i = 0; i < events.size(); ++i) {
        EXPECT_EQ(events[i].contains("usage"), i + 1 == events.size());
        EXPECT_EQ(events[i]["choices"].empty(), i + 1 == events.size());
    }
    const int total = events.back()["usage"]["completion_tokens"];
    events = events_with({{"include_usage", true}, {"continuous_usage_stats", true}});
    int before = 0;
    for (const Json& event : events) {
        const int tokens = event["usage"]["completion_tokens"];
        EXPECT_GE(tokens, before);
        before = tokens;
        EXPECT_EQ(event["usage"]["total_tokens"],
                  tokens + event["usage"]["prompt_tokens"].get<int>());
    }
    EXPECT_EQ(before, total);
}

TEST(ChatUsage, DraftCountsEveryStep) {
    const ReplayServer server(Lines{{{"match", ""},
                                     {"steps", {"</think>", "a b c", "d e"}},
                                     {"draft", {{"drafted", 3}, {"accepted", 2}}}}});
    const Json usage = server.chat(ask()).json()["usage"];
    EXPECT_EQ(usage["draft"]["rounds"], 3);
    EXPECT_EQ(usage["draft"]["drafted"], 9);
    EXPECT_EQ(usage["draft"]["accepted"], 6);
    EXPECT_EQ(usage["draft"]["accepted_per_position"], Json::array({3, 3, 0}));
    Json off = ask();
    off["draft"] = false;
    EXPECT_FALSE(server.chat(off).json()["usage"].contains("draft"));
    EXPECT_EQ(server.metric("vllm:spec_decode_num_accepted_tokens_total"), 6);
}

// ---- stops, characters, limits ----------------------------------------------------------------

TEST(ChatStops, StopStringAcrossSteps) {
    Json request = ask();
    request["stop"] = Json::array({"STOP_HERE"});
    auto ids = tokens_of("</think>");
    for (const char* piece : {"alpha ", "STOP", "_HE", "RE beta"}) {
        const auto more = tokens_of(piece);
        ids.insert(ids.end(), more.begin(), more.end());
    }
    const Understood stopped = same_for_all_steps(all_step_forms(ids), request);
    EXPECT_EQ(stopped.content, "alpha ");
    EXPECT_EQ(stopped.finish, "stop");
    EXPECT_EQ(stopped.stop_reason, "stop_string");

    ids = tokens_of("</think>");
    for (const char* piece : {"alpha ", "STOP", "PING now"}) {
        const auto more = tokens_of(piece);
        ids.insert(ids.end(), more.begin(), more.end());
    }
    const Understood whole = same_for_all_steps(all_step_forms(ids), request);
    EXPECT_EQ(whole.content, "alpha STOPPING now");
    EXPECT_EQ(whole.stop_reason, "eos");
}

TEST(ChatStops, RandomStopsCutWhereTheTextSays) {
    std::mt19937 random(7);
    const std::string letters = "ab ";
    for (int round = 0; round < 30; ++round) {
        std::string text;
        for (int i = 0; i < 40; ++i)
            text += letters[random() % letters.size()];
        std::string stop;
        for (std::size_t i = 0; i < 2 + random() % 3; ++i)
            stop += letters[random() % letters.size()];
        Json request = ask();
        request["stop"] = stop;
        auto ids = tokens_of("</think>");
        const auto more = tokens_of(text);
        ids.insert(ids.end(), more.begin(), more.end());
        const Understood reply = same_for_all_steps(
            {steps_of(ids, 1), steps_of(ids, 2), steps_of(ids, 5), steps_of(ids, ids.size())},
            request);
        const std::size_t at = text.find(stop);
        EXPECT_EQ(reply.content, text.substr(0, at)) << text << " / " << stop;
        EXPECT_EQ(reply.stop_reason, at == std::string::npos ? "eos" : "stop_string");
    }
}

TEST(ChatText, SplitCharactersArriveWhole) {
    const Json one_each =
        Json::array({"</think>", {{"hex", "f09f"}}, {{"hex", "98"}}, {{"hex", "80"}}, "ok"});
    const Json at_once = Json::array(
        {Json::array({"</think>", {{"hex", "f09f"}}, {{"hex", "98"}}, {{"hex", "80"}}, "ok"})});
    const Understood reply = same_for_all_steps({one_each, at_once}, ask());
    EXPECT_EQ(reply.content, "\xF0\x9F\x98\x80ok");

    Json request = ask();
    request["max_tokens"] = 2;  // the end of thinking and the first byte
    const Understood cut = same_for_all_steps({one_each, at_once}, request);
    EXPECT_EQ(cut.content, "");
    EXPECT_EQ(cut.finish, "length");
    EXPECT_EQ(cut.usage["completion_tokens"], 2);
}

// A character that the end of the thinking cuts in two is one U+FFFD, for every step size.
TEST(ChatText, ACharacterCutByTheEndOfTheThinkingIsLostOnce) {
    for (const std::string character : {"\xC3\xA9", "\xE6\x97\xA5", "\xF0\x9F\x90\x8E"}) {
        for (std::size_t cut = 1; cut < character.size(); ++cut) {
            std::vector<TokenId> ids = tokens_of("so ");
            for (std::size_t i = 0; i < character.size(); ++i) {
                if (i == cut) ids.push_back(tokens_of("</think>")[0]);
                ids.push_back(nano_tokenizer().byte_token(static_cast<std::uint8_t>(character[i])));
            }
            ids.push_back(tokens_of("!")[0]);
            const Understood reply = same_for_all_steps(all_step_forms(ids), ask());
            EXPECT_EQ(reply.reasoning, "so \xEF\xBF\xBD");
            EXPECT_EQ(reply.content, "!");
        }
    }
}

TEST(ChatText, EscapingIsHonest) {
    const std::string text =
        "quote \" back \\ line\nreturn\rtab\t bell\x07 nul-free del\x7f \xE2\x80\xA8 "
        "\xF0\x9F\x98\x80";
    const Json plain = Json::array({"</think>", {{"plain", text}}});
    EXPECT_EQ(same_for_all_steps({plain}, ask()).content, text);
}

TEST(ChatLimits, ContextPolicyIsOneForAll) {
    ReplayServerOptions options;
    options.context = 256;
    Json line{{"match", ""}, {"steps", Json::array()}};
    for (int i = 0; i < 400; ++i)
        line["steps"].push_back(i == 0 ? "</think>" : "7");
    const ReplayServer server(Lines{line}, options);
    // A message that makes a prompt of exactly so many tokens: every digit is one.
    const int frame = server.chat(ask("7")).json()["usage"]["prompt_tokens"].get<int>() - 1;
    const auto prompt = [&](int tokens) { return ask(std::string(tokens - frame, '7')); };
    for (const bool stream : {false, true}) {
        const auto send = [&](Json request, Json max_tokens) {
            request["stream"] = stream;
            request["max_tokens"] = max_tokens;
            request["stream_options"] = {{"include_usage", true}};
            return server.chat(request);
        };
        for (const int tokens : {256, 257, 300}) {
            const ClientReply refused = send(prompt(tokens), nullptr);
            EXPECT_EQ(refused.status, 400);
            const Json error = refused.json()["error"];
            EXPECT_EQ(error["code"], "context_length_exceeded");
            const std::string message = error["message"];
            EXPECT_NE(message.find("256"), std::string::npos);
            EXPECT_NE(message.find(std::to_string(tokens)), std::string::npos);
        }
        const auto ends = [&](const ClientReply& reply) {
            return stream ? understand_stream(reply) : understand_whole(reply);
        };
        const Understood open = ends(send(prompt(160), nullptr));
        EXPECT_EQ(open.usage["completion_tokens"], 96);
        EXPECT_EQ(open.finish, "length");
        EXPECT_EQ(open.stop_reason, "context");
        const Understood exact = ends(send(prompt(160), 96));
        EXPECT_EQ(exact.usage["completion_tokens"], 96);
        EXPECT_EQ(exact.stop_reason, "max_tokens");
        const Understood beyond = ends(send(prompt(160), 97));
        EXPECT_EQ(beyond.usage["completion_tokens"], 96);
        EXPECT_EQ(beyond.stop_reason, "context");
        EXPECT_EQ(ends(send(prompt(255), nullptr)).usage["completion_tokens"], 1);
    }
}

TEST(ChatLimits, MaxTokensOfOneAndIgnoredStops) {
    const Json line{{"match", ""},
                    {"steps", {"a", "b</think>", "c", "<|user|>", "d", "<|endoftext|>"}}};
    const ReplayServer server(Lines{line});
    Json request = ask();
    request["max_completion_tokens"] = 1;
    const Understood one = understand_whole(server.chat(request));
    EXPECT_EQ(one.reasoning, "a");
    EXPECT_EQ(one.content, "");
    EXPECT_EQ(one.finish, "length");

    EXPECT_EQ(understand_whole(server.chat(ask())).content, "c");
    Json ignoring = ask();
    ignoring["ignore_eos"] = true;
    const Understood all = understand_whole(server.chat(ignoring));
    EXPECT_EQ(all.usage["completion_tokens"], 7);
    Json late = ask();
    late["min_tokens"] = 5;
    EXPECT_EQ(understand_whole(server.chat(late)).usage["completion_tokens"], 7);
}

// ---- token ids and log-probabilities ----------------------------------------------------------

TEST(ChatTokens, IdsAreCompleteAndOnEveryChunk) {
    const auto ids = tokens_of("Hm, \xC3\xA9\xF0\x9F\x98\x80 yes.</think>The answer.<|endoftext|>");
    Json request = ask();
    request["return_token_ids"] = true;
    const Understood reply = same_for_all_steps(all_step_forms(ids), request);
    std::vector<int> numbers;
    for (const TokenId id : ids)
        numbers.push_back(to_int(id));
    EXPECT_EQ(reply.token_ids, numbers);

    const ReplayServer server(Lines{{{"steps", steps_of(ids, 1)}}});
    request["stream"] = true;
    const EventStream stream(server.chat(request).body);
    for (const Json& event : stream.events) {
        const Json& choice = event["choices"][0];
        const Json& delta = choice["delta"];
        if (delta.contains("content") || delta.contains("reasoning")) {
            EXPECT_TRUE(choice.contains("token_ids"));
        }
    }
}

TEST(ChatTokens, LogprobsHaveOneEntryAToken) {
    const auto ids = tokens_of("Hm.</think>Yes \xF0\x9F\x98\x80<|endoftext|>");
    for (const std::size_t size : {std::size_t{1}, std::size_t{3}, ids.size()}) {
        Json line{{"steps", steps_of(ids, size)}, {"logprob", -0.25}};
        const ReplayServer server(Lines{line, line});
        Json request = ask();
        request["logprobs"] = true;
        request["top_logprobs"] = 2;
        const Json whole = server.chat(request).json()["choices"][0]["logprobs"]["content"];
        ASSERT_EQ(whole.size(), ids.size());
        request["stream"] = true;
        Json streamed = Json::array();
        const EventStream stream(server.chat(request).body);
        for (const Json& event : stream.events) {
            const Json& choice = event["choices"][0];
            if (!choice.contains("logprobs")) continue;
            for (const Json& entry : choice["logprobs"]["content"])
                streamed.push_back(entry);
        }
        EXPECT_EQ(streamed, whole);
        for (std::size_t i = 0; i < whole.size(); ++i) {
            EXPECT_EQ(whole[i]["logprob"], -0.25);
            EXPECT_EQ(whole[i]["top_logprobs"][0]["logprob"], -0.25);
            EXPECT_FALSE(whole[i]["bytes"].empty());
        }
    }
}

// ---- several choices, seeds, errors -----------------------------------------------------------

TEST(ChatChoices, EachHasItsIndexAndEnd) {
    const std::vector<Json> lines{
        {{"steps", {"</think>", "one", " more"}}},
        {{"steps", {"</think>", "two"}}},
        {{"steps", {"</think>", "three", " and", " more"}}, {"delay_ms", 2}}};
    Json request = ask();
    request["n"] = 3;
    request["seed"] = 11;
    {
        const ReplayServer server(lines);
        const Json reply = server.chat(request).json();
        EXPECT_EQ(reply["seed"], 11);
        const char* texts[] = {"one more", "two", "three and more"};
        ASSERT_EQ(reply["choices"].size(), 3u);
        for (int i = 0; i < 3; ++i) {
            EXPECT_EQ(reply["choices"][i]["index"], i);
            EXPECT_EQ(reply["choices"][i]["message"]["content"], texts[i]);
            EXPECT_EQ(reply["choices"][i]["finish_reason"], "stop");
        }
        EXPECT_EQ(server.chat(request).status, 500);
    }
    const ReplayServer server(lines);
    request["stream"] = true;
    request["stream_options"] = {{"include_usage", true}};
    const EventStream stream(server.chat(request).body);
    std::map<int, std::string> texts;
    std::map<int, int> roles, ends;
    for (const Json& event : stream.events) {
        if (event["choices"].empty()) continue;
        const Json& choice = event["choices"][0];
        const int index = choice["index"];
        if (choice["delta"].contains("content")) texts[index] += choice["delta"]["content"];
        roles[index] += choice["delta"].contains("role") ? 1 : 0;
        ends[index] += choice["finish_reason"].is_null() ? 0 : 1;
    }
    EXPECT_EQ(texts[0], "one more");
    EXPECT_EQ(texts[1], "two");
    EXPECT_EQ(texts[2], "three and more");
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(roles[i], 1);
        EXPECT_EQ(ends[i], 1);
    }
    EXPECT_TRUE(stream.events.back()["choices"].empty());
}

TEST(ChatErrors, FaultBeforeAndAfterTheFirstToken) {
    const ReplayServer server(
        Lines{{{"match", "early"}, {"steps", Json::array()}, {"finish", "error"}},
              {{"match", "late"}, {"steps", {"some", " text"}}, {"finish", "error"}}});
    for (const char* when : {"early", "late"}) {
        const ClientReply whole = server.chat(ask(when));
        EXPECT_EQ(whole.status, 500);
        EXPECT_EQ(whole.json()["error"]["code"], "numerical_fault");
        Json request = ask(when);
        request["stream"] = true;
        const ClientReply streamed = server.chat(request);
        const EventStream stream(streamed.body);
        EXPECT_TRUE(streamed.whole && stream.done);
        ASSERT_FALSE(stream.events.empty());
        EXPECT_EQ(stream.events.back()["error"]["code"], "numerical_fault");
    }
    server.settle();
}

TEST(ChatErrors, ReplayRunsOut) {
    const ReplayServer server(Lines{{{"steps", {"</think>only"}}}});
    EXPECT_EQ(server.chat(ask()).status, 200);
    for (const bool stream : {false, true}) {
        Json request = ask();
        request["stream"] = stream;
        const ClientReply reply = server.chat(request);
        EXPECT_EQ(reply.status, 500);
        EXPECT_EQ(reply.json()["error"]["code"], "replay_exhausted");
    }
}

TEST(ChatErrors, DeadlineEndsAReplyAndSaysSo) {
    const ReplayServer server(
        Lines{{{"match", ""}, {"steps", {"</think>", "so far"}}, {"finish", "hang"}}});
    Json request = ask();
    request["deadline_s"] = 0.05;
    const Understood reply = understand_whole(server.chat(request));
    EXPECT_EQ(reply.content, "so far");
    EXPECT_EQ(reply.finish, "length");
    EXPECT_EQ(reply.stop_reason, "deadline");
}

TEST(ChatErrors, FullQueueIsRefusedAndServedLater) {
    ReplayServerOptions options;
    options.max_running = 1;
    options.server.max_queued = 2;
    const ReplayServer server(Lines{{{"match", "hang"}, {"steps", {"x"}}, {"finish", "hang"}},
                                    {{"match", ""}, {"steps", {"</think>ok"}}}},
                              options);
    Json hang = ask("hang");
    hang["stream"] = true;
    std::vector<HttpClient> clients;
    for (int i = 0; i < 3; ++i) {
        clients.push_back(server.connect());
        clients.back().send(HttpClient::request_text("POST", "/v1/chat/completions", hang.dump()));
        // Each is in the engine before the next is sent.
        while (true) {
            const Json status = server.get("/status").json();
            if (status["running"].get<int>() + status["waiting"].get<int>() == i + 1) break;
        }
    }
    const ClientReply refused = server.chat(ask());
    EXPECT_EQ(refused.status, 429);
    EXPECT_EQ(refused.json()["error"]["code"], "queue_full");
    EXPECT_NE(refused.header("retry-after"), "");
    clients.clear();
    server.settle();
    EXPECT_EQ(server.chat(ask()).status, 200);
}

}  // namespace
}  // namespace percheron::test
