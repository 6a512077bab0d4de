#include "text/reply_stream.h"

#include <array>
#include <random>

#include <gmock/gmock.h>

#include "text/detokenizer.h"
#include "text/unicode.h"
#include "text_files.h"

namespace percheron {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

struct Call {
    std::string id;
    std::string name;
    std::string arguments;
    bool ended = false;
    bool operator==(const Call&) const = default;
};

// What a client puts together from the events.
struct Reply {
    std::string reasoning;
    std::string content;
    std::vector<Call> calls;
    std::string order;  // the kinds of text and calls in the order of their first events
    std::size_t consumed = 0;
    std::uint32_t tokens = 0;
    std::uint32_t reasoning_tokens = 0;
    bool only_complete_calls = false;
    bool stop_token = false;
    std::string stop_string;
    bool operator==(const Reply&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Reply& reply) {
    out << "reasoning=" << reply.reasoning << " content=" << reply.content
        << " order=" << reply.order << " consumed=" << reply.consumed << " tokens=" << reply.tokens
        << "/" << reply.reasoning_tokens << " stop=" << reply.stop_string;
    for (const Call& call : reply.calls) {
        out << " [" << call.id << " " << call.name << " " << call.arguments
            << (call.ended ? "" : " open") << "]";
    }
    return out;
}

void collect(const std::vector<ReplyEvent>& events, Reply& reply) {
    using Kind = ReplyEvent::Kind;
    const auto note = [&](char kind) {
        if (reply.order.empty() || reply.order.back() != kind) reply.order += kind;
    };
    for (const ReplyEvent& event : events) {
        EXPECT_TRUE(is_valid_utf8(event.text));
        switch (event.kind) {
            case Kind::reasoning:
                reply.reasoning += event.text;
                note('r');
                break;
            case Kind::content:
                reply.content += event.text;
                note('c');
                break;
            case Kind::tool_begin:
                EXPECT_EQ(event.tool_index, reply.calls.size());
                EXPECT_FALSE(event.text.empty());
                reply.calls.push_back({event.call_id, event.text, "", false});
                reply.order += 't';
                break;
            case Kind::tool_arguments:
                ASSERT_LT(event.tool_index, reply.calls.size());
                EXPECT_EQ(event.tool_index + 1, reply.calls.size());
                EXPECT_FALSE(reply.calls[event.tool_index].ended);
                reply.calls[event.tool_index].arguments += event.text;
                break;
            case Kind::tool_end:
                ASSERT_LT(event.tool_index, reply.calls.size());
                reply.calls[event.tool_index].ended = true;
                break;
        }
        EXPECT_TRUE(event.kind == Kind::tool_end || !event.text.empty());
    }
}

// Feeds `ids` in steps of `size()` tokens.
template <class Size>
Reply reply_of(const std::vector<TokenId>& ids, const Json& tools, const ReplyOptions& options,
               ReplyStream::End end, Size size) {
    const ToolSchemas schemas(tools);
    ReplyStream stream(nano_tokenizer(), schemas, options);
    Reply reply;
    std::span<const TokenId> rest = ids;
    bool stopped = false;
    while (!rest.empty() && !stopped) {
        std::vector<ReplyEvent> events;
        const auto step =
            stream.push(rest.first(std::min<std::size_t>(rest.size(), size())), events);
        collect(events, reply);
        rest = rest.subspan(step.consumed);
        reply.consumed += step.consumed;
        stopped = step.stop;
    }
    if (stopped) {
        std::vector<ReplyEvent> events;
        EXPECT_EQ(stream.push(ids, events).consumed, 0u);
        EXPECT_TRUE(events.empty());
    }
    std::vector<ReplyEvent> events;
    stream.finish(end, events);
    collect(events, reply);
    const ReplySummary& summary = stream.summary();
    EXPECT_EQ(summary.tokens, reply.consumed);
    EXPECT_LE(summary.reasoning_tokens, summary.tokens);
    EXPECT_EQ(summary.tool_calls, reply.calls.size());
    EXPECT_EQ(summary.complete_tool_calls, static_cast<std::uint32_t>(std::count_if(
                                               reply.calls.begin(), reply.calls.end(),
                                               [](const Call& call) { return call.ended; })));
    for (const Call& call : reply.calls) {
        if (call.ended) {
            EXPECT_TRUE(Json::parse(call.arguments, nullptr, false).is_object()) << call.arguments;
        }
    }
    reply.tokens = summary.tokens;
    reply.reasoning_tokens = summary.reasoning_tokens;
    reply.only_complete_calls = summary.only_complete_calls();
    reply.stop_token = summary.stop_token_seen;
    reply.stop_string = summary.stop_string;
    return reply;
}

std::vector<TokenId> stop_tokens() {
    return {nano_tokenizer().added_token("<|endoftext|>").value(),
            nano_tokenizer().added_token("<|user|>").value(),
            nano_tokenizer().added_token("<|observation|>").value()};
}

ReplyOptions with_stops(std::vector<std::string> stop_strings = {}, bool in_reasoning = false) {
    ReplyOptions options;
    options.starts_in_reasoning = in_reasoning;
    options.stop_tokens = stop_tokens();
    options.stop_strings = std::move(stop_strings);
    return options;
}

// The reply, after checking that every step size and random step sizes give the same.
Reply same_for_every_cut(const std::vector<TokenId>& ids, const Json& tools,
                         const ReplyOptions& options = with_stops(),
                         ReplyStream::End end = ReplyStream::End::stopped) {
    const Reply whole = reply_of(ids, tools, options, end, [&] { return ids.size(); });
    for (std::size_t size = 1; size < std::min<std::size_t>(ids.size(), 12); ++size) {
        EXPECT_EQ(reply_of(ids, tools, options, end, [&] { return size; }), whole) << size;
    }
    std::mt19937 random(13);
    for (int trial = 0; trial < 3; ++trial) {
        EXPECT_EQ(reply_of(ids, tools, options, end, [&] { return 1 + random() % 7; }), whole);
    }
    // One border anywhere.
    for (std::size_t border = 1; border < std::min<std::size_t>(ids.size(), 40); ++border) {
        bool first = true;
        EXPECT_EQ(reply_of(ids, tools, options, end,
                           [&] { return std::exchange(first, false) ? border : ids.size(); }),
                  whole);
    }
    return whole;
}

// Tags in `text` are tags.
std::vector<TokenId> model_text(std::string_view text) {
    return nano_tokenizer().encode_trusted(text);
}

// Tags in `plain` are spelled in ordinary tokens.
void append_plain(std::vector<TokenId>& ids, std::string_view plain) {
    for (const TokenId id : nano_tokenizer().encode(plain))
        ids.push_back(id);
}

Json tool(const std::string& name, const Json& properties = Json::object()) {
    return {{"type", "function"},
            {"function",
             {{"name", name}, {"parameters", {{"type", "object"}, {"properties", properties}}}}}};
}

const Json text_type = {{"type", "string"}};

Json alarm_tools() {
    return Json::array({tool("set_alarm", {{"hour", {{"type", "integer"}}}, {"label", text_type}}),
                        tool("list_rooms"),
                        tool("write_file", {{"path", text_type}, {"body", text_type}})});
}

TEST(ReplyStream, ACallIsTheSameForEveryStepSize) {
    const auto reply = same_for_every_cut(
        model_text("Two alarms?</think>Setting "
                   "it.<tool_call>set_alarm<arg_key>hour</arg_key><arg_value>7</arg_value>"
                   "<arg_key>label</arg_key><arg_value>gym bag</arg_value></tool_call><|user|>"),
        alarm_tools(), with_stops({}, true));
    EXPECT_EQ(reply.reasoning, "Two alarms?");
    EXPECT_EQ(reply.content, "Setting it.");
    ASSERT_EQ(reply.calls.size(), 1u);
    EXPECT_EQ(reply.calls[0],
              (Call{"call_0", "set_alarm", R"({"hour":7,"label":"gym bag"})", true}));
    EXPECT_TRUE(reply.only_complete_calls);
    EXPECT_TRUE(reply.stop_token);
    EXPECT_EQ(reply.order, "rct");
}

TEST(ReplyStream, CallsWithoutArgumentsGiveAnEmptyObject) {
    const auto reply =
        same_for_every_cut(model_text("<tool_call>list_rooms</tool_call>"), alarm_tools());
    ASSERT_EQ(reply.calls.size(), 1u);
    EXPECT_EQ(reply.calls[0].name, "list_rooms");
    EXPECT_EQ(reply.calls[0].arguments, "{}");
    EXPECT_EQ(reply.content, "");
}

TEST(ReplyStream, ParallelCallsCountUpAndHaveTheirOwnIds) {
    ReplyOptions options = with_stops();
    options.call_id_prefix = "call_abc_";
    const auto reply = same_for_every_cut(
        model_text("<tool_call>list_rooms</tool_call>\n<tool_call>set_alarm\n<arg_key>hour</"
                   "arg_key>\n<arg_value>6"
                   "</arg_value>\n</tool_call><tool_call>list_rooms\n</tool_call>\n"),
        alarm_tools(), options);
    ASSERT_EQ(reply.calls.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i)
        EXPECT_EQ(reply.calls[i].id, options.call_id_prefix + std::to_string(i));
    EXPECT_EQ(reply.calls[1].arguments, R"({"hour":6})");
    EXPECT_EQ(reply.content, "");  // line feeds around calls are layout
}

TEST(ReplyStream, TheSchemaDecidesTypes) {
    const Json properties = {
        {"count", {{"type", "integer"}}},
        {"tags", {{"type", "array"}}},
        {"note", text_type},
        {"strict", {{"type", "boolean"}}},
        {"limit", {{"type", {"integer", "null"}}}},
        {"code", text_type},
        {"maybe", {{"anyOf", {{{"type", "string"}}, {{"type", "null"}}}}}},
        {"either", {{"type", {"string", "integer"}}}},
        {"deep", {{"$ref", "#/$defs/point"}}},
        {"pick", {{"enum", {"on", "off", "1"}}}},
        {"free", Json::object()},
        {"ratio", {{"type", "number"}}},
    };
    Json tools = Json::array({tool("f", properties)});
    tools[0]["function"]["parameters"]["$defs"] = {{"point", {{"type", "object"}}}};
    const auto value_of = [&](const std::string& name, const std::string& raw) {
        const auto reply =
            same_for_every_cut(model_text("<tool_call>f<arg_key>" + name + "</arg_key><arg_value>" +
                                          raw + "</arg_value></tool_call>"),
                               tools);
        EXPECT_EQ(reply.calls.size(), 1u) << name << raw;
        if (reply.calls.size() != 1) return std::string();
        const Json arguments = Json::parse(reply.calls[0].arguments);
        EXPECT_EQ(arguments.size(), 1u);
        EXPECT_TRUE(arguments.contains(name)) << reply.calls[0].arguments;
        return arguments.contains(name) ? arguments[name].dump() : "";
    };
    // name, raw text, JSON
    const std::vector<std::array<std::string, 3>> cases = {
        {"count", "3", "3"},
        {"count", " 12 ", "12"},
        {"count", "-7", "-7"},
        {"count", "many", "\"many\""},
        {"count", "007", "\"007\""},
        {"tags", "[\"a\",\"b\"]", "[\"a\",\"b\"]"},
        {"tags", "[\"a\"", "\"[\\\"a\\\"\""},
        {"note", "{\"x\": 1}", "\"{\\\"x\\\": 1}\""},
        {"note", "null", "\"null\""},
        {"note", "", "\"\""},
        {"note", " padded\n", "\" padded\\n\""},
        {"note", "q\"b\\s\tt\x01", "\"q\\\"b\\\\s\\tt\\u0001\""},
        {"note", "日本 🐎", "\"日本 🐎\""},
        {"strict", "true", "true"},
        {"strict", "False", "false"},
        {"strict", "yes", "\"yes\""},
        {"limit", "null", "null"},
        {"limit", "None", "null"},
        {"limit", "5", "5"},
        {"code", "007", "\"007\""},
        {"maybe", "null", "null"},
        {"maybe", " null ", "null"},
        {"maybe", "nullify", "\"nullify\""},
        {"maybe", "nu", "\"nu\""},
        {"maybe", "", "\"\""},
        {"maybe", "42", "\"42\""},
        {"maybe", "\"q\"", "\"\\\"q\\\"\""},
        {"either", "42", "42"},
        {"either", "true", "\"true\""},
        {"either", "4.5", "\"4.5\""},
        {"either", "\"q\"", "\"\\\"q\\\"\""},
        {"deep", "{\"x\": [1, {\"y\": null}]}", "{\"x\":[1,{\"y\":null}]}"},
        {"pick", "1", "\"1\""},
        {"free", "1", "1"},
        {"free", "\"s\"", "\"s\""},
        {"free", "s t", "\"s t\""},
        {"free", std::string("3\0x", 3), "\"3\\u0000x\""},
        {"count", std::string("3\0", 2), "\"3\\u0000\""},
        {"unknown", "[1]", "[1]"},
        {"unknown", "plain", "\"plain\""},
        {"ratio", "3", "3"},
        {"ratio", "1e-3", "0.001"},
        {"ratio", "NaN", "\"NaN\""},
    };
    for (const auto& [name, raw, json] : cases)
        EXPECT_EQ(value_of(name, raw), json) << name << " " << raw;
    const auto all =
        same_for_every_cut(model_text("<tool_call>f<arg_key>count</arg_key><arg_value>3</"
                                      "arg_value><arg_key>tags</arg_key><arg_value>[\"a\",\"b\"]"
                                      "</arg_value><arg_key>note</arg_key><arg_value>{\"x\": "
                                      "1}</arg_value><arg_key>strict</arg_key><arg_value>true"
                                      "</arg_value><arg_key>limit</arg_key><arg_value>null</"
                                      "arg_value><arg_key>code</arg_key><arg_value>007"
                                      "</arg_value></tool_call>"),
                           tools);
    EXPECT_EQ(
        Json::parse(all.calls.at(0).arguments),
        Json::parse(
            R"({"count":3,"tags":["a","b"],"note":"{\"x\": 1}","strict":true,"limit":null,"code":"007"})"));
}

TEST(ReplyStream, ValuesAreKeptWithoutASchemaToo) {
    const auto reply =
        same_for_every_cut(model_text("<tool_call>other<arg_key>a</arg_key><arg_value>x</"
                                      "arg_value><arg_key>n</arg_key><arg_value>3</arg_value>"
                                      "</tool_call>"),
                           Json::array());
    EXPECT_EQ(reply.calls.at(0).arguments, R"({"a":"x","n":3})");
}

TEST(ReplyStream, ATagInsideAValueIsText) {
    const std::string tags[] = {"</arg_value>", "<arg_value>", "</tool_call>", "<tool_call>",
                                "<arg_key>",    "</arg_key>",  "<think>",      "</think>"};
    for (const std::string& tag : tags) {
        const std::string line = "print(\"" + tag + "\")\n";
        // As the tag's own token, and spelled in ordinary tokens.
        for (const bool as_token : {true, false}) {
            auto ids =
                model_text("<tool_call>write_file<arg_key>body</arg_key><arg_value>print(\"");
            if (as_token) {
                ids.push_back(nano_tokenizer().added_token(tag).value());
            } else {
                append_plain(ids, tag);
            }
            for (const TokenId id : model_text("\")\n</arg_value><arg_key>path</"
                                               "arg_key><arg_value>a.py</arg_value></tool_call>")) {
                ids.push_back(id);
            }
            const auto reply = same_for_every_cut(ids, alarm_tools());
            ASSERT_EQ(reply.calls.size(), 1u) << tag << as_token;
            const Json arguments = Json::parse(reply.calls[0].arguments, nullptr, false);
            ASSERT_TRUE(arguments.is_object()) << reply.calls[0].arguments;
            EXPECT_EQ(arguments["body"], line);
            EXPECT_EQ(arguments["path"], "a.py");
        }
    }
}

TEST(ReplyStream, AClosingTagClosesOnlyBeforeAKeyTheCallsEndOrTheReplysEnd) {
    const auto body_of = [&](const std::string& rest, bool complete = true) {
        const auto reply = same_for_every_cut(
            model_text("<tool_call>write_file<arg_key>body</arg_key><arg_value>x" + rest),
            alarm_tools());
        EXPECT_EQ(reply.only_complete_calls, complete) << rest;
        const Json arguments = Json::parse(reply.calls.at(0).arguments, nullptr, false);
        return arguments.is_object() ? arguments["body"].get<std::string>()
                                     : "not JSON: " + reply.calls[0].arguments;
    };
    EXPECT_EQ(body_of("</arg_value></tool_call>"), "x");
    EXPECT_EQ(body_of("</arg_value> \n </tool_call>"), "x");
    EXPECT_EQ(body_of("</arg_value>\n<arg_key>path</arg_key><arg_value>p</arg_value></tool_call>"),
              "x");
    EXPECT_EQ(body_of("</arg_value><|user|>"), "x");
    EXPECT_EQ(body_of("</arg_value>"), "x");
    EXPECT_EQ(body_of("</arg_value></arg_value></tool_call>"), "x</arg_value>");
    EXPECT_EQ(body_of("</arg_value> \n</arg_value></tool_call>"), "x</arg_value> \n");
    EXPECT_EQ(body_of("</arg_value> y</arg_value></tool_call>"), "x</arg_value> y");
    EXPECT_EQ(body_of("</arg_value><tool_call></arg_value></tool_call>"),
              "x</arg_value><tool_call>");
    EXPECT_EQ(body_of("</tool_call>y</arg_value></tool_call>"), "x</tool_call>y");
    EXPECT_EQ(body_of("</tool_call>\n</arg_value></tool_call>"), "x</tool_call>\n");
}

TEST(ReplyStream, SlipsThatCanBeUnderstoodInOneWayAreRepaired) {
    // text of the model, the name and the arguments that are meant
    const std::vector<std::array<std::string, 3>> cases = {
        // A missing end.
        {"<tool_call>list_rooms", "list_rooms", "{}"},
        {"<tool_call>set_alarm<arg_key>hour</arg_key><arg_value>7", "set_alarm", "{\"hour\":7}"},
        {"<tool_call>set_alarm<arg_key>hour</arg_key><arg_value>7</arg_value>", "set_alarm",
         "{\"hour\":7}"},
        {"<tool_call>write_file<arg_key>path</arg_key><arg_value>p</tool_call>", "write_file",
         "{\"path\":\"p\"}"},
        {"<tool_call>write_file<arg_key>path</arg_key><arg_value>p</tool_call><|observation|>",
         "write_file", "{\"path\":\"p\"}"},
        // A missing beginning.
        {"set_alarm<arg_key>hour</arg_key><arg_value>7</arg_value></tool_call>", "set_alarm",
         "{\"hour\":7}"},
        {"\nset_alarm\n<arg_key>hour</arg_key><arg_value>7</arg_value></tool_call>", "set_alarm",
         "{\"hour\":7}"},
        {"list_rooms</tool_call>", "list_rooms", "{}"},
        {" list_rooms \n</tool_call>", "list_rooms", "{}"},
        // Malformed spellings.
        {"<tool_call>set_alarm>{\"hour\": 7}</tool_call>", "set_alarm", "{\"hour\":7}"},
        {"<tool_call>set_alarm{\"hour\": 7}</tool_call>", "set_alarm", "{\"hour\":7}"},
        {"<tool_call>set_alarm\n{\"hour\": 7}\n</tool_call>", "set_alarm", "{\"hour\":7}"},
        {"<tool_call>{\"name\": \"set_alarm\", \"arguments\": {\"hour\": 7}}</tool_call>",
         "set_alarm", "{\"hour\":7}"},
        {"<tool_call>set_alarm<arg_value>{\"hour\": 7}</arg_value></tool_call>", "set_alarm",
         "{\"hour\":7}"},
        {"<tool_call>set_alarm><arg_key>hour</arg_key><arg_value>7</arg_value></tool_call>",
         "set_alarm", "{\"hour\":7}"},
        {"<tool_call>set_alarm<arg_key>hour=7</arg_value></tool_call>", "set_alarm",
         "{\"hour\":7}"},
        {"<tool_call>set_alarm<arg_key>hour=7</arg_key></tool_call>", "set_alarm", "{\"hour\":7}"},
        {"<tool_call>set_alarm<arg_key>hour=7</arg_value><arg_key>label=a=b</arg_value></"
         "tool_call>",
         "set_alarm", "{\"hour\":7,\"label\":\"a=b\"}"},
        {"<tool_call>set_alarm<arg_key>hour<arg_value>7</arg_value></tool_call>", "set_alarm",
         "{\"hour\":7}"},
        {"<tool_call>set_alarm<arg_key>hour</arg_key>7</arg_value></tool_call>", "set_alarm",
         "{\"hour\":7}"},
        {"<tool_call>set_alarm<arg_key>hour</arg_value><arg_value>7</arg_value></tool_call>",
         "set_alarm", "{\"hour\":7}"},
        {"<tool_call><tool_call>list_rooms</tool_call>", "list_rooms", "{}"},
    };
    for (const auto& [text, name, arguments] : cases) {
        const auto reply = same_for_every_cut(model_text(text), alarm_tools());
        ASSERT_EQ(reply.calls.size(), 1u) << text << reply;
        EXPECT_EQ(reply.calls[0].name, name) << text;
        EXPECT_EQ(Json::parse(reply.calls[0].arguments, nullptr, false), Json::parse(arguments))
            << text;
        EXPECT_TRUE(reply.only_complete_calls) << text;
        EXPECT_EQ(reply.content, "") << text;
    }
    const auto two = same_for_every_cut(
        model_text("<tool_call>list_rooms<tool_call>write_file<arg_key>path</arg_key><arg_value>p</"
                   "tool_call><tool_call>list_rooms</tool_call>"),
        alarm_tools());
    ASSERT_EQ(two.calls.size(), 3u);
    EXPECT_EQ(two.calls[1].arguments, R"({"path":"p"})");
}

TEST(ReplyStream, TagsNeverLeakIntoContentAndNoTextIsLost) {
    const auto content_of = [](const std::string& text) {
        return same_for_every_cut(model_text(text), alarm_tools()).content;
    };
    EXPECT_EQ(content_of("a</tool_call>b</arg_value>c<arg_key>d</arg_key>e"), "abcde");
    EXPECT_EQ(content_of("a</think>b"), "ab");
    EXPECT_EQ(content_of("<tool_call></tool_call>ok"), "ok");
    EXPECT_EQ(content_of("<tool_call>not a call at all</tool_call>"), "not a call at all");
    EXPECT_EQ(content_of("set the alarm"), "set the alarm");
    EXPECT_EQ(content_of("set_al"), "set_al");
    EXPECT_EQ(content_of("list_rooms lists"), "list_rooms lists");
    EXPECT_EQ(content_of("one\nlist_rooms"), "one\nlist_rooms");
    EXPECT_EQ(content_of("one\n\nlist_rooms</tool_call>"), "one\n\n");
    EXPECT_EQ(content_of(" \n "), " \n ");
    EXPECT_EQ(content_of("\n x"), "\n x");
    EXPECT_EQ(content_of("a<tool_call>list_rooms</tool_call>\n b"), "a\n b");
    EXPECT_EQ(content_of("x list_rooms</tool_call>"), "x list_rooms");
    EXPECT_EQ(content_of("x my_list_rooms<arg_key>k</arg_key>"), "x my_list_roomsk");
    EXPECT_EQ(content_of("x list_rooms or set_alarm, too"), "x list_rooms or set_alarm, too");
    EXPECT_EQ(
        content_of("Yes: set_alarm<arg_key>hour</arg_key><arg_value>7</arg_value></tool_call>"),
        "Yes: ");
}

TEST(ReplyStream, WithoutToolsCallTagsAreText) {
    ReplyOptions options = with_stops();
    options.parse_tool_calls = false;
    const auto reply = same_for_every_cut(
        model_text("a<tool_call>f<arg_key>k</arg_key></tool_call></think>b"), Json(), options);
    EXPECT_EQ(reply.content, "a<tool_call>f<arg_key>k</arg_key></tool_call>b");
    EXPECT_TRUE(reply.calls.empty());
}

TEST(ReplyStream, NothingInsideTheThinkingIsACall) {
    const std::string call = "<tool_call>list_rooms</tool_call>";
    const auto reply = same_for_every_cut(model_text("I could " + call + " now</think>" + call),
                                          alarm_tools(), with_stops({}, true));
    EXPECT_EQ(reply.reasoning, "I could " + call + " now");
    EXPECT_EQ(reply.calls.size(), 1u);
    EXPECT_EQ(reply.content, "");
    const auto unclosed =
        same_for_every_cut(model_text("I could " + call), alarm_tools(), with_stops({}, true));
    EXPECT_TRUE(unclosed.calls.empty());
    EXPECT_EQ(unclosed.content, "");
    EXPECT_EQ(unclosed.reasoning_tokens, unclosed.tokens);
}

TEST(ReplyStream, TheThinkingIsSplitOffByIdAlone) {
    auto ids = model_text("<think>a ");
    append_plain(ids, "</think>");
    const std::size_t thinking = ids.size();
    for (const TokenId id : model_text(" b</think>42"))
        ids.push_back(id);
    const auto reply = same_for_every_cut(ids, Json(), with_stops({}, true));
    EXPECT_EQ(reply.reasoning, "a </think> b");
    EXPECT_EQ(reply.content, "42");
    EXPECT_EQ(reply.reasoning_tokens, thinking + model_text(" b").size());
    // The prompt had closed the thinking, and the model thinks all the same.
    const auto again =
        same_for_every_cut(model_text("\n<think>x</think>y <think>z"), Json(), with_stops());
    EXPECT_EQ(again.reasoning, "x");
    EXPECT_EQ(again.content, "\ny <think>z");
}

TEST(ReplyStream, StopStringsEndTheTextWhereverTokensEnd) {
    const auto tokens = [](const std::vector<std::string>& parts) {
        std::vector<TokenId> ids;
        for (const auto& part : parts)
            append_plain(ids, part);
        return ids;
    };
    const auto options = with_stops({"STOP_HERE"});
    const auto stopped =
        same_for_every_cut(tokens({"alpha ", "STOP", "_HE", "RE beta"}), Json(), options);
    EXPECT_EQ(stopped.content, "alpha ");
    EXPECT_EQ(stopped.stop_string, "STOP_HERE");
    EXPECT_LT(stopped.consumed, tokens({"alpha ", "STOP", "_HE", "RE beta"}).size());
    const auto passed = same_for_every_cut(tokens({"alpha ", "STOP", "PING now"}), Json(), options);
    EXPECT_EQ(passed.content, "alpha STOPPING now");
    EXPECT_EQ(passed.stop_string, "");
    const auto tail = same_for_every_cut(tokens({"alpha ", "STOP_HER"}), Json(), options);
    EXPECT_EQ(tail.content, "alpha STOP_HER");
    const auto thinking = same_for_every_cut(model_text("so STOP_HERE</think>x"), Json(),
                                             with_stops({"STOP_HERE"}, true));
    EXPECT_EQ(thinking.reasoning, "so ");
    EXPECT_EQ(thinking.content, "");
    const auto apart = same_for_every_cut(model_text("STOP_</think>HERE"), Json(),
                                          with_stops({"STOP_HERE"}, true));
    EXPECT_EQ(apart.reasoning, "STOP_");
    EXPECT_EQ(apart.content, "HERE");
    const auto in_call = same_for_every_cut(
        model_text("<tool_call>write_file<arg_key>path</arg_key><arg_value>STOP_HERE</arg_value></"
                   "tool_call>STOP_HERE"),
        alarm_tools(), options);
    EXPECT_EQ(in_call.calls.at(0).arguments, R"({"path":"STOP_HERE"})");
    EXPECT_EQ(in_call.stop_string, "STOP_HERE");
    EXPECT_EQ(in_call.content, "");
}

TEST(ReplyStream, CharactersSpreadOverTokensAreWhole) {
    const auto bytes = [](std::string_view text) {
        std::vector<TokenId> ids;
        for (const char c : text)
            ids.push_back(nano_tokenizer().byte_token(static_cast<std::uint8_t>(c)));
        return ids;
    };
    const std::string horse = "\xF0\x9F\x90\x8E";
    for (const bool thinking : {false, true}) {
        const auto text_of = [&](const std::vector<TokenId>& ids, ReplyStream::End end) {
            const auto reply = same_for_every_cut(ids, Json(), with_stops({}, thinking), end);
            EXPECT_EQ(reply.tokens, ids.size());
            return thinking ? reply.reasoning : reply.content;
        };
        EXPECT_EQ(text_of(bytes(horse + "ok"), ReplyStream::End::stopped), horse + "ok");
        for (std::size_t cut = 1; cut < horse.size(); ++cut) {
            EXPECT_EQ(text_of(bytes(std::string("a").append(horse, 0, cut)), ReplyStream::End::cut),
                      "a");
        }
        EXPECT_EQ(text_of(bytes("\xF0\x9F!"), ReplyStream::End::cut),
                  std::string(replacement_character) + "!");
    }
    auto call = model_text("<tool_call>write_file<arg_key>path</arg_key><arg_value>");
    for (const TokenId id : bytes(horse))
        call.push_back(id);
    const auto open = same_for_every_cut(call, alarm_tools(), with_stops(), ReplyStream::End::cut);
    EXPECT_EQ(open.calls.at(0).arguments, "{\"path\":\"" + horse);
    EXPECT_FALSE(open.only_complete_calls);
    for (const TokenId id : bytes(horse.substr(0, 2)))
        call.push_back(id);
    EXPECT_EQ(same_for_every_cut(call, alarm_tools(), with_stops(), ReplyStream::End::cut), [&] {
        Reply expected = open;
        expected.consumed += 2;
        expected.tokens += 2;
        return expected;
    }());
}

TEST(ReplyStream, ACallThatWasCutIsNotComplete) {
    const auto ids = model_text(
        "ok<tool_call>list_rooms</tool_call><tool_call>write_file<arg_key>path</"
        "arg_key><arg_value>some where</arg_value></tool_call>");
    const auto first_call = model_text("ok<tool_call>list_rooms</tool_call>").size();
    for (std::size_t count = 0; count <= ids.size(); ++count) {
        const std::vector<TokenId> part(ids.begin(),
                                        ids.begin() + static_cast<std::ptrdiff_t>(count));
        const auto reply =
            same_for_every_cut(part, alarm_tools(), with_stops(), ReplyStream::End::cut);
        EXPECT_EQ(reply.only_complete_calls, count == first_call || count == ids.size()) << count;
        EXPECT_THAT(reply.content, testing::AnyOf("", "ok"));
    }
}

TEST(ReplyStream, NamesAndStringsAreGivenOutAtOnce) {
    const ToolSchemas schemas(alarm_tools());
    ReplyStream stream(nano_tokenizer(), schemas, with_stops());
    std::vector<ReplyEvent> events;
    const auto push = [&](std::string_view text) {
        events.clear();
        for (const TokenId id : model_text(text))
            stream.push({&id, 1}, events);
        std::string given;
        for (const ReplyEvent& event : events)
            given += event.text;
        return given;
    };
    EXPECT_EQ(push("<tool_call>write_file"), "");
    EXPECT_EQ(push("<arg_key>"), "write_file");
    EXPECT_EQ(push("body</arg_key><arg_value>"), "{\"body\":\"");
    EXPECT_EQ(push("line one\n"), "line one\\n");
    EXPECT_EQ(push("two"), "two");
    EXPECT_EQ(push("</arg_value>"), "");
    EXPECT_EQ(push("</tool_call>"), "\"}");
    EXPECT_EQ(push("plain answer"), "plain answer");
}

TEST(ReplyStream, SpecialTokensAreCountedButNotShown) {
    const auto reply =
        same_for_every_cut(model_text("a<|system|>b<|begin_of_box|>c[MASK]"), Json(), with_stops());
    EXPECT_EQ(reply.content, "ab<|begin_of_box|>c");
    EXPECT_EQ(reply.tokens, 6u);
}

// Any tokens at all: tags in any order, split characters, names, blanks.
std::vector<TokenId> random_reply(std::mt19937& random, std::size_t length) {
    static const std::vector<std::string> parts = {
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<tool_call>set_alarm<arg_key>hour</arg_key><arg_value>",
        "</arg_value></tool_call>",
        "</arg_value><arg_key>",
        "list_rooms",
        "set_alarm",
        "write_file",
        "hour",
        "label",
        "body",
        "path",
        "x",
        "7",
        "null",
        "true",
        "{\"a\":",
        "1}",
        "[",
        "]",
        "\"",
        "=",
        ">",
        "\n",
        " ",
        " \n",
        "\\",
        "ST",
        "OP",
        "STOP",
        "the end",
        "<|begin_of_box|>",
        "<|system|>"};
    std::vector<TokenId> ids;
    while (ids.size() < length) {
        const unsigned kind = random() % 20;
        if (kind == 0) {
            ids.push_back(TokenId{static_cast<std::int32_t>(random() % 8192)});
        } else if (kind == 1) {
            for (const char c : std::string("\xF0\x9F\x90\x8E").substr(random() % 3)) {
                ids.push_back(nano_tokenizer().byte_token(static_cast<std::uint8_t>(c)));
            }
        } else if (kind == 2) {
            append_plain(ids, parts[random() % 10]);
        } else {
            for (const TokenId id : model_text(parts[random() % parts.size()]))
                ids.push_back(id);
        }
    }
    return ids;
}

TEST(ReplyStream, AnyTokensGiveTheSameReplyForEveryCut) {
    std::mt19937 random(14);
    Json tools = alarm_tools();
    tools.push_back(
        tool("x", {{"hour", {{"type", {"string", "null"}}}}, {"path", Json::object()}}));
    std::size_t calls = 0;
    std::size_t stops = 0;
    for (int trial = 0; trial < 1500; ++trial) {
        const auto ids = random_reply(random, 1 + random() % 40);
        ReplyOptions options =
            with_stops(random() % 3 == 0 ? std::vector<std::string>{"STOP", "the"}
                                         : std::vector<std::string>{},
                       random() % 3 == 0);
        options.parse_tool_calls = random() % 5 != 0;
        const auto end = random() % 3 == 0 ? ReplyStream::End::cut : ReplyStream::End::stopped;
        const auto reply = same_for_every_cut(ids, tools, options, end);
        calls += reply.calls.size();
        stops += reply.stop_string.empty() ? 0 : 1;
        if (options.parse_tool_calls) {
            for (const Call& call : reply.calls) {
                EXPECT_TRUE(call.ended || end == ReplyStream::End::cut) << reply;
            }
        }
        if (testing::Test::HasFailure()) {
            ADD_FAILURE() << "trial " << trial << ": " << nano_tokenizer().decode(ids);
            break;
        }
    }
    EXPECT_GT(calls, 200u);
    EXPECT_GT(stops, 50u);
}

// A text without structure holds nothing back, blanks included, but what may become a stop string
// or a character.
TEST(ReplyStream, VerbatimTextComesWithItsTokens) {
    std::mt19937 random(15);
    const std::vector<std::string> stops{"STOP", "the end"};
    const auto may_become_stop = [&](const std::string& text) {
        std::size_t longest = 0;
        for (const std::string& stop : stops) {
            for (std::size_t size = 1; size < stop.size() && size <= text.size(); ++size) {
                if (text.ends_with(stop.substr(0, size))) longest = std::max(longest, size);
            }
        }
        return longest;
    };
    const ToolSchemas tools(Json::array());
    std::size_t blank_steps = 0;
    for (int trial = 0; trial < 500; ++trial) {
        std::vector<TokenId> ids;
        for (int i = 0; i < 3; ++i)
            append_plain(ids, std::array{" ", "\n", " \n\n", "\t", ""}[random() % 5]);
        for (const TokenId id : random_reply(random, 1 + random() % 40))
            ids.push_back(id);
        ReplyOptions options = with_stops(random() % 2 == 0 ? stops : std::vector<std::string>{});
        options.verbatim = true;
        ReplyStream stream(nano_tokenizer(), tools, options);
        Detokenizer characters;
        std::string text;
        std::string given;
        for (const TokenId id : ids) {
            std::vector<ReplyEvent> events;
            const bool stopped = stream.push({&id, 1}, events).stop;
            for (const ReplyEvent& event : events) {
                EXPECT_EQ(event.kind, ReplyEvent::Kind::content);
                given += event.text;
            }
            if (stopped) break;
            if (!nano_tokenizer().is_special(id))
                characters.append(nano_tokenizer().bytes_of(id), text);
            const std::size_t held = options.stop_strings.empty() ? 0 : may_become_stop(text);
            ASSERT_EQ(given, text.substr(0, text.size() - held)) << nano_tokenizer().decode(ids);
            blank_steps += !given.empty() && is_blank(given) ? 1 : 0;
        }
    }
    EXPECT_GT(blank_steps, 500u);
}

TEST(ReplyStream, LongRepliesAreLinear) {
    // Each of these makes a parser that rescans what it holds take hours.
    const std::size_t many = 200000;
    const auto repeated = [&](std::string_view head, std::string_view part, std::string_view tail) {
        auto ids = model_text(head);
        const auto one = model_text(part);
        while (ids.size() < many)
            ids.insert(ids.end(), one.begin(), one.end());
        for (const TokenId id : model_text(tail))
            ids.push_back(id);
        return ids;
    };
    const std::string value = "<tool_call>write_file<arg_key>body</arg_key><arg_value>";
    const std::string close = "</arg_value></tool_call>";
    const std::vector<std::vector<TokenId>> replies = {
        repeated(value, "x", close),
        repeated(value, "</arg_value>", close),
        repeated(value, "</arg_value> ", close),
        repeated("<tool_call>f<arg_key>k</arg_key><arg_value>", "[", close),
        repeated("<tool_call>", "x", "</tool_call>"),
        repeated("<tool_call>f<arg_key>", "x", "</arg_key>"),
        repeated("", " ", "x"),
        repeated("", "\n", "list_rooms"),
        repeated("", "list_rooms\n", ""),
        repeated("", "ST", "OP"),
        repeated("", "<tool_call>list_rooms</tool_call>", ""),
        repeated("", "<tool_call>", ""),
        repeated("", "</tool_call>", ""),
        repeated("<tool_call>x<arg_key>hour</arg_key><arg_value>", " ", close)};
    Json tools = alarm_tools();
    tools.push_back(tool("x", {{"hour", {{"type", {"string", "null"}}}}}));
    for (const auto& ids : replies) {
        const auto one = [] { return std::size_t{1}; };
        const auto reply =
            reply_of(ids, tools, with_stops({"STOP", "STSTSTX"}), ReplyStream::End::stopped, one);
        EXPECT_EQ(reply.tokens, ids.size());
    }
}

}  // namespace
}  // namespace percheron
