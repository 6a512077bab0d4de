// Tool calls over the real server and a replay: what a client sees, streamed and whole, for every
// way a reply's tokens may be cut into engine steps.
#include <random>

#include <gtest/gtest.h>

#include "server/understood.h"

namespace percheron::test {
namespace {

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

// A value of each type that a schema can ask for, as the model writes it and as the client gets it.
struct RandomValue {
    Json schema;
    std::string written;
    Json expected;
};

std::string random_words(std::mt19937& random, std::size_t most) {
    static const std::vector<std::string> words{"gym",
                                                " bag",
                                                "7",
                                                "\n",
                                                "\"q\"",
                                                "\\",
                                                "{\"x\": 1}",
                                                "null",
                                                " true",
                                                "\xC3\xA9",
                                                "\xF0\x9F\x98\x80",
                                                "[1]",
                                                "<b>",
                                                "key=",
                                                "\t",
                                                "-",
                                                "0.50"};
    std::string text;
    for (std::size_t i = random() % (most + 1); i > 0; --i)
        text += words[random() % words.size()];
    return text;
}

RandomValue random_value(std::mt19937& random) {
    const auto written_json = [](const char* type, const Json& value) {
        return RandomValue{{{"type", type}}, value.dump(), value};
    };
    switch (random() % 8) {
        case 0:
            return written_json("integer", static_cast<int>(random() % 2000) - 1000);
        case 1:
            return written_json("number", static_cast<double>(random() % 1000) / 8);
        case 2:
            return written_json("boolean", random() % 2 == 0);
        case 3:
            return written_json("array", Json::array({1, "two", nullptr, random_words(random, 2)}));
        case 4:
            return written_json("object", {{"a", random_words(random, 3)}, {"b", Json::object()}});
        case 5:
            return {{{"type", {"integer", "null"}}}, "null", nullptr};
        default: {
            const std::string text = random_words(random, 6);
            return {{{"type", "string"}}, text, text};
        }
    }
}

// Calls of any number, with any values, among any text: the same for every step size, and what the
// model wrote.
TEST(ChatTools, RandomCallsAreTheSameForEveryCut) {
    std::mt19937 random(31);
    for (int round = 0; round < 10; ++round) {
        SCOPED_TRACE("round " + std::to_string(round));
        Json request = ask();
        request["tools"] = Json::array();
        const std::string reasoning = "so" + random_words(random, 4) + ".";
        std::string text = reasoning + "</think>";
        const std::string content = random() % 2 == 0 ? "" : "Now" + random_words(random, 3) + ".";
        text += content;
        std::vector<std::pair<std::string, Json>> expected;
        const std::size_t calls = 1 + random() % 3;
        for (std::size_t call = 0; call < calls; ++call) {
            const std::string name = "tool_" + std::to_string(call);
            Json properties = Json::object();
            Json arguments = Json::object();
            text += "<tool_call>" + name;
            for (std::size_t i = random() % 4; i > 0; --i) {
                const RandomValue value = random_value(random);
                const std::string key = "k" + std::to_string(i);
                properties[key] = value.schema;
                arguments[key] = value.expected;
                text +=
                    "<arg_key>" + key + "</arg_key><arg_value>" + value.written + "</arg_value>";
            }
            text += "</tool_call>";
            request["tools"].push_back(tool(name, properties));
            expected.emplace_back(name, arguments);
        }
        const auto ids = tokens_of(text + "<|observation|>");
        const Understood reply = same_for_all_steps(all_step_forms(ids), request);
        EXPECT_EQ(reply.reasoning, reasoning);
        EXPECT_EQ(reply.content, content);
        EXPECT_EQ(reply.finish, "tool_calls");
        ASSERT_EQ(reply.calls.size(), expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i) {
            EXPECT_EQ(reply.calls[i].name, expected[i].first);
            EXPECT_EQ(Json::parse(reply.calls[i].arguments), expected[i].second);
        }
    }
}

}  // namespace
}  // namespace percheron::test
