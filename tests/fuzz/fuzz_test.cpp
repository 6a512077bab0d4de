// Each fuzz entry over seeded inputs: bytes, and pieces that mean something to it.
#include "fuzz.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace percheron::fuzz {
namespace {

void feed(void (*entry)(Input), const std::vector<std::string>& pieces, unsigned seed, int inputs) {
    std::mt19937 random(seed);
    for (int i = 0; i < inputs; ++i) {
        std::string bytes(1, static_cast<char>(random()));
        const std::size_t length = 1 + random() % 120;
        while (bytes.size() < length) {
            if (random() % 4 == 0) {
                bytes += static_cast<char>(random());
            } else {
                bytes += pieces[random() % pieces.size()];
            }
        }
        entry({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
    }
}

// An entry aborts when a promise is broken, so coming back is the assertion.
TEST(Fuzz, TokenizerKeepsItsPromises) {
    feed(tokenizer,
         {"<|user|>", "</think>", "'s", "  ", "\n", "12", "\xE6\x97\xA5", "a", "word",
          "{\"model\":"},
         21, 5000);
    SUCCEED();
}

TEST(Fuzz, TemplatesAndChatsKeepTheirPromises) {
    feed(chat_template,
         {"{{ ",
          " }}",
          "{% ",
          " %}",
          "{%- ",
          " -%}",
          "if ",
          "endif",
          "for x in l",
          "endfor",
          "set x = ",
          "macro m(a)",
          "endmacro",
          "m(1)",
          "s",
          "l",
          "d",
          "n",
          "messages",
          ".role",
          "[0]",
          "[::-1]",
          " | ",
          "tojson",
          "join(',')",
          "upper",
          " ~ ",
          " + ",
          " * ",
          "(",
          ")",
          "'",
          "\"",
          "99999999",
          "is defined",
          "namespace(",
          "range(",
          "{#",
          "#}",
          "in ",
          "not ",
          "<|user|>",
          "[{\"role\":\"user\",\"content\":",
          "}]",
          "null"},
         22, 20000);
    SUCCEED();
}

TEST(Fuzz, RepliesKeepTheirPromises) {
    feed(reply,
         {"f",
          "list_rooms",
          "\xE2",
          "\xE3",
          "\xE4",
          "\xE5",
          "\xE6",
          "\xE7",
          "\xE2"
          "f\xE4"
          "a\xE5\xE6",
          "\xE7\xE3",
          " ",
          "\n",
          "ab",
          "c",
          "null",
          "{\"x\":1}",
          "\xFE\xF0\xFE\x9F",
          "=",
          ">",
          "\xFD"},
         23, 20000);
    SUCCEED();
}

TEST(Fuzz, HttpRequestsKeepTheirPromises) {
    feed(http_request,
         {"GET / HTTP/1.1\r\n", "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n", "\r\n",
          "Host: a\r\n", "Content-Length: 5\r\n",
          "Content-Length: ", "Transfer-Encoding: chunked\r\n", "Expect: 100-continue\r\n",
          "5\r\nhello\r\n", "0\r\n\r\n", "hello", ":", " ", "\t", "\r", "http://h/p?q", "HTTP/1.0",
          "Connection: close\r\n", "ffffffffffffffff\r\n"},
         24, 20000);
    SUCCEED();
}

TEST(Fuzz, ChatBodiesKeepTheirPromises) {
    feed(chat_body,
         {"{\"messages\":[",
          "{\"role\":\"user\",\"content\":\"",
          "{\"role\":\"tool\",\"content\":null",
          "\"tool_calls\":[",
          "{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}",
          "\"}",
          "}",
          "]",
          ",",
          "\"tools\":[",
          "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}",
          "\"temperature\":",
          "0.5",
          "\"stop\":",
          "\"n\":",
          "-1",
          "1e400",
          "null",
          "true",
          "\"seed\":",
          "\"logit_bias\":{\"1\":2}",
          "[{\"type\":\"text\",\"text\":\"x\"}]",
          "\"stream\":true",
          "\"reasoning_effort\":\"low\"",
          "\\u0000",
          "\\ud800",
          "\xF0\x9F\x98\x80",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"},
         25, 20000);
    SUCCEED();
}

TEST(Fuzz, BodiesOfTheOtherRoutesKeepTheirPromises) {
    feed(api_body,
         {"{\"prompt\":",
          "{\"input\":[",
          "{\"messages\":[{\"role\":\"user\",\"content\":[",
          "{\"prompt\":\"a\",",
          "{\"input\":\"a\",",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],",
          "\"a b\"",
          "[1,2]",
          "\"echo\":true",
          "\"logprobs\":1",
          "\"system\":",
          "\"instructions\":\"x\"",
          "\"previous_response_id\":\"resp_1\"",
          "{\"type\":\"text\",\"text\":\"x\"}",
          "{\"type\":\"thinking\",\"thinking\":\"x\"}",
          "{\"type\":\"tool_use\",\"id\":\"c\",\"name\":\"f\",\"input\":{}}",
          "{\"type\":\"tool_result\",\"tool_use_id\":\"c\",\"content\":",
          "{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"media_type\":\"image/"
          "png\",\"data\":\"AA\"}}",
          "{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"x\"}",
          "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"}",
          "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"x\"}",
          "{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"text\":\"x\"}]}",
          "\"tools\":[{\"type\":\"custom\",\"name\":\"f\"}]",
          "\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[",
          "\"tool_choice\":{\"type\":\"any\"}",
          "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":5}",
          "\"text\":{\"format\":{\"type\":\"text\"}}",
          "\"max_output_tokens\":5",
          "\"reasoning\":{\"effort\":\"low\"}",
          "}",
          "]",
          "]}",
          "]}]",
          ",",
          "null",
          "-1",
          "1e400",
          "\xF0\x9F\x98\x80",
          "\\ud800"},
         26, 20000);
    SUCCEED();
}

TEST(Fuzz, RepliesOfServersKeepTheirPromises) {
    feed(http_reply,
         {"HTTP/1.1 200 OK\r\n", "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n",
          "Transfer-Encoding: chunked\r\n", "Content-Length: 5\r\n", "Content-Length: 0\r\n",
          "Content-Length: 99999999999999999999\r\n", "\r\n", "5\r\nhello\r\n",
          "5;name=value\r\nhello\r\n", "0\r\n\r\n", "ffffffffffffffff\r\n", "7ff\r\n", "hello", " ",
          ":", "\r"},
         27, 20000);
    SUCCEED();
}

TEST(Fuzz, MetricsKeepTheirPromises) {
    feed(metrics_text,
         {"h_bucket{le=\"0.5\"} ",
          "h_bucket{le=\"+Inf\"} ",
          "h_bucket{le=\"1e-3\",x=\"y\"} ",
          "h_count ",
          "a ",
          "a{b=\"",
          "\\\"",
          "\"",
          "} ",
          "{",
          ",",
          "=",
          "1",
          "3.5e9",
          "NaN",
          "-Inf",
          "+Inf",
          " 1700000000",
          "\n",
          "\n",
          "\r\n",
          "# HELP a b\n",
          "\t"},
         28, 20000);
    SUCCEED();
}

}  // namespace
}  // namespace percheron::fuzz
