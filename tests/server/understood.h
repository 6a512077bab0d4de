// What a client makes of a reply, streamed or whole, and requests sent to one replayed reply for
// every way its tokens may be cut into engine steps.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "server/replay_server.h"

namespace percheron::test {

inline const Tokenizer& nano_tokenizer() {
    static const server::ServedModel model = std::move(*server::ServedModel::load(nano_folder()));
    return model.format.tokenizer();
}

// Tokens of a text written as replay strings are.
inline std::vector<TokenId> tokens_of(const std::string& text) {
    return nano_tokenizer().encode_trusted(text);
}

// Ordinary tokens alone.
inline std::vector<TokenId> plain_tokens_of(const std::string& text) {
    return nano_tokenizer().encode(text);
}

inline Json ids_json(const std::vector<TokenId>& ids) {
    Json list = Json::array();
    for (const TokenId id : ids)
        list.push_back(to_int(id));
    return list;
}

// The same tokens as steps of `size` tokens each.
inline Json steps_of(const std::vector<TokenId>& ids, std::size_t size) {
    Json steps = Json::array();
    for (std::size_t at = 0; at < ids.size(); at += size) {
        const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(at + size, ids.size()));
        steps.push_back(ids_json({ids.begin() + static_cast<std::ptrdiff_t>(at), end}));
    }
    return steps;
}

// All ways worth trying: each fixed size, and two steps with the border at each token.
inline std::vector<Json> all_step_forms(const std::vector<TokenId>& ids) {
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

inline Understood understand_whole(const ClientReply& reply) {
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

inline void take_delta(const Json& delta, Understood& result) {
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

inline Understood understand_stream(const ClientReply& reply) {
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

inline void expect_equal(const Understood& streamed, const Understood& whole) {
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
inline Understood same_for_all_steps(const std::vector<Json>& forms, Json request,
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

inline Json ask(const std::string& text = "Go on.") {
    return {{"messages", user_message(text)}};
}

inline Json tool(const std::string& name, const Json& properties) {
    return {{"type", "function"},
            {"function",
             {{"name", name}, {"parameters", {{"type", "object"}, {"properties", properties}}}}}};
}

}  // namespace percheron::test
