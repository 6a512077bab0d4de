// Connections: keeping, pipelining, old clients, bodies in every form, slow and vanished peers.
#include <random>

#include <gtest/gtest.h>

#include "server/replay_server.h"

namespace percheron::test {
namespace {

const Json quick{{"match", "quick"}, {"steps", {"</think>", "ok"}}};
const Json hang{{"match", "hang"}, {"steps", {"x"}}, {"finish", "hang"}};
const Json slow_prefill{{"match", "prefill"}, {"steps", {"x"}}, {"prefill_ms", 600000}};

std::string chat_text(const std::string& message, bool stream = false,
                      std::string_view headers = {}) {
    const Json body{{"messages", user_message(message)}, {"stream", stream}};
    return HttpClient::request_text("POST", "/v1/chat/completions", body.dump(), headers);
}

TEST(ConnectionTest, ServesManyRequestsOnOneConnection) {
    const ReplayServer server(Lines{quick});
    HttpClient client = server.connect();
    for (int i = 0; i < 20; ++i) {
        ASSERT_TRUE(client.send(chat_text("quick", i % 2 == 0)));
        const ClientReply reply = client.read_reply();
        EXPECT_EQ(reply.status, 200);
        EXPECT_TRUE(reply.whole);
        EXPECT_EQ(reply.header("connection"), "keep-alive");
    }
}

TEST(ConnectionTest, PipelinedRequestsAreAnsweredInOrder) {
    const ReplayServer server(Lines{quick});
    HttpClient client = server.connect();
    std::string text;
    for (int i = 0; i < 8; ++i) {
        text +=
            chat_text("quick", i % 2 == 0, "x-request-id: number-" + std::to_string(i) + "\r\n");
        text += HttpClient::request_text("GET", "/version");
    }
    ASSERT_TRUE(client.send(text));
    for (int i = 0; i < 8; ++i) {
        const ClientReply chat = client.read_reply();
        EXPECT_EQ(chat.status, 200);
        EXPECT_EQ(chat.header("x-request-id"), "number-" + std::to_string(i));
        EXPECT_EQ(client.read_reply().json()["server"], "percheron");
    }
}

TEST(ConnectionTest, BodiesInEveryForm) {
    const ReplayServer server(Lines{quick});
    const std::string body = Json{{"messages", user_message("quick")}}.dump();
    std::mt19937 random(5);
    for (int round = 0; round < 20; ++round) {
        HttpClient client = server.connect();
        client.send(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
            "chunked\r\n\r\n");
        for (std::size_t at = 0; at < body.size();) {
            const std::size_t size = std::min<std::size_t>(1 + random() % 30, body.size() - at);
            char head[16];
            std::snprintf(head, sizeof head, "%zx\r\n", size);
            client.send(head + body.substr(at, size) + "\r\n");
            at += size;
        }
        client.send("0\r\n\r\n");
        EXPECT_EQ(client.read_reply().status, 200);
    }
    HttpClient waiting = server.connect();
    waiting.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        "Content-Length: " +
        std::to_string(body.size()) + "\r\n\r\n");
    ASSERT_TRUE(waiting.receive_until("HTTP/1.1 100 Continue\r\n\r\n"));
    waiting.send(body);
    EXPECT_EQ(waiting.read_reply().status, 200);
}

TEST(ConnectionTest, TooLargeBodiesAreRefusedWithoutReadingThem) {
    ReplayServerOptions options;
    options.server.max_body = 10000;
    const ReplayServer server(Lines{quick}, options);
    HttpClient client = server.connect();
    client.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        "Content-Length: 10001\r\n\r\n");
    const ClientReply reply = client.read_reply();
    EXPECT_EQ(reply.status, 413);
    EXPECT_EQ(reply.json()["error"]["code"], "request_too_large");
    EXPECT_EQ(reply.header("connection"), "close");

    HttpClient pushing = server.connect();
    pushing.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\n\r\n" +
        std::string(3000000, 'x'));
    EXPECT_EQ(pushing.read_reply().status, 413);
}

// However many clients send large bodies at a time, the server holds no more than it may; small
// requests pass, and whoever was turned away is served later.
TEST(ConnectionTest, BodiesTogetherAreBounded) {
    ReplayServerOptions options;
    options.context = 200000;
    options.server.max_body = 300 * 1024;
    options.server.request_memory = 600 * 1024;
    const ReplayServer server(Lines{quick}, options);
    const std::string body =
        Json{{"messages", user_message("quick")}, {"metadata", std::string(280 * 1024, 'x')}}
            .dump();
    const std::string head =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Length: " +
        std::to_string(body.size()) + "\r\n\r\n";
    std::vector<HttpClient> unfinished;
    for (int i = 0; i < 2; ++i) {
        unfinished.push_back(server.connect());
        ASSERT_TRUE(unfinished.back().send(head + body.substr(1)));
    }
    // Only once the server has read both: a third before that could be served, and one of the two
    // be refused in its place.
    const auto held = [&] { return server.metric("percheron:request_bytes"); };
    const double both = 2.0 * static_cast<double>(body.size() - 1);
    while (held() < both)
        std::this_thread::yield();
    EXPECT_EQ(server.metric("percheron:request_bytes_limit"), 600 * 1024);
    const ClientReply refused = server.connect().request("POST", "/v1/chat/completions", body);
    EXPECT_EQ(refused.status, 429);
    EXPECT_EQ(refused.json()["error"]["code"], "queue_full");
    EXPECT_EQ(refused.header("retry-after"), "1");
    EXPECT_EQ(server.chat({{"messages", user_message("quick")}}).status, 200);
    EXPECT_EQ(server.get("/health").status, 200);
    EXPECT_GE(held(), both);
    unfinished.clear();
    while (held() >= both / 2)
        std::this_thread::yield();
    EXPECT_EQ(server.connect().request("POST", "/v1/chat/completions", body).status, 200);
    EXPECT_LT(held(), 1024);
}

// The same of prompts whose replies are under way.
TEST(ConnectionTest, PromptsUnderWayAreBounded) {
    ReplayServerOptions options;
    options.context = 200000;
    options.server.max_body = 300 * 1024;
    options.server.request_memory = 600 * 1024;
    const ReplayServer server(
        Lines{quick, {{"match", "never"}, {"steps", {"a"}}, {"finish", "hang"}}}, options);
    std::string text;
    for (int i = 0; i < 50000; ++i)
        text += "7 \n"[i % 3];
    HttpClient first = server.connect();
    first.send(chat_text("never " + text, true));
    ASSERT_TRUE(first.receive_until("data: "));
    const auto large = [&] {
        return server.connect().request("POST", "/v1/chat/completions",
                                        Json{{"messages", user_message("quick " + text)}}.dump());
    };
    const ClientReply refused = large();
    EXPECT_EQ(refused.status, 429);
    EXPECT_EQ(refused.json()["error"]["code"], "queue_full");
    EXPECT_EQ(server.chat({{"messages", user_message("quick")}}).status, 200);
    first.close();
    server.settle();
    ClientReply later;
    do {
        later = large();
    } while (later.status == 429);
    EXPECT_EQ(later.status, 200);
}

TEST(ConnectionTest, OldClientsGetAnEndByClosing) {
    const ReplayServer server(Lines{quick});
    const std::string body = Json{{"messages", user_message("quick")}, {"stream", true}}.dump();
    HttpClient client = server.connect();
    client.send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
    const ClientReply reply = client.read_reply();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.header("transfer-encoding"), "");
    EXPECT_TRUE(EventStream(reply.body).done);

    HttpClient plain = server.connect();
    plain.send("GET /health HTTP/1.0\r\n\r\n");
    EXPECT_EQ(plain.read_reply().status, 200);
    EXPECT_TRUE(plain.ended());
    HttpClient kept = server.connect();
    kept.send("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(kept.read_reply().header("connection"), "keep-alive");
    kept.send("GET /health HTTP/1.0\r\n\r\n");
    EXPECT_EQ(kept.read_reply().status, 200);
}

TEST(ConnectionTest, MethodsAndPaths) {
    const ReplayServer server(Lines{quick});
    HttpClient client = server.connect();
    EXPECT_EQ(client.request("HEAD", "/v1/models").status, 200);
    EXPECT_EQ(client.request("GET", "/v1/models").status, 200);
    const ClientReply options = client.request("OPTIONS", "/v1/chat/completions");
    EXPECT_EQ(options.status, 204);
    EXPECT_EQ(options.header("access-control-allow-origin"), "");
    EXPECT_NE(options.header("allow").find("POST"), std::string::npos);
    const ClientReply wrong_method = client.request("GET", "/v1/chat/completions");
    EXPECT_EQ(wrong_method.status, 405);
    EXPECT_EQ(wrong_method.json()["error"]["code"], "method_not_allowed");
    const ClientReply nowhere = client.request("POST", "/v1/nothing", "{}");
    EXPECT_EQ(nowhere.status, 404);
    EXPECT_EQ(nowhere.json()["error"]["code"], "not_found");
    EXPECT_EQ(client.request("GET", "/health").status, 200);  // still the same connection
}

TEST(ConnectionTest, PagesOfOtherSitesAreRefused) {
    const ReplayServer server(Lines{quick});
    const Json body{{"messages", user_message("quick")}};
    EXPECT_EQ(server.chat(body, "Origin: http://evil.example\r\n").status, 403);
    EXPECT_EQ(server.chat(body, "Origin: null\r\n").status, 403);
    EXPECT_EQ(server.chat(body, "Origin: http://127.0.0.1\r\n").status, 200);
}

TEST(ConnectionTest, HalfOpenAndStalledPeersHoldNoOneUp) {
    ReplayServerOptions options;
    options.server.header_time = std::chrono::seconds(1);
    const ReplayServer server(Lines{quick}, options);
    std::vector<HttpClient> stalled;
    for (int i = 0; i < 100; ++i) {
        stalled.push_back(server.connect());
        if (i % 3 == 1) stalled.back().send("POST /v1/chat/comp");
        if (i % 3 == 2) {
            stalled.back().send(
                "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                "Content-Length: 100\r\n\r\n{\"messages\"");
        }
    }
    for (int i = 0; i < 20; ++i) {
        HttpClient client = server.connect();
        client.send(chat_text("quick"));
        EXPECT_EQ(client.read_reply().status, 200);
    }
    // Those who began a request and went silent are told so.
    for (int i = 0; i < 100; ++i) {
        HttpClient& client = stalled[static_cast<std::size_t>(i)];
        if (i % 3 != 0) {
            EXPECT_EQ(client.read_reply().status, 408);
        }
        // Nobody is waited for any longer, whoever sent nothing at all included.
        EXPECT_TRUE(client.ended());
    }
}

TEST(ConnectionTest, SlowReadersHoldNoOneUpAndAreDropped) {
    Json flood{{"match", "flood"}, {"steps", Json::array({"</think>"})}};
    const std::string block(20000, '7');
    for (int i = 0; i < 60; ++i)
        flood["steps"].push_back({{"plain", block}});
    ReplayServerOptions options;
    options.context = 1048576;
    options.server.write_silence = std::chrono::seconds(2);
    const ReplayServer server(Lines{flood, quick}, options);
    std::vector<HttpClient> slow;
    for (int i = 0; i < 8; ++i) {
        slow.push_back(server.connect());
        slow.back().send(chat_text("flood", true));
    }
    for (int i = 0; i < 20; ++i) {
        HttpClient client = server.connect();
        client.send(chat_text("quick", true));
        EXPECT_EQ(client.read_reply().status, 200);
    }
    // One that reads late gets all, or was dropped; none keeps work in the engine.
    server.settle();
}

// ---- clients that go away ---------------------------------------------------------------------

TEST(DisconnectTest, EndsTheWorkInEveryPhase) {
    ReplayServerOptions options;
    options.max_running = 2;
    const ReplayServer server(Lines{hang, slow_prefill, quick}, options);
    const auto running = [&] { return server.get("/status").json()["running"].get<int>(); };
    const auto waiting = [&] { return server.get("/status").json()["waiting"].get<int>(); };
    for (const bool hard : {false, true}) {
        for (const bool stream : {false, true}) {
            for (const char* phase : {"hang", "prefill"}) {
                std::vector<HttpClient> clients;
                for (int i = 0; i < 5; ++i) {  // two run, three wait
                    clients.push_back(server.connect());
                    clients.back().send(chat_text(phase, stream));
                }
                while (running() != 2 || waiting() != 3) {
                }
                for (HttpClient& client : clients)
                    hard ? client.reset() : client.close();
                server.settle();
                HttpClient next = server.connect();
                next.send(chat_text("quick"));
                EXPECT_EQ(next.read_reply().status, 200);
            }
        }
    }
    const Json status = server.get("/status").json();
    EXPECT_EQ(status["kv_tokens_free"], status["kv_tokens_total"]);
    EXPECT_EQ(server.metric("vllm:num_requests_running"), 0);
    EXPECT_EQ(server.metric("vllm:num_requests_waiting"), 0);
    EXPECT_EQ(server.metric("percheron:disconnects_total"), 40);
}

TEST(DisconnectTest, WhatWasSentEarlyHidesNoOneGoingAway) {
    ReplayServerOptions options;
    options.server.max_body = 1024 * 1024;
    const ReplayServer server(Lines{hang, quick}, options);
    for (const std::size_t early : {1ul, 65'536ul, 300'000ul, 1'000'000ul, 2'000'000ul}) {
        HttpClient client = server.connect();
        client.send(chat_text("hang"));
        while (server.get("/status").json()["running"] != 1) {
        }
        client.send(std::string(early, 'x'));
        client.close();
        server.settle();
    }
    // A whole large request may come early, and is answered.
    HttpClient client = server.connect();
    const std::string large =
        Json{{"messages", user_message("quick")}, {"user", std::string(900'000, 'x')}}.dump();
    client.send(chat_text("quick") +
                HttpClient::request_text("POST", "/v1/chat/completions", large));
    EXPECT_EQ(client.read_reply().status, 200);
    EXPECT_EQ(client.read_reply().status, 200);
}

TEST(DisconnectTest, AThousandAtRandomPointsLeaveNothing) {
    Json talk{{"match", "talk"}, {"steps", Json::array()}, {"delay_ms", 1}, {"prefill_ms", 3}};
    for (int i = 0; i < 40; ++i)
        talk["steps"].push_back(" word");
    ReplayServerOptions options;
    options.max_running = 8;
    options.server.max_queued = 100000;
    const ReplayServer server(Lines{talk, quick}, options);
    std::mt19937 random(11);
    std::vector<HttpClient> open;
    for (int i = 0; i < 1000; ++i) {
        open.push_back(server.connect());
        const std::string text = chat_text("talk", random() % 2 == 0);
        // Some go before they have even said what they want.
        const std::size_t length = random() % 8 == 0 ? random() % text.size() : text.size();
        open.back().send(text.substr(0, length));
        if (random() % 4 == 0) open.back().receive_within(static_cast<int>(random() % 20));
        while (open.size() > 30) {
            const std::size_t which = random() % open.size();
            std::swap(open[which], open.back());
            if (random() % 2 == 0) open.back().reset();
            open.pop_back();
        }
    }
    open.clear();
    // Requests that were read when their client had already gone come and go after the first calm.
    for (int calm = 0; calm < 20; ++calm) {
        server.settle();
    }
    EXPECT_EQ(server.metric("vllm:num_requests_running"), 0);
    EXPECT_EQ(server.metric("vllm:num_requests_waiting"), 0);
    EXPECT_EQ(server.metric("vllm:kv_cache_usage_perc"), 0);
    HttpClient next = server.connect();
    next.send(chat_text("quick"));
    EXPECT_EQ(next.read_reply().status, 200);
}

// ---- shutting down ----------------------------------------------------------------------------

TEST(ShutdownTest, RunningRepliesEndAndNewOnesAreRefused) {
    Json talk{{"match", "talk"}, {"steps", Json::array({"</think>"})}, {"delay_ms", 20}};
    for (int i = 0; i < 40; ++i)
        talk["steps"].push_back("7");
    ReplayServer server(Lines{talk, quick});
    HttpClient streaming = server.connect();
    HttpClient idle = server.connect();
    EXPECT_EQ(idle.request("GET", "/health").status, 200);
    streaming.send(chat_text("talk", true));
    ASSERT_TRUE(streaming.receive_until("content"));
    server.server().shut_down();
    while (idle.request("GET", "/health").status == 200) {
    }
    HttpClient late = server.connect();
    late.send(chat_text("quick"));
    const ClientReply refused = late.read_reply();
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(refused.json()["error"]["code"], "shutting_down");
    const ClientReply reply = streaming.read_reply();
    const EventStream stream(reply.body);
    EXPECT_TRUE(reply.whole && stream.done);
    std::string content;
    for (const Json& event : stream.events) {
        const Json& delta = event["choices"][0]["delta"];
        if (delta.contains("content")) content += delta["content"];
    }
    EXPECT_EQ(content, std::string(40, '7'));
    server.server().wait();
}

TEST(ShutdownTest, GraceIsBounded) {
    ReplayServerOptions options;
    options.server.grace = std::chrono::seconds(1);
    ReplayServer server(Lines{hang}, options);
    HttpClient streaming = server.connect();
    HttpClient whole = server.connect();
    streaming.send(chat_text("hang", true));
    whole.send(chat_text("hang"));
    ASSERT_TRUE(streaming.receive_until("reasoning"));
    server.server().shut_down();
    const EventStream stream(streaming.read_reply().body);
    EXPECT_TRUE(stream.done);
    EXPECT_EQ(stream.events.back()["error"]["code"], "shutting_down");
    EXPECT_EQ(whole.read_reply().status, 503);
    server.server().wait();
}

}  // namespace
}  // namespace percheron::test
