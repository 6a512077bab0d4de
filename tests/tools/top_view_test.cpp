// The picture of `percheron top` at every size, and its figures against what the server said.
#include "tools/top_view.h"

#include <algorithm>
#include <random>
#include <regex>

#include <gtest/gtest.h>

#include "tools/figure_text.h"
#include "tools/styled_lines.h"
#include "tools/top_history.h"

namespace percheron::tools {
namespace {

const std::string metrics_text =
    "percheron:uptime_seconds{m=\"x\"} 7265.5\n"
    "percheron:num_requests_running{m=\"x\"} 3\n"
    "percheron:num_requests_waiting{m=\"x\"} 12\n"
    "percheron:prefill_tokens_per_second{m=\"x\"} 1204.04\n"
    "percheron:decode_tokens_per_second{m=\"x\"} 250.25\n"
    "percheron:kv_tokens_total{m=\"x\"} 131072\n"
    "percheron:kv_tokens_used{m=\"x\"} 12345\n"
    "percheron:checkpoints{m=\"x\"} 7\n"
    "percheron:resident_memory_bytes{m=\"x\"} 851443712\n"
    "percheron:prefix_cache_queries_total{m=\"x\"} 2000\n"
    "percheron:prefix_cache_hits_total{m=\"x\"} 1225\n"
    "percheron:spec_decode_num_draft_tokens_total{m=\"x\"} 300\n"
    "percheron:spec_decode_num_accepted_tokens_total{m=\"x\"} 200\n"
    "percheron:images_encoded_total{m=\"x\"} 4\n"
    "percheron:images_reused_total{m=\"x\"} 2\n"
    "percheron:loops_total{m=\"x\"} 5\n"
    "percheron:disconnects_total{m=\"x\"} 6\n"
    "percheron:preemptions_total{m=\"x\"} 8\n"
    "percheron:http_replies_total{m=\"x\",status=\"200\"} 345\n"
    "percheron:http_replies_total{m=\"x\",status=\"400\"} 21\n"
    "percheron:http_replies_total{m=\"x\",status=\"401\"} 0\n"
    "percheron:time_to_first_token_seconds_bucket{m=\"x\",le=\"0.1\"} 10\n"
    "percheron:time_to_first_token_seconds_bucket{m=\"x\",le=\"+Inf\"} 10\n"
    "percheron:time_to_first_token_seconds_count{m=\"x\"} 10\n";

const std::string status_text = R"({"model": "nano", "context_tokens": 4096, "draining": false,
    "requests": [
      {"id": "chatcmpl-39f5314173b648e338d98b79", "route": "/v1/chat/completions",
       "phase": "thinking", "prompt_tokens": 1204, "cached_tokens": 1152, "generated_tokens": 345,
       "choices": 1, "seconds": 12.25, "tok_s": 33.5, "rounds": 9, "drafted": 30, "accepted": 20},
      {"id": "cmpl-2", "route": "/v1/completions", "phase": "queued", "prompt_tokens": 5,
       "cached_tokens": 0, "generated_tokens": 0, "choices": 2, "seconds": 0.5, "tok_s": 0,
       "rounds": 0, "drafted": 0, "accepted": 0}],
    "requests_left_out": 9})";

ServerSample sample() {
    auto read = read_sample(metrics_text, status_text);
    EXPECT_TRUE(read.ok()) << read.error().message();
    return *read;
}

std::string joined(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines)
        text += line + "\n";
    return text;
}

std::string picture(const ServerSample& now, TopLook look) {
    TopHistory history("http://127.0.0.1:8000");
    history.add(now, 0);
    return joined(render_top(history.state(), look));
}

void expect_all(const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts)
        EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
}

TEST(TopViewTest, EveryFigureIsTheServers) {
    const std::string text = picture(sample(), {.columns = 160, .rows = 40});
    expect_all(text,
               {"percheron top   nano   http://127.0.0.1:8000   context 4,096   up 2 h 01 min",
                "running 3   waiting 12   KV 12,345 of 131,072 tokens (9.4 %)",
                "checkpoints 7   memory 812 MiB", "prefill 1,204.0 tok/s", "decode 250.3 tok/s",
                "cache hits 61.3 %   draft acceptance 66.7 %", "images 4 encoded, 2 reused",
                "status 200 345   status 400 21   disconnects 6", "loops 5   preemptions 8",
                "first token 50 ms / 90 ms / 99 ms", "next token - / - / -", "and 9 more"});
    EXPECT_EQ(text.find("status 401"), std::string::npos);
    const std::regex row(
        "39f5314173b648e338d98b79  /v1/chat/completions  thinking +1 +1,204 +1,152 +345 +33\\.5 "
        "+12 s "
        "+66\\.7 %");
    EXPECT_TRUE(std::regex_search(text, row)) << text;
    const std::string line = render_top_line(sample());
    expect_all(line, {"up 2 h 01 min  running 3  waiting 12  prefill 1,204.0 tok/s  "
                      "decode 250.3 tok/s  KV 9.4 %  cache hits 61.3 %  draft acceptance 66.7 %"});
}

TEST(TopViewTest, NothingIsEverTooWideOrTooLong) {
    ServerSample busy = sample();
    busy.model = "a model with a rather long name / \xC3\xA9t\xC3\xA9";
    busy.requests.resize(40, busy.requests[0]);
    for (RequestSample& request : busy.requests)
        request.prompt_tokens *= 1e9;
    std::mt19937 random(6);
    TopHistory history("http://127.0.0.1:8000");
    for (int i = 0; i < 100; ++i) {
        busy.prefill_per_second = static_cast<double>(random() % 5000);
        history.add(busy, i);
    }
    for (const bool unicode : {false, true}) {
        for (const std::string& trouble :
             {std::string(), std::string("cannot reach it ") + std::string(150, 'x')}) {
            if (!trouble.empty()) history.fail(trouble);
            for (std::size_t columns = 1; columns <= 220; ++columns) {
                for (const std::size_t rows : {1, 2, 3, 5, 8, 13, 24, 60}) {
                    const auto plain =
                        render_top(history.state(), {columns, rows, false, unicode, true});
                    ASSERT_LE(plain.size(), rows);
                    for (const std::string& line : plain) {
                        ASSERT_LE(columns_of(line), columns) << line;
                        for (const char c : line) {
                            ASSERT_GE(static_cast<unsigned char>(c), 0x20u);
                            ASSERT_TRUE(unicode || static_cast<unsigned char>(c) < 0x80u) << line;
                        }
                    }
                    // Colour adds sequences and changes nothing else.
                    const auto colour =
                        render_top(history.state(), {columns, rows, true, unicode, true});
                    ASSERT_EQ(colour.size(), plain.size());
                    const std::regex sequence("\033\\[[0-9;]*m");
                    if (rows == 24 && columns % 20 == 0) {
                        for (std::size_t i = 0; i < plain.size(); ++i) {
                            std::string bare = std::regex_replace(colour[i], sequence, "");
                            bare.erase(bare.find_last_not_of(' ') + 1);
                            EXPECT_EQ(bare, plain[i]);
                        }
                    }
                }
            }
        }
    }
}

TEST(TopViewTest, WhatFitsIsShownAndTheRestCounted) {
    ServerSample busy = sample();
    busy.requests_left_out = 0;
    busy.requests.resize(30, busy.requests[0]);
    for (std::size_t i = 0; i < busy.requests.size(); ++i)
        busy.requests[i].id = "chatcmpl-number" + std::to_string(1000 + i);
    std::size_t most_shown = 0;
    for (std::size_t rows = 1; rows < 60; ++rows) {
        for (const std::size_t columns : {80, 200}) {
            const std::string text = picture(busy, {.columns = columns, .rows = rows});
            std::size_t shown = 0;
            for (const RequestSample& request : busy.requests)
                shown += text.find(request.id.substr(9)) != std::string::npos ? 1 : 0;
            most_shown = std::max(most_shown, shown);
            const bool table = text.find("REQUEST") != std::string::npos;
            const std::string more = "\nand " + std::to_string(30 - shown) + " more\n";
            EXPECT_EQ(table, shown > 0) << text;
            EXPECT_EQ(text.find(more) != std::string::npos, table && shown < 30) << text;
            if (!table && rows >= 10) expect_all(text, {"\n30 requests\n"});
        }
    }
    EXPECT_EQ(most_shown, 30u);
}

TEST(TopViewTest, NarrowTablesKeepTheImportantColumns) {
    const auto heading = [](std::size_t columns) {
        const std::string text = picture(sample(), {.columns = columns, .rows = 60});
        const std::size_t at = text.find("REQUEST");
        return text.substr(at, text.find('\n', at) - at);
    };
    EXPECT_EQ(std::regex_replace(heading(40), std::regex(" +"), " "), "REQUEST PHASE TOKENS TOK/S");
    EXPECT_EQ(std::regex_replace(heading(62), std::regex(" +"), " "),
              "REQUEST PHASE PROMPT TOKENS TOK/S TIME");
    EXPECT_EQ(std::regex_replace(heading(140), std::regex(" +"), " "),
              "REQUEST ROUTE PHASE N PROMPT CACHED TOKENS TOK/S TIME ACCEPTED");
    EXPECT_EQ(heading(8), "REQUEST");
}

TEST(TopViewTest, NothingOfTheServerMovesTheCursor) {
    auto evil = read_sample(metrics_text,
                            R"({"model": "\u001b[2Jgone\r\n\u0007\u009b1A\u202edes", "requests":
        [{"id": "x\u001b]0;t\u0007", "route": "\t\u0000/", "phase": "a\nb"}]})");
    ASSERT_TRUE(evil.ok());
    for (const bool colour : {false, true}) {
        TopHistory history("http://x\x1b[2J");
        history.add(*evil, 0);
        history.fail("bad \x1b[31m thing\n");
        for (std::string line :
             render_top(history.state(), {.columns = 200, .rows = 50, .colour = colour})) {
            line = std::regex_replace(line, std::regex("\033\\[[0-9;]*m"), "");
            for (const char c : line) {
                EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) << line;
            }
            EXPECT_EQ(line.find("\xC2\x9B"), std::string::npos);
            EXPECT_EQ(line.find("\xE2\x80\xAE"), std::string::npos);
        }
    }
}

TEST(TopViewTest, TheLastMinuteIsADifference) {
    TopHistory history("u");
    ServerSample now = sample();
    now.cache_hits = 0;
    now.cache_queries = 1000;
    for (int second = 0; second <= 90; ++second) {
        now.uptime_seconds = 100 + second;
        if (second > 40) now.cache_queries += 10;  // half of it found
        if (second > 40) now.cache_hits += 5;
        history.add(now, second);
    }
    expect_all(joined(render_top(history.state(), {.columns = 160, .rows = 40})),
               {"cache hits 16.7 % (last minute 50.0 %)", "draft acceptance 66.7 %   images"});
    EXPECT_EQ(history.state().earlier->uptime_seconds, 130);
    EXPECT_EQ(history.state().decode_rates.size(), 91u);

    // Another run of the server counts anew.
    now.uptime_seconds = 1;
    now.cache_hits = 1;
    now.cache_queries = 4;
    history.add(now, 91);
    expect_all(joined(render_top(history.state(), {.columns = 160, .rows = 40})),
               {"cache hits 25.0 %   draft"});
}

TEST(TopViewTest, SparklinesRiseWithTheirRates) {
    TopHistory history("u");
    ServerSample now = sample();
    for (const double rate : {0.0, 1.0, 50.0, 100.0}) {
        now.prefill_per_second = rate;
        now.decode_per_second = 0;
        history.add(now, rate);
    }
    expect_all(joined(render_top(history.state(), {.columns = 120, .rows = 40})), {"▁▂▅█", "▁▁▁▁"});
    expect_all(joined(render_top(history.state(), {.columns = 120, .rows = 40, .unicode = false})),
               {"_.=#", "____"});
}

TEST(TopViewTest, TroubleStandsAboveTheLastFigures) {
    TopHistory history("http://127.0.0.1:8000");
    history.add(sample(), 0);
    history.fail("cannot reach it; check that percheron serve runs there");
    expect_all(joined(render_top(history.state(), {.columns = 100, .rows = 30})),
               {"\ncannot reach it; check that percheron serve runs there\n", "running 3"});
    history.add(sample(), 1);
    EXPECT_EQ(joined(render_top(history.state(), {.columns = 100, .rows = 30})).find("cannot"),
              std::string::npos);
}

TEST(ServerSampleTest, ForeignServersAreRefusedAndOddOnesRead) {
    EXPECT_EQ(read_sample("vllm:num_requests_running 1\n", "{}").error().code(),
              ErrorCode::unsupported);
    EXPECT_EQ(read_sample("<html>", "{}").error().code(), ErrorCode::corrupt);
    for (const char* status : {"", "[]", "null", "{", "\xff", "5"}) {
        EXPECT_EQ(read_sample(metrics_text, status).error().code(), ErrorCode::corrupt) << status;
    }
    for (
        const char* status :
        {"{}", R"({"requests": 5, "model": 3, "context_tokens": "x", "draining": []})",
         R"({"requests": [null, 3, {"id": 5, "tok_s": "fast", "seconds": -1}]})",
         R"({"requests": [{"tok_s": 1e308, "seconds": 1e308, "generated_tokens": -5}], "requests_left_out": -1})"}) {
        const auto odd = read_sample(metrics_text, status);
        ASSERT_TRUE(odd.ok()) << status;
        EXPECT_FALSE(picture(*odd, {.columns = 100, .rows = 30}).empty());
    }
    auto wild = read_sample(
        "percheron:uptime_seconds NaN\npercheron:kv_tokens_total +Inf\n"
        "percheron:num_requests_running -1e308\n",
        "{}");
    ASSERT_TRUE(wild.ok());
    expect_all(picture(*wild, {.columns = 100, .rows = 30}), {"running -", "KV 0 of 0 tokens (-)"});
    std::string rows;
    for (std::size_t i = 0; i < ServerSample::most_requests + 5; ++i)
        rows += "{},";
    rows.pop_back();
    EXPECT_EQ(read_sample(metrics_text, "{\"requests\": [" + rows + "]}")->requests.size(),
              ServerSample::most_requests);
}

TEST(FigureTextTest, ReadsAsPeopleWriteIt) {
    const std::pair<double, const char*> wholes[] = {
        {0, "0"}, {999, "999"}, {1000, "1,000"}, {1234567, "1,234,567"}, {-1, "-"}, {1e300, "-"}};
    for (const auto& [number, text] : wholes)
        EXPECT_EQ(whole_text(number), text);
    EXPECT_EQ(rate_text(0), "0.0");
    EXPECT_EQ(rate_text(12345.67), "12,345.7");
    EXPECT_EQ(rate_text(0.25), "0.3");
    EXPECT_EQ(share_text(0.6125), "61.3 %");
    EXPECT_EQ(share_text(1), "100.0 %");
    const std::pair<double, const char*> latencies[] = {{0.0008, "0.8 ms"}, {0.00994, "9.9 ms"},
                                                        {0.00996, "10 ms"}, {0.25, "250 ms"},
                                                        {0.9996, "1.00 s"}, {12.345, "12.35 s"}};
    for (const auto& [seconds, text] : latencies)
        EXPECT_EQ(latency_text(seconds), text);
    const std::pair<double, const char*> durations[] = {
        {0, "0.0 s"},         {9.94, "9.9 s"},         {9.96, "10 s"},
        {119.4, "119 s"},     {119.6, "2 min"},        {7199, "119 min"},
        {7200, "2 h 00 min"}, {172799, "47 h 59 min"}, {172800, "2 d 00 h"}};
    for (const auto& [seconds, text] : durations)
        EXPECT_EQ(duration_text(seconds), text);
    EXPECT_EQ(bytes_text(851443712), "812 MiB");
    EXPECT_EQ(bytes_text(1.6 * 1024 * 1024 * 1024), "1.6 GiB");
}

}  // namespace
}  // namespace percheron::tools
