// What /status and /metrics say while requests wait, run and end.
#include <set>

#include <gtest/gtest.h>

#include "server/replay_server.h"

namespace percheron::test {
namespace {

const Json prefilling{{"match", "prefill"}, {"steps", {"x"}}, {"prefill_ms", 600000}};
const Json thinking{{"match", "think"},
                    {"steps", {"One ", "two", " three"}},
                    {"finish", "hang"},
                    {"draft", {{"drafted", 3}, {"accepted", 2}}}};
const Json answering{
    {"match", "answer"}, {"steps", {"Hm.", "</think>", "A word"}}, {"finish", "hang"}};

std::string stream_text(const std::string& content, Json more = Json::object()) {
    more["messages"] = user_message(content);
    more["stream"] = true;
    return HttpClient::request_text("POST", "/v1/chat/completions", more.dump());
}

// The rows, once there are so many and `holds` is true of the last.
template <class Condition>
Json rows_when(const ReplayServer& server, std::size_t count, Condition holds) {
    while (true) {
        const Json status = server.get("/status").json();
        const Json& rows = status["requests"];
        const std::size_t all = rows.size() + status["requests_left_out"].get<std::size_t>();
        if (all == count && holds(rows)) return rows;
    }
}

Json rows_when(const ReplayServer& server, std::size_t count) {
    return rows_when(server, count, [](const Json& /*rows*/) { return true; });
}

TEST(StatusRequestsTest, EachPhaseShowsItsCounts) {
    ReplayServerOptions options;
    options.max_running = 3;
    const ReplayServer server(Lines{prefilling, thinking, answering}, options);
    EXPECT_EQ(server.get("/status").json()["requests"], Json::array());
    EXPECT_EQ(server.get("/status").json()["requests_left_out"], 0);

    const std::string words[] = {"prefill", "think about a secret", "answer", "answer later"};
    std::vector<HttpClient> clients;
    for (const std::string& word : words) {
        clients.push_back(server.connect());
        clients.back().send(stream_text(word));
        rows_when(server, clients.size());  // they come in this order
    }
    const Json rows = rows_when(server, 4, [](const Json& rows) {
        return rows[1]["rounds"] == 3 && rows[2]["phase"] == "answer";
    });
    const char* phases[] = {"prefill", "thinking", "answer", "queued"};
    std::set<std::string> ids;
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(rows[i]["phase"], phases[i]);
        EXPECT_EQ(rows[i]["route"], "/v1/chat/completions");
        EXPECT_EQ(rows[i]["id"].get<std::string>().rfind("chatcmpl-", 0), 0u);
        EXPECT_EQ(rows[i]["choices"], 1);
        EXPECT_EQ(rows[i]["cached_tokens"], 0);
        EXPECT_GE(rows[i]["seconds"], 0);
        EXPECT_GE(rows[i]["tok_s"], 0);
        const Json count =
            server.connect()
                .request("POST", "/tokenize", Json{{"messages", user_message(words[i])}}.dump())
                .json();
        EXPECT_EQ(rows[i]["prompt_tokens"], count["count"]);
        ids.insert(rows[i]["id"]);
    }
    EXPECT_EQ(ids.size(), 4u);
    const auto tokens_of = [&](const Json& line) {
        int count = 0;
        for (const std::string step : line["steps"]) {
            count += server.connect()
                         .request("POST", "/tokenize", Json{{"prompt", step}}.dump())
                         .json()["count"]
                         .get<int>();
        }
        return count;
    };
    EXPECT_EQ(rows[0]["generated_tokens"], 0);
    EXPECT_EQ(rows[1]["generated_tokens"], tokens_of(thinking));
    EXPECT_EQ(rows[2]["generated_tokens"], tokens_of(answering));
    EXPECT_EQ(rows[3]["generated_tokens"], 0);
    EXPECT_EQ(rows[1]["drafted"], 9);
    EXPECT_EQ(rows[1]["accepted"], 6);
    EXPECT_EQ(rows[2]["rounds"], 0);

    // Counts and names only.
    const std::string text = server.get("/status").body;
    for (const char* word : {"secret", "later", "One", "A word"}) {
        EXPECT_EQ(text.find(word), std::string::npos) << word;
    }
    clients.clear();
    EXPECT_EQ(rows_when(server, 0), Json::array());
}

TEST(StatusRequestsTest, TheStreamCarriesTheIdShown) {
    const ReplayServer server(Lines{answering});
    HttpClient client = server.connect();
    client.send(stream_text("answer"));
    const Json rows = rows_when(server, 1);
    client.receive_until("\n\n");
    EXPECT_NE(client.buffered().find(rows[0]["id"].get<std::string>()), std::string::npos);
}

TEST(StatusRequestsTest, OldestFirstAndNoMoreThanAHundred) {
    const ReplayServer server(Lines{answering});
    std::vector<HttpClient> clients;
    std::vector<std::string> ids;
    for (std::size_t count = 1; count <= 107; ++count) {
        clients.push_back(server.connect());
        clients.back().send(stream_text("answer"));
        const Json rows = rows_when(server, count);
        EXPECT_EQ(rows.size(), std::min<std::size_t>(count, 100));
        for (std::size_t i = 0; i < ids.size(); ++i)
            EXPECT_EQ(rows[i]["id"], ids[i]);
        if (rows.size() > ids.size()) ids.push_back(rows.back()["id"]);
    }
    EXPECT_EQ(server.get("/status").json()["requests_left_out"], 7);
    // One of the oldest goes: the next one comes into sight.
    clients.erase(clients.begin() + 50);
    const Json rows = rows_when(server, 106);
    ids.erase(ids.begin() + 50);
    for (std::size_t i = 0; i < ids.size(); ++i)
        EXPECT_EQ(rows[i]["id"], ids[i]);
}

// The phase is that of the choices still open.
TEST(StatusRequestsTest, ChoicesOfOneRequestAreOneRow) {
    const auto unmatched = [](Json line) {
        line.erase("match");
        return line;
    };
    const Json cut{{"steps", {"On and on"}}, {"finish", "length"}};
    const Json whole{{"steps", {"Hm.</think>", "done"}}};
    const std::pair<Lines, const char*> cases[] = {
        {{unmatched(thinking), whole}, "thinking"},
        {{unmatched(answering), cut}, "answer"},
        {{unmatched(answering), unmatched(thinking)}, "thinking"}};
    for (const auto& [lines, phase] : cases) {
        const ReplayServer server(lines);
        HttpClient client = server.connect();
        client.send(stream_text("two", {{"n", 2}}));
        const Json rows = rows_when(server, 1, [&](const Json& rows) {
            return rows[0]["phase"] == phase && rows[0]["generated_tokens"] > 4;
        });
        EXPECT_EQ(rows[0]["choices"], 2);
    }
}

TEST(MetricsTest, DraftsAreCountedWhileTheReplyRunsAndOnce) {
    Json ending = thinking;
    ending["finish"] = "stop";
    ending["match"] = "end";
    const ReplayServer server(Lines{thinking, ending});
    const auto drafts = [&] {
        return std::vector<double>{server.metric("vllm:spec_decode_num_drafts_total"),
                                   server.metric("vllm:spec_decode_num_draft_tokens_total"),
                                   server.metric("vllm:spec_decode_num_accepted_tokens_total")};
    };
    EXPECT_EQ(server.metric("percheron:draft_acceptance"), 0);
    HttpClient client = server.connect();
    client.send(stream_text("think"));
    rows_when(server, 1, [](const Json& rows) { return rows[0]["rounds"] == 3; });
    EXPECT_EQ(drafts(), (std::vector<double>{3, 9, 6}));
    client.close();
    rows_when(server, 0);
    server.settle();
    EXPECT_EQ(drafts(), (std::vector<double>{3, 9, 6}));
    EXPECT_EQ(server.chat({{"messages", user_message("end")}}).status, 200);
    EXPECT_EQ(drafts(), (std::vector<double>{6, 18, 12}));
    EXPECT_NEAR(server.metric("percheron:draft_acceptance"), 12.0 / 18.0, 1e-6);
    const std::string text = server.get("/metrics").body;
    for (const char* position : {"position=\"0\"} 6\n", "position=\"1\"} 6\n",
                                 "position=\"2\"} 0\n", "position=\"3\"} 0\n"}) {
        EXPECT_NE(text.find(position), std::string::npos) << position;
    }
}

TEST(MetricsTest, OwnNamesAreThereFromTheStartAndNotUnderForeignOnes) {
    const ReplayServer server(Lines{answering});
    const std::string text = server.get("/metrics").body;
    for (const std::string name :
         {"prefill_tokens_per_second", "decode_tokens_per_second", "kv_tokens_used", "checkpoints",
          "reprefill_pending_tokens", "steps_total", "preemptions_total", "images_encoded_total",
          "images_reused_total", "draft_acceptance", "loops_total", "deadlines_total",
          "disconnects_total"}) {
        EXPECT_EQ(server.metric("percheron:" + name), 0) << name;
        EXPECT_EQ(text.find("vllm:" + name), std::string::npos) << name;
    }
    EXPECT_EQ(server.metric("percheron:kv_tokens_total"), 4096.0 * 1024);
    EXPECT_GT(server.metric("percheron:resident_memory_bytes"), 1e6);
    const double uptime = server.metric("percheron:uptime_seconds");
    EXPECT_GT(uptime, 0);
    EXPECT_GT(server.metric("percheron:uptime_seconds"), uptime);
    EXPECT_EQ(server.chat({{"messages", user_message("other")}}).status, 500);
    HttpClient client = server.connect();
    client.send(stream_text("answer"));
    rows_when(server, 1, [](const Json& rows) { return rows[0]["phase"] == "answer"; });
    EXPECT_GT(server.metric("percheron:steps_total"), 0);
    EXPECT_EQ(server.metric("vllm:num_requests_running"), 1);
}

// Tells of an admission together with the first tokens, as an engine does whose first step computes
// the whole prompt.
class LateSink final : public EngineEventSink {
  public:
    explicit LateSink(EngineEventSink& sink) : sink_(sink) {}
    void on_events(EngineEvents& events) override {
        held_.insert(held_.end(), events.admitted.begin(), events.admitted.end());
        events.admitted.clear();
        if (!events.runs.empty()) std::swap(events.admitted, held_);
        for (EngineEvents::Finished& finished : events.finished)
            finished.statistics.queue_seconds = 0.25;
        if (!events.empty()) sink_.on_events(events);
    }

  private:
    EngineEventSink& sink_;
    std::vector<EngineEvents::Admitted> held_;
};

class LateEngine final : public Engine {
  public:
    explicit LateEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
    const EngineDescription& description() const override { return engine_->description(); }
    EngineStatus status() const override { return engine_->status(); }
    Result<RequestId> submit(GenerationRequest request, EngineEventSink& sink) override {
        if (!sink_) sink_ = std::make_unique<LateSink>(sink);
        return engine_->submit(std::move(request), *sink_);
    }
    void cancel(RequestId request, std::uint32_t choice) override {
        engine_->cancel(request, choice);
    }

  private:
    std::unique_ptr<EngineEventSink> sink_;  // goes after the engine that uses it
    std::unique_ptr<Engine> engine_;
};

TEST(MetricsTest, QueueTimeIsTheEnginesAndHoldsNoPrefill) {
    ReplayServerOptions options;
    options.wrap = [](std::unique_ptr<Engine> engine) {
        return std::make_unique<LateEngine>(std::move(engine));
    };
    const ReplayServer server(Lines{Json{{"match", ""}, {"steps", {"Hm.</think>", "ok"}}}},
                              options);
    for (const int choices : {1, 3}) {
        EXPECT_EQ(server.chat({{"messages", user_message("quick")}, {"n", choices}}).status, 200);
    }
    EXPECT_EQ(server.metric("vllm:request_queue_time_seconds_count"), 2);
    EXPECT_EQ(server.metric("vllm:request_queue_time_seconds_sum"), 0.5);
}

TEST(StatusTest, NamesTheServer) {
    const ReplayServer server(Lines{answering});
    const Json status = server.get("/status").json();
    EXPECT_EQ(status["model"], "nano");
    EXPECT_EQ(status["context_tokens"], 4096);
    EXPECT_GE(status["uptime_seconds"], 0);
}

}  // namespace
}  // namespace percheron::test
