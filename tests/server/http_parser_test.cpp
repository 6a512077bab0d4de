// The parser alone: whole, cut anywhere, too long, broken.
#include "server/http_parser.h"

#include <random>

#include <gtest/gtest.h>

namespace percheron::server {
namespace {

// Feeds `bytes` in pieces of the given sizes (the last repeats), as a connection would.
HttpParser parse(std::string_view bytes, const std::vector<std::size_t>& sizes,
                 HttpLimits limits = {}) {
    HttpParser parser(limits);
    std::string inbox;
    std::size_t piece = 0;
    while (true) {
        inbox.erase(0, parser.feed(inbox));
        if (parser.state() == HttpParser::State::header_complete) {
            parser.accept_body();
            continue;
        }
        if (parser.state() == HttpParser::State::complete ||
            parser.state() == HttpParser::State::failed) {
            return parser;
        }
        if (bytes.empty()) {
            parser.end_of_input();
            return parser;
        }
        const std::size_t size = std::min(sizes[std::min(piece++, sizes.size() - 1)], bytes.size());
        inbox += bytes.substr(0, size);
        bytes.remove_prefix(size);
    }
}

const std::string with_length =
    "\r\nPOST /v1/x?y=1 HTTP/1.1\r\nHost: a\r\nX-Two: b  \r\nContent-Length: 11\r\n\r\nhello world";
const std::string in_chunks =
    "POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    "5;name=value\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: t\r\n\r\n";

TEST(HttpParserTest, EveryCutGivesTheSameRequest) {
    for (const std::string& bytes : {with_length, in_chunks}) {
        for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
            for (const std::vector<std::size_t>& sizes :
                 {std::vector<std::size_t>{cut, bytes.size()}, std::vector<std::size_t>{cut}}) {
                HttpParser parser = parse(bytes, sizes);
                ASSERT_EQ(parser.state(), HttpParser::State::complete) << parser.fault().message;
                EXPECT_EQ(parser.request().method, "POST");
                EXPECT_EQ(parser.request().path, "/v1/x");
                EXPECT_EQ(parser.request().body, "hello world");
                EXPECT_EQ(parser.request().header("HOST"), "a");
            }
        }
    }
    HttpParser parser = parse(with_length, {1000});
    EXPECT_EQ(parser.request().query, "y=1");
    EXPECT_EQ(parser.request().header("x-two"), "b");
}

TEST(HttpParserTest, EveryTruncationFails) {
    for (const std::string& bytes : {with_length, in_chunks}) {
        for (std::size_t length = 3; length < bytes.size(); ++length) {
            HttpParser parser = parse(std::string_view(bytes).substr(0, length), {7});
            EXPECT_EQ(parser.state(), HttpParser::State::failed);
            EXPECT_EQ(parser.fault().status, 400);
        }
    }
}

TEST(HttpParserTest, LimitsHaveTheirStatus) {
    HttpLimits limits;
    limits.header_bytes = 1000;
    limits.body_bytes = 100;
    const auto status = [&](const std::string& bytes) {
        HttpParser parser = parse(bytes, {64}, limits);
        return parser.state() == HttpParser::State::failed ? parser.fault().status : 200;
    };
    EXPECT_EQ(status("GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(500, 'x') + "\r\n\r\n"), 200);
    EXPECT_EQ(status("GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(2000, 'x') + "\r\n\r\n"),
              431);
    EXPECT_EQ(status("GET /" + std::string(2000, 'x') + " HTTP/1.1\r\nHost: a\r\n\r\n"), 431);
    const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
    EXPECT_EQ(status(post + "Content-Length: 100\r\n\r\n" + std::string(100, 'x')), 200);
    EXPECT_EQ(status(post + "Content-Length: 101\r\n\r\n" + std::string(101, 'x')), 413);
    EXPECT_EQ(status(post + "Content-Length: 99999999999\r\n\r\n"), 413);
    std::string chunks = post + "Transfer-Encoding: chunked\r\n\r\n";
    for (int i = 0; i < 20; ++i)
        chunks += "a\r\n0123456789\r\n";
    EXPECT_EQ(status(chunks + "0\r\n\r\n"), 413);
}

TEST(HttpParserTest, RefusesWhatCouldBeReadInTwoWays) {
    const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
    for (const std::string& bytes :
         {post + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
          post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
          post + "Content-Length: -5\r\n\r\n", post + "Content-Length: 5x\r\n\r\nhello",
          post + "Transfer-Encoding: gzip\r\n\r\n", post + "Host: b\r\n\r\n",
          post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
          post + "Transfer-Encoding: identity,chunked\r\n\r\n0\r\n\r\n",
          post + "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
          std::string("GET / HTTP/1.1\r\n\r\n"), std::string("GET / HTTP/3.0\r\nHost: a\r\n\r\n"),
          std::string("GET  / HTTP/1.1\r\nHost: a\r\n\r\n"),
          std::string("G\x01T / HTTP/1.1\r\nHost: a\r\n\r\n"),
          std::string("GET / HTTP/1.1\r\nHost : a\r\n\r\n"),
          post + "Transfer-Encoding: chunked\r\n\r\nxyz\r\nhello\r\n0\r\n\r\n"}) {
        HttpParser parser = parse(bytes, {1000});
        EXPECT_EQ(parser.state(), HttpParser::State::failed) << bytes;
        EXPECT_GE(parser.fault().status, 400);
        EXPECT_LT(parser.fault().status, 500);
        EXPECT_FALSE(parser.fault().message.empty());
    }
}

TEST(HttpParserTest, LeavesTheNextRequestAlone) {
    HttpParser parser({});
    const std::string two = with_length + "GET /next HTTP/1.1\r\n";
    std::size_t taken = parser.feed(two);
    ASSERT_EQ(parser.state(), HttpParser::State::header_complete);
    parser.accept_body();
    taken += parser.feed(std::string_view(two).substr(taken));
    EXPECT_EQ(parser.state(), HttpParser::State::complete);
    EXPECT_EQ(taken, with_length.size());
}

TEST(HttpParserTest, MutationsNeverHangOrPassLimits) {
    std::mt19937 random(3);
    for (int round = 0; round < 20000; ++round) {
        std::string bytes = random() % 2 ? with_length : in_chunks;
        for (int change = 0; change < 1 + static_cast<int>(random() % 6); ++change) {
            const std::size_t at = random() % bytes.size();
            switch (random() % 3) {
                case 0:
                    bytes[at] = static_cast<char>(random() % 256);
                    break;
                case 1:
                    bytes.erase(at, 1 + random() % 4);
                    break;
                default:
                    bytes.insert(at, 1 + random() % 4, static_cast<char>(random() % 256));
            }
            if (bytes.empty()) bytes = "x";
        }
        HttpParser parser = parse(bytes, {1 + random() % 20});
        ASSERT_TRUE(parser.state() == HttpParser::State::complete ||
                    parser.state() == HttpParser::State::failed || !parser.started());
    }
}

}  // namespace
}  // namespace percheron::server
