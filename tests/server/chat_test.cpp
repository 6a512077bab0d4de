// Chat completions over the real server and a replay: what a client sees, streamed and whole, for
// every way a reply's tokens may be cut into engine steps.
#include <future>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/understood.h"

namespace percheron::test {
namespace {

// ---- reasoning --------------------------------------------------------------------------------

TEST(ChatReasoning, CannotBeSwitchedOff) {
    const Json switches[] = {{{"chat_template_kwargs", {{"enable_thinking", false}}}},
                             {{"chat_template_kwargs", {{"thinking", false}}}},
                             {{"chat_template_kwargs", {{"enable_thinking", nullptr}}}},
                             {{"thinking", {{"type", "disabled"}}}},
                             {{"reasoning_effort", "minimal"}}};
    const std::pair<std::string, std::string> replies[] = {
        {"Six times seven.", "42"},
        {"", "Yes."},
        {"<tool_call>no call</tool_call> here", "\n\nDone.\n"},
        {"\xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x98\x80", "caf\xC3\xA9"},
        {"one\n\ntwo <b>", "a < b"}};
    for (const Json& off : switches) {
        for (const auto& [reasoning, content] : replies) {
            Json request = ask();
            request.update(off);
            const auto ids = tokens_of(reasoning + "</think>" + content + "<|user|>");
            const Understood reply = same_for_all_steps(all_step_forms(ids), request);
            EXPECT_EQ(reply.content, content);
            EXPECT_EQ(reply.reasoning, reasoning);
            EXPECT_EQ(reply.usage["completion_tokens"], ids.size());
            EXPECT_EQ(reply.usage["completion_tokens_details"]["reasoning_tokens"],
                      tokens_of(reasoning).size());
        }
    }
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
    const auto ids = tokens_of("a b</think>c d, and \xF0\x9F\x98\x80 e<|user|>");
    for (std::size_t size = 1; size <= ids.size(); ++size) {
        SCOPED_TRACE("steps of " + std::to_string(size));
        const ReplayServer server(Lines{{{"match", ""}, {"steps", steps_of(ids, size)}}});
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
        EXPECT_EQ(total, static_cast<int>(ids.size()));
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
}

TEST(ChatProgress, ComesBeforeTheFirstTokenWhereItIsAskedFor) {
    const ReplayServer server(Lines{{{"match", ""}, {"steps", {"a", "b"}}}});
    for (const bool completion : {false, true}) {
        Json request = ask();
        if (completion) request = {{"prompt", "one two three"}};
        const std::string path = completion ? "/v1/completions" : "/v1/chat/completions";
        const auto answer = [&] {
            return server.connect().request("POST", path, request.dump(), {});
        };
        request["return_progress"] = true;
        EXPECT_EQ(answer().status, 400);
        EXPECT_EQ(answer().json()["error"]["param"], "return_progress");
        request["stream"] = true;
        request["stream_options"] = {{"include_usage", true}};
        const EventStream told(answer().body);
        ASSERT_TRUE(told.done && told.well_formed);
        ASSERT_GE(told.events.size(), 4u);
        const int total = told.events.back()["usage"]["prompt_tokens"];
        const std::vector<int> processed{0, total};
        for (std::size_t i = 0; i < told.events.size(); ++i) {
            ASSERT_EQ(told.events[i].contains("prompt_progress"), i < processed.size());
            if (i >= processed.size()) continue;
            const Json& progress = told.events[i]["prompt_progress"];
            EXPECT_TRUE(told.events[i]["choices"].empty());
            EXPECT_EQ(progress["total"], total);
            EXPECT_EQ(progress["processed"], processed[i]);
            EXPECT_EQ(progress["cache"], 0);
            EXPECT_GE(progress["time_ms"], 0);
        }
        request["return_progress"] = false;
        EXPECT_EQ(answer().body.find("prompt_progress"), std::string::npos);
    }
    const Json several{{"prompt", {"one", "two"}}, {"return_progress", true}, {"stream", true}};
    EXPECT_EQ(server.connect().request("POST", "/v1/completions", several.dump(), {}).status, 400);
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

// A character of one token a byte, in any steps: whole, or left out when the reply ends inside it.
TEST(ChatText, SplitCharactersArriveWhole) {
    for (const std::string character :
         {"\xC3\xA9", "\xE6\x97\xA5", "\xF0\x9F\x98\x80", "\xF0\x9F\x91\xA9\xE2\x80\x8D"}) {
        std::vector<TokenId> ids = tokens_of("</think>");
        for (const char byte : character)
            ids.push_back(nano_tokenizer().byte_token(static_cast<std::uint8_t>(byte)));
        for (const TokenId id : tokens_of("ok"))
            ids.push_back(id);
        const auto forms = all_step_forms(ids);
        EXPECT_EQ(same_for_all_steps(forms, ask()).content, character + "ok");
        Json request = ask();
        for (std::size_t bytes = 1; bytes < character.size(); ++bytes) {
            request["max_tokens"] = 1 + bytes;  // the end of thinking and so many bytes
            const Understood cut = same_for_all_steps(forms, request);
            EXPECT_EQ(cut.content, bytes >= 4 ? character.substr(0, 4) : "");
            EXPECT_EQ(cut.finish, "length");
            EXPECT_EQ(cut.usage["completion_tokens"], 1 + bytes);
        }
    }
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
    for (const int context : {256, 4096}) {
        ReplayServerOptions options;
        options.context = static_cast<std::uint32_t>(context);
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
            for (const int tokens : {context, context + 1, context + 44}) {
                const ClientReply refused = send(prompt(tokens), nullptr);
                EXPECT_EQ(refused.status, 400);
                const Json error = refused.json()["error"];
                EXPECT_EQ(error["code"], "context_length_exceeded");
                const std::string message = error["message"];
                EXPECT_NE(message.find(std::to_string(context)), std::string::npos);
                EXPECT_NE(message.find(std::to_string(tokens)), std::string::npos);
            }
            const auto ends = [&](const ClientReply& reply) {
                return stream ? understand_stream(reply) : understand_whole(reply);
            };
            const Understood open = ends(send(prompt(context - 96), nullptr));
            EXPECT_EQ(open.usage["completion_tokens"], 96);
            EXPECT_EQ(open.finish, "length");
            EXPECT_EQ(open.stop_reason, "context");
            const Understood exact = ends(send(prompt(context - 96), 96));
            EXPECT_EQ(exact.usage["completion_tokens"], 96);
            EXPECT_EQ(exact.stop_reason, "max_tokens");
            const Understood beyond = ends(send(prompt(context - 96), 97));
            EXPECT_EQ(beyond.usage["completion_tokens"], 96);
            EXPECT_EQ(beyond.stop_reason, "context");
            EXPECT_EQ(ends(send(prompt(context - 1), nullptr)).usage["completion_tokens"], 1);
        }
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

// Of requests that name none, whatever the route.
TEST(ChatErrors, TheServersDeadlineEndsEveryKindOfReply) {
    ReplayServerOptions options;
    options.server.deadline = std::chrono::seconds(1);
    const ReplayServer server(
        Lines{{{"match", ""}, {"steps", {"</think>", "so far"}}, {"finish", "hang"}}}, options);
    const std::pair<const char*, Json> asked[] = {
        {"/v1/chat/completions", ask()},
        {"/v1/completions", {{"prompt", "go on"}}},
        {"/v1/responses", {{"input", "go on"}}},
        {"/v1/messages", {{"messages", ask()["messages"]}, {"max_tokens", 100}}},
    };
    std::vector<std::future<ClientReply>> replies;
    for (const auto& [route, body] : asked) {
        replies.push_back(std::async(std::launch::async, [&server, route = route, body = body] {
            return server.connect().request("POST", route, body.dump(), {});
        }));
    }
    for (auto& reply : replies)
        EXPECT_EQ(reply.get().status, 200);
    EXPECT_EQ(server.metric("percheron:deadlines_total"), 4);
    // A request's own counts instead.
    Json request = ask();
    request["deadline_s"] = 0.05;
    EXPECT_EQ(understand_whole(server.chat(request)).stop_reason, "deadline");
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
