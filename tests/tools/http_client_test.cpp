// The client side of HTTP: replies in every cutting, hostile replies, addresses, a fetch that is
// interrupted.
#include "tools/http_client.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/http_reply_reader.h"

namespace percheron::tools {
namespace {

using State = HttpReplyReader::State;

struct Outcome {
    State state;
    int status = 0;
    std::string body;
};

// Feeds `bytes` in pieces of at most `longest`, then the end of the connection.
Outcome read_in_pieces(std::string_view bytes, std::size_t longest, std::mt19937& random,
                       std::uint64_t most = 1 << 20) {
    HttpReplyReader reader(most);
    Outcome outcome;
    const auto take = [&] {
        while (const auto piece = reader.next_piece())
            outcome.body += *piece;
    };
    while (!bytes.empty()) {
        const std::size_t size = std::min<std::size_t>(1 + random() % longest, bytes.size());
        reader.add(bytes.substr(0, size));
        bytes.remove_prefix(size);
        take();
    }
    reader.end();
    take();
    outcome.state = reader.state();
    outcome.status = reader.status();
    return outcome;
}

TEST(HttpReplyReaderTest, EveryCuttingGivesTheSameBody) {
    const std::pair<std::string, Outcome> replies[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", {State::ended, 200, "hello"}},
        {"HTTP/1.1 200 OK\r\ncontent-length:  5 \r\n\r\nhello", {State::ended, 200, "hello"}},
        {"HTTP/1.0 200 OK\r\nX: y\r\n\r\nup to the end", {State::ended, 200, "up to the end"}},
        {"HTTP/1.1 404 No\r\nTransfer-Encoding: "
         "chunked\r\n\r\n3\r\nabc\r\n00a;x=y\r\n0123456789\r\n"
         "0\r\n\r\n",
         {State::ended, 404, "abc0123456789"}},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 None\r\nA: b\r\n\r\n", {State::ended, 204, ""}},
        {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", {State::ended, 200, ""}},
        {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", {State::broken, 200, "hello"}},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
         {State::broken, 200, "abc"}},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
         {State::broken, 200, ""}},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n",
         {State::broken, 200, ""}},
        {"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello", {State::broken, 200, ""}},
        {"SSH-2.0-OpenSSH_9.2\r\n\r\n", {State::broken, 0, ""}},
        {"", {State::broken, 0, ""}}};
    std::mt19937 random(1);
    for (const auto& [bytes, expected] : replies) {
        for (int round = 0; round < 50; ++round) {
            const Outcome outcome = read_in_pieces(bytes, 1 + round, random);
            ASSERT_EQ(outcome.state, expected.state) << bytes;
            EXPECT_EQ(outcome.status, expected.status) << bytes;
            EXPECT_EQ(outcome.body, expected.body) << bytes;
        }
    }
}

TEST(HttpReplyReaderTest, SizesHaveLimits) {
    std::mt19937 random(2);
    const std::string hundred(100, 'x');
    const std::string endless(HttpReplyReader::most_head_bytes + 100, 'x');
    for (const std::string& head :
         {std::string("HTTP/1.1 200 OK\r\n\r\n"),
          std::string("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"),
          std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n")}) {
        EXPECT_EQ(read_in_pieces(head + hundred, 7, random, 99).state, State::broken) << head;
    }
    EXPECT_EQ(read_in_pieces("HTTP/1.1 200 OK\r\n\r\n" + hundred, 7, random, 100).state,
              State::ended);
    EXPECT_EQ(read_in_pieces("HTTP/1.1 200 OK\r\nA: " + endless, 5000, random).state,
              State::broken);
    for (const std::string& size : {endless.substr(0, 2000), std::string("ffffffffffffffff\r\n"),
                                    std::string("fffffffffffffffffffffffff\r\n")}) {
        EXPECT_EQ(read_in_pieces("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size,
                                 500, random)
                      .state,
                  State::broken);
    }
}

TEST(HttpReplyReaderTest, RandomBytesEndInSomeState) {
    const std::string valid =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: "
        "12\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    std::mt19937 random(3);
    std::size_t broken = 0;
    for (int round = 0; round < 20'000; ++round) {
        std::string bytes = valid;
        for (std::size_t change = 0; change <= random() % 4; ++change)
            bytes[random() % bytes.size()] =
                static_cast<char>(random() % 3 == 0 ? random() : bytes[random() % bytes.size()]);
        const Outcome outcome = read_in_pieces(bytes, 1 + random() % 40, random);
        ASSERT_TRUE(outcome.state == State::ended || outcome.state == State::broken) << bytes;
        ASSERT_LE(outcome.body.size(), bytes.size());
        broken += outcome.state == State::broken ? 1 : 0;
    }
    EXPECT_GT(broken, 1000u);
    EXPECT_LT(broken, 20'000u);
}

TEST(HttpAddressTest, IsReadFromWhatPeopleWrite) {
    const std::pair<const char*, HttpAddress> good[] = {
        {"http://127.0.0.1:8000", {"127.0.0.1", 8000, ""}},
        {"localhost", {"localhost", 8000, ""}},
        {"gpu7:9001/", {"gpu7", 9001, ""}},
        {"http://[::1]:80/", {"::1", 80, ""}},
        {"[fe80::1]", {"fe80::1", 8000, ""}},
        {"http://host/percheron/", {"host", 8000, "/percheron"}}};
    for (const auto& [text, expected] : good) {
        const auto address = parse_http_address(text);
        ASSERT_TRUE(address.ok()) << text << ": " << address.error().message();
        EXPECT_EQ(address->host, expected.host) << text;
        EXPECT_EQ(address->port, expected.port) << text;
        EXPECT_EQ(address->base, expected.base) << text;
        const auto again = parse_http_address(address->url());
        ASSERT_TRUE(again.ok()) << text;
        EXPECT_EQ(again->url(), address->url());
    }
    for (const char* text :
         {"", "http://", "https://host", ":8000", "host:", "host:0", "host:65536", "host:-1",
          "host:80x", "http://[::1", "[::1]80", "host/a?b", "host#x", "a b", "user@host",
          "host\r\nX: y", "h\xC3\xB6st"}) {
        EXPECT_FALSE(parse_http_address(text).ok()) << text;
    }
}

// Takes one connection on a free port of loopback and hands it to `talk`.
class OneConnection {
  public:
    explicit OneConnection(std::function<void(int)> talk) {
        listener_ = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
        EXPECT_EQ(::listen(listener_.get(), 1), 0);
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
        address_.port = ntohs(address.sin_port);
        thread_ = std::thread([this, talk = std::move(talk)] {
            const Descriptor connection(::accept(listener_.get(), nullptr, nullptr));
            talk(connection.get());
        });
    }
    ~OneConnection() { thread_.join(); }
    const HttpAddress& address() const { return address_; }

  private:
    Descriptor listener_;
    HttpAddress address_;
    std::thread thread_;
};

std::string received_until_blank_line(int socket) {
    std::string text;
    char byte = 0;
    while (!text.ends_with("\r\n\r\n") && ::recv(socket, &byte, 1, 0) == 1)
        text += byte;
    return text;
}

void send_text(int socket, std::string_view text) {
    EXPECT_EQ(::send(socket, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
}

TEST(FetchTest, SendsOneRequestAndReadsItsReply) {
    std::string request;
    const auto reply = [&] {
        OneConnection server([&](int socket) {
            request = received_until_blank_line(socket);
            send_text(socket, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbo");
            send_text(socket, "dy");
        });
        FetchOptions options;
        options.api_key = "secret";
        return fetch(server.address(), "/metrics", options);
    }();
    ASSERT_TRUE(reply.ok()) << reply.error().message();
    EXPECT_EQ(reply->status, 200);
    EXPECT_EQ(reply->body, "body");
    EXPECT_EQ(request.rfind("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:", 0), 0u);
    EXPECT_NE(request.find("\r\nAuthorization: Bearer secret\r\n"), std::string::npos);
}

TEST(FetchTest, WhatFailsIsOneSentence) {
    HttpAddress nobody;
    {
        OneConnection server([](int socket) { received_until_blank_line(socket); });
        nobody = server.address();
        EXPECT_EQ(fetch(nobody, "/", {}).error().code(), ErrorCode::corrupt);  // cut
    }
    const auto refused = fetch(nobody, "/", {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::unavailable);
    EXPECT_NE(refused.error().message().find(nobody.url()), std::string::npos);
    EXPECT_NE(refused.error().message().find("Connection refused"), std::string::npos);

    OneConnection silent([](int socket) {
        received_until_blank_line(socket);
        char byte;
        ::recv(socket, &byte, 1, 0);
    });
    FetchOptions impatient;
    impatient.patience = std::chrono::milliseconds(1);
    EXPECT_EQ(fetch(silent.address(), "/", impatient).error().code(), ErrorCode::unavailable);

    OneConnection large([](int socket) {
        received_until_blank_line(socket);
        send_text(socket,
                  "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + std::string(1000, 'x'));
    });
    FetchOptions small;
    small.most_bytes = 999;
    EXPECT_EQ(fetch(large.address(), "/", small).error().code(), ErrorCode::corrupt);
}

TEST(FetchTest, AnInterruptEndsTheWaiting) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const Descriptor out(ends[0]);
    const Descriptor in(ends[1]);
    OneConnection silent([&](int socket) {
        received_until_blank_line(socket);
        EXPECT_EQ(::write(in.get(), "q", 1), 1);
        char byte;
        ::recv(socket, &byte, 1, 0);  // until the client has gone
    });
    FetchOptions options;
    options.interrupt = out.get();
    options.patience = std::chrono::hours(1);
    EXPECT_EQ(fetch(silent.address(), "/", options).error().code(), ErrorCode::cancelled);
}

TEST(ApiKeyTest, IsTheFirstOfTheFile) {
    const auto file =
        std::filesystem::temp_directory_path() / ("percheron-key-" + std::to_string(::getpid()));
    const auto read = [&](const std::string& text) {
        std::ofstream(file) << text;
        const auto key = read_api_key(file);
        return key.ok() ? *key : "error: " + key.error().message();
    };
    EXPECT_EQ(read("sk-1\nsk-2\n"), "sk-1");
    EXPECT_EQ(read("# keys\n\n  anna   sk-3  \r\nbob sk-4"), "sk-3");
    EXPECT_EQ(read("\xef\xbb\xbfsk-5"), "sk-5");
    for (const char* text : {"", "# none\n", " \n\t\n", "bad\x01key\n"}) {
        EXPECT_EQ(read(text).rfind("error: ", 0), 0u) << text;
    }
    std::filesystem::remove(file);
    EXPECT_EQ(read_api_key(file).error().code(), ErrorCode::io);
}

}  // namespace
}  // namespace percheron::tools
