// Completions over the real server and a replay: prompts of every form, echo, log-probs, several
// prompts at once, and streams that say the same as whole replies for every cut.
#include <algorithm>

#include <gtest/gtest.h>

#include "server/recording_engine.h"
#include "server/understood.h"

namespace percheron::test {
namespace {

ClientReply complete(const ReplayServer& server, const Json& body) {
    return server.connect().request("POST", "/v1/completions", body.dump());
}

// A choice as its client understands it.
struct Completed {
    std::string text;
    std::string finish;
    std::string stop_reason;
    Json logprobs = {{"tokens", Json::array()},
                     {"token_logprobs", Json::array()},
                     {"top_logprobs", Json::array()},
                     {"text_offset", Json::array()}};
    std::vector<int> token_ids;
    bool operator==(const Completed&) const = default;
};

void take(Completed& completed, const Json& choice) {
    completed.text += choice["text"].get<std::string>();
    if (choice.contains("logprobs")) {
        for (auto& [name, list] : completed.logprobs.items()) {
            for (const Json& entry : choice["logprobs"][name])
                list.push_back(entry);
        }
    }
    if (choice.contains("token_ids")) {
        for (const int id : choice["token_ids"])
            completed.token_ids.push_back(id);
    }
    if (choice["finish_reason"].is_null()) return;
    EXPECT_EQ(completed.finish, "");
    completed.finish = choice["finish_reason"];
    completed.stop_reason = choice["stop_reason"];
}

struct Completion {
    std::vector<Completed> choices;
    Json usage;
};

Completion whole(const ClientReply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    const Json json = reply.json();
    EXPECT_EQ(json["object"], "text_completion");
    EXPECT_EQ(json["id"].get<std::string>().substr(0, 5), "cmpl-");
    Completion result;
    for (const Json& choice : json["choices"]) {
        EXPECT_EQ(choice["index"], result.choices.size());
        take(result.choices.emplace_back(), choice);
    }
    result.usage = json["usage"];
    return result;
}

Completion streamed(const ClientReply& reply, std::size_t choices) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    const EventStream stream(reply.body);
    EXPECT_TRUE(stream.done && stream.well_formed) << reply.body;
    Completion result;
    result.choices.resize(choices);
    for (std::size_t i = 0; i < stream.events.size(); ++i) {
        const Json& event = stream.events[i];
        EXPECT_EQ(event["object"], "text_completion");
        const bool last = i + 1 == stream.events.size();
        EXPECT_EQ(event.contains("usage"), last);
        EXPECT_EQ(event["choices"].empty(), last);
        if (last) {
            result.usage = event["usage"];
        } else {
            take(result.choices[event["choices"][0]["index"]], event["choices"][0]);
        }
    }
    return result;
}

// Both forms of a request to a reply cut in every way; they must agree.
Completion same_for_every_cut(const std::vector<TokenId>& ids, Json request) {
    const auto forms = all_step_forms(ids);
    Lines lines;
    for (const Json& steps : forms) {
        lines.push_back({{"steps", steps}, {"logprob", -0.25}});
        lines.push_back({{"steps", steps}, {"logprob", -0.25}});
    }
    const ReplayServer server(lines);
    Completion first;
    for (std::size_t i = 0; i < forms.size(); ++i) {
        SCOPED_TRACE("steps " + forms[i].dump());
        request["stream"] = false;
        const Completion once = whole(complete(server, request));
        request["stream"] = true;
        request["stream_options"] = {{"include_usage", true}};
        const Completion pieces = streamed(complete(server, request), 1);
        EXPECT_EQ(pieces.choices, once.choices);
        EXPECT_EQ(pieces.usage, once.usage);
        if (i == 0) first = once;
        EXPECT_EQ(once.choices, first.choices);
        if (testing::Test::HasFailure()) break;
    }
    return first;
}

const Json quick{{"match", ""}, {"steps", {" one", " two", "<|user|>"}}, {"logprob", -0.5}};

TEST(Completions, EveryFormOfAPromptIsThatPrompt) {
    Recording recording;
    ReplayServerOptions options;
    options.wrap = [&](std::unique_ptr<Engine> engine) {
        return std::make_unique<RecordingEngine>(std::move(engine), recording);
    };
    const ReplayServer server(Lines{quick}, options);
    for (const std::string text :
         {"Once upon", "\xC3\xA9\xF0\x9F\x98\x80 x", "<|user|>hi</think>"}) {
        const std::vector<TokenId> ids = tokens_of(text);
        const Json list = ids_json(ids);
        for (const Json& prompt : {Json(text), Json::array({text}), list, Json::array({list})}) {
            for (const char* path : {"/v1/completions", "/completions"}) {
                const Json body{{"prompt", prompt}, {"echo", true}};
                const ClientReply reply = server.connect().request("POST", path, body.dump());
                ASSERT_EQ(reply.status, 200) << reply.body;
                EXPECT_EQ(reply.json()["choices"][0]["text"], text + " one two");
                EXPECT_EQ(recording.latest().prompt, ids);
                EXPECT_EQ(reply.json()["usage"]["prompt_tokens"], ids.size());
                EXPECT_EQ(reply.json()["usage"]["completion_tokens"], 3);
            }
        }
    }
}

TEST(Completions, NothingIsTakenForStructure) {
    for (const std::string text :
         {"\n\n 12 </think> </think>x", "<think>a</think><tool_call>f</tool_call>",
          "caf\xC3\xA9 \xF0\x9F\x98\x80!", "  "}) {
        auto ids = tokens_of(text);
        const Json request{{"prompt", "Go"}, {"return_token_ids", true}, {"logprobs", 1}};
        const Completion reply = same_for_every_cut(ids, request);
        EXPECT_EQ(reply.choices[0].text, text);
        std::vector<int> expected;
        for (const TokenId id : ids)
            expected.push_back(to_int(id));
        EXPECT_EQ(reply.choices[0].token_ids, expected);
        EXPECT_EQ(reply.choices[0].logprobs["token_logprobs"],
                  Json(std::vector<double>(ids.size(), -0.25)));
        EXPECT_EQ(reply.usage["completion_tokens_details"]["reasoning_tokens"], 0);
    }
}

TEST(Completions, StopStringsEndTheGeneratedTextAlone) {
    const auto ids = tokens_of("red STOP green");
    const Completion reply = same_for_every_cut(
        ids, {{"prompt", "A STOP before"}, {"echo", true}, {"stop", Json::array({"STOP"})}});
    EXPECT_EQ(reply.choices[0].text, "A STOP beforered ");
    EXPECT_EQ(reply.choices[0].finish, "stop");
    EXPECT_EQ(reply.choices[0].stop_reason, "stop_string");
}

// What log-likelihood harnesses read: one entry a token of prompt and reply, the first null, and
// the chosen token in each dictionary with the very same number.
TEST(Completions, EchoedLogprobsCoverPromptAndReply) {
    for (const std::string text : {"The sky is blue", "\xF0\x9F\x98\x80\xE6\x97\xA5 caf\xC3\xA9"}) {
        const auto prompt = tokens_of(text);
        for (const int top : {0, 1, 5}) {
            for (const Json& form : {Json(text), ids_json(prompt)}) {
                const Completion reply =
                    same_for_every_cut(tokens_of(" and so on"), {{"prompt", form},
                                                                 {"echo", true},
                                                                 {"logprobs", top},
                                                                 {"max_tokens", 1},
                                                                 {"temperature", 0}});
                const Completed& choice = reply.choices[0];
                EXPECT_EQ(choice.finish, "length");
                const Json& lists = choice.logprobs;
                for (const auto& [name, list] : lists.items())
                    ASSERT_EQ(list.size(), prompt.size() + 1) << name;
                EXPECT_TRUE(lists["token_logprobs"][0].is_null());
                EXPECT_TRUE(lists["top_logprobs"][0].is_null());
                for (std::size_t i = 1; i < lists["tokens"].size(); ++i) {
                    EXPECT_EQ(lists["token_logprobs"][i], -0.25);
                    const std::string token = lists["tokens"][i];
                    ASSERT_TRUE(lists["top_logprobs"][i].contains(token));
                    EXPECT_EQ(lists["top_logprobs"][i][token], -0.25);
                    EXPECT_GE(lists["text_offset"][i], lists["text_offset"][i - 1]);
                }
                EXPECT_EQ(lists["text_offset"][0], 0);
                EXPECT_EQ(choice.text.substr(0, text.size()), text);
            }
        }
    }
}

TEST(Completions, OffsetsCountCharactersOfTheText) {
    const ReplayServer server(Lines{{{"match", ""}, {"steps", {"b\xC3\xA9", " c", "<|user|>"}}}});
    const Json reply =
        complete(server, {{"prompt", "\xE6\x97\xA5 a"}, {"echo", true}, {"logprobs", 0}}).json();
    const Json& choice = reply["choices"][0];
    // In characters, for text of one, two and three bytes each.
    const std::string text = choice["text"];
    std::size_t count = 0;
    std::vector<std::size_t> begins;
    for (std::size_t i = 0; i <= text.size(); ++i) {
        if (i == text.size() || (static_cast<unsigned char>(text[i]) >> 6) != 2)
            begins.push_back(i);
    }
    for (const Json& offset : choice["logprobs"]["text_offset"]) {
        const std::string token = choice["logprobs"]["tokens"][count++];
        if (token.substr(0, 6) == "bytes:" || token == "<|user|>") continue;
        EXPECT_EQ(text.substr(begins.at(offset), token.size()), token);
    }
    EXPECT_GT(count, 5u);
}

TEST(Completions, SeveralPromptsAndChoicesKeepTheirPlaces) {
    const Lines lines{{{"match", "^first"}, {"steps", {"1a", "1b"}}, {"delay_ms", 3}},
                      {{"match", "^second"}, {"steps", {"2"}}},
                      {{"match", "^third"}, {"steps", {"3", "3", "3"}}, {"delay_ms", 1}}};
    const ReplayServer server(lines);
    Json body{{"prompt", {"first", "second", "third"}}, {"n", 2}, {"echo", true}};
    const std::vector<std::string> expected{"first1a1b", "first1a1b", "second2",
                                            "second2",   "third333",  "third333"};
    const Completion once = whole(complete(server, body));
    ASSERT_EQ(once.choices.size(), 6u);
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    const Completion pieces = streamed(complete(server, body), 6);
    for (std::size_t i = 0; i < 6; ++i) {
        EXPECT_EQ(once.choices[i].text, expected[i]);
        EXPECT_EQ(pieces.choices[i], once.choices[i]);
    }
    EXPECT_EQ(pieces.usage, once.usage);
    std::size_t prompt_tokens = 0;
    std::size_t reply_tokens = 0;
    for (const char* text : {"first", "second", "third"})
        prompt_tokens += tokens_of(text).size();
    for (const char* text : {"1a", "1b", "2", "3", "3", "3"})
        reply_tokens += 2 * tokens_of(text).size();
    EXPECT_EQ(once.usage["prompt_tokens"], prompt_tokens);
    EXPECT_EQ(once.usage["completion_tokens"], reply_tokens);
}

TEST(Completions, OneFailureEndsAllOfThem) {
    const Lines lines{{{"match", "good"}, {"steps", {"a", "b"}}, {"finish", "hang"}},
                      {{"match", "bad"}, {"steps", {"c"}}, {"delay_ms", 1}, {"finish", "error"}}};
    const ReplayServer server(lines);
    const Json body{{"prompt", {"good", "bad", "good"}}};
    const ClientReply reply = complete(server, body);
    EXPECT_EQ(reply.status, 500);
    EXPECT_EQ(reply.json()["error"]["code"], "numerical_fault");
    server.settle();
    Json stream = body;
    stream["stream"] = true;
    const ClientReply events = complete(server, stream);
    EXPECT_NE(events.body.find("numerical_fault"), std::string::npos);
    EXPECT_TRUE(events.whole);
    EXPECT_TRUE(EventStream(events.body).done);
    server.settle();
    // A client that leaves ends every prompt of its request.
    HttpClient client = server.connect();
    client.send(HttpClient::request_text(
        "POST", "/v1/completions", Json{{"prompt", {"good", "good"}}, {"stream", true}}.dump()));
    EXPECT_TRUE(client.receive_until("\"text\""));
    client.reset();
    server.settle();
    EXPECT_EQ(server.metric("vllm:num_requests_running"), 0);
}

TEST(Completions, WhatIsWrongIsNamed) {
    const ReplayServer server(Lines{quick});
    const std::vector<std::tuple<Json, std::string, std::string>> wrong{
        {Json::object(), "invalid_value", "prompt"},
        {{{"prompt", ""}}, "invalid_value", "prompt"},
        {{{"prompt", 5}}, "invalid_value", "prompt"},
        {{{"prompt", Json::array()}}, "invalid_value", "prompt"},
        {{{"prompt", {1, -2}}}, "invalid_value", "prompt"},
        {{{"prompt", {1, 99999999}}}, "invalid_value", "prompt"},
        {{{"prompt", {1, "x"}}}, "invalid_value", "prompt"},
        {{{"prompt", {"x", 5}}}, "invalid_value", "prompt[1]"},
        {{{"prompt", {"x", ""}}}, "invalid_value", "prompt[1]"},
        {{{"prompt", {"x", Json::object()}}}, "invalid_value", "prompt[1]"},
        {{{"prompt", "a <|image|>"}}, "invalid_value", "prompt"},
        {{{"prompt", "x"}, {"suffix", "y"}}, "unsupported_parameter", "suffix"},
        {{{"prompt", "x"}, {"best_of", 3}}, "unsupported_parameter", "best_of"},
        {{{"prompt", "x"}, {"logprobs", 21}}, "invalid_value", "logprobs"},
        {{{"prompt", "x"}, {"logprobs", -1}}, "invalid_value", "logprobs"},
        {{{"prompt", "x"}, {"echo", 1}}, "invalid_value", "echo"},
        {{{"prompt", "x"}, {"max_tokens", 0}}, "invalid_value", "max_tokens"},
        {{{"prompt", "x"}, {"guided_json", "y"}}, "invalid_value", "guided_json"},
        {{{"prompt", "x"}, {"guided_regex", "y"}}, "unsupported_parameter", "guided_regex"},
        {{{"prompt", Json(std::vector<int>(4096, 5))}}, "context_length_exceeded", "prompt"},
        {{{"prompt", std::string(100000, '7')}}, "context_length_exceeded", "prompt"}};
    for (const auto& [body, code, param] : wrong) {
        const ClientReply reply = complete(server, body);
        EXPECT_EQ(reply.status, 400) << body.dump().substr(0, 80);
        EXPECT_EQ(reply.json()["error"]["code"], code) << body.dump().substr(0, 80);
        EXPECT_EQ(reply.json()["error"]["param"], param) << reply.body;
    }
    for (const Json& fine :
         {Json{{"prompt", "x"}, {"suffix", ""}}, Json{{"prompt", "x"}, {"n", 2}, {"best_of", 2}},
          Json{{"prompt", "x"}, {"logprobs", nullptr}, {"repetition_penalty", 1.0}},
          Json{{"prompt", "x"}, {"logprobs", false}, {"echo", nullptr}}}) {
        EXPECT_EQ(complete(server, fine).status, 200) << fine;
    }
}

}  // namespace
}  // namespace percheron::test
