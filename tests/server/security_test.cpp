// Closed doors: keys on every route, addresses that are never opened, hostile bodies.
#include <fstream>
#include <random>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "server/key_ring.h"
#include "server/replay_server.h"
#include "server/routes.h"

namespace percheron::test {
namespace {

namespace fs = std::filesystem;

const Json quick{{"match", ""}, {"steps", {"</think>", "ok"}}};

// A file only its owner can read.
class KeyFile {
  public:
    explicit KeyFile(const std::string& text) {
        char name[] = "/tmp/percheron-keys-XXXXXX";
        const int file = ::mkstemp(name);
        ::close(file);
        path_ = name;
        write(text);
    }
    ~KeyFile() { fs::remove(path_); }
    void write(const std::string& text) { std::ofstream(path_) << text; }
    const fs::path& path() const { return path_; }

  private:
    fs::path path_;
};

// How each route of the server's table is called so that whoever may call it gets 200.  `stored` is
// a response that its caller may see.  A route that has no line here fails the test below.
struct RouteCase {
    std::string method;
    std::string path;  // in the table
    std::string tail;  // of a prefix route
    std::string body;
};

std::vector<RouteCase> route_cases(const std::string& stored) {
    const std::string messages = R"({"messages":[{"role":"user","content":"x"}]})";
    return {
        {"GET", "/health", "", ""},
        {"GET", "/v1/models", "", ""},
        {"GET", "/models", "", ""},
        {"GET", "/v1/models/", "nano", ""},
        {"GET", "/metrics", "", ""},
        {"GET", "/status", "", ""},
        {"GET", "/version", "", ""},
        {"GET", "/tokenizer_info", "", ""},
        {"GET", "/", "", ""},
        {"GET", "/dashboard", "", ""},
        {"GET", "/assets/", "app.js", ""},
        {"GET", "/v1/responses/", stored, ""},
        {"DELETE", "/v1/responses/", stored, ""},
        {"POST", "/tokenize", "", R"({"prompt":"a"})"},
        {"POST", "/detokenize", "", R"({"tokens":[1]})"},
        {"POST", "/v1/chat/completions", "", messages},
        {"POST", "/chat/completions", "", messages},
        {"POST", "/v1/completions", "", R"({"prompt":"x"})"},
        {"POST", "/completions", "", R"({"prompt":"x"})"},
        {"POST", "/v1/messages", "", messages},
        {"POST", "/v1/messages/count_tokens", "", messages},
        {"POST", "/v1/responses", "", R"({"input":"x"})"},
    };
}

TEST(KeysTest, EveryRouteButLivenessNeedsOne) {
    const KeyFile file("# two keys\n\nalice  sk-alice-1\nsk-plain\n");
    ReplayServerOptions options;
    options.server.api_key_file = file.path();
    const ReplayServer server(Lines{quick}, options);
    const char* const wrong_keys[] = {"",
                                      "Authorization: Bearer wrong\r\n",
                                      "Authorization: Bearer \r\n",
                                      "Authorization: Bearer alice\r\n",
                                      "Authorization: Bearer sk-plain2\r\n",
                                      "Authorization: sk-plain\r\n",
                                      "x-api-key: sk-plai\r\n",
                                      "Authorization: Basic c2stcGxhaW46\r\n"};
    const char* const right_keys[] = {
        "Authorization: Bearer sk-plain\r\n", "authorization: bearer sk-alice-1\r\n",
        "x-api-key: sk-plain\r\n", "Authorization: Basic dXNlcjpzay1wbGFpbg==\r\n"};
    std::size_t closed = 0;
    for (const server::Route& route : server::all_routes()) {
        SCOPED_TRACE(std::string(route.method) + " " + std::string(route.path));
        const auto call = [&](const std::string& headers, const std::string& stored = "some") {
            for (const RouteCase& known : route_cases(stored)) {
                if (known.method != route.method || known.path != route.path) continue;
                const ClientReply reply = server.connect().request(
                    known.method, known.path + known.tail, known.body, headers);
                if (known.method == "GET") {
                    const ClientReply head =
                        server.connect().request("HEAD", known.path + known.tail, "", headers);
                    EXPECT_EQ(head.status, reply.status) << headers;
                }
                return reply.status;
            }
            ADD_FAILURE() << "route_cases() does not say how this route is called";
            return 0;
        };
        for (const char* wrong : wrong_keys)
            EXPECT_EQ(call(wrong), route.open ? 200 : 401) << wrong;
        for (const char* right : right_keys) {
            const Json stored =
                server.connect().request("POST", "/v1/responses", R"({"input":"x"})", right).json();
            EXPECT_EQ(call(right, stored["id"]), 200) << right;
        }
        closed += route.open ? 0 : 1;
    }
    EXPECT_GE(closed, 19u);
    // Unknown paths and methods tell nothing to those without a key.
    EXPECT_EQ(server.get("/nothing").status, 401);
    EXPECT_EQ(server.connect().request("DELETE", "/v1/models").status, 401);
    EXPECT_EQ(server.connect().request("OPTIONS", "/v1/chat/completions").status, 401);
    EXPECT_EQ(server.get("/health").status, 200);
    EXPECT_EQ(server.get("/health", "Authorization: Bearer sk-plain\r\n").status, 200);
    const ClientReply refused = server.get("/v1/models");
    EXPECT_EQ(refused.json()["error"]["code"], "invalid_api_key");
    // Clients of each API read the refusal in its form.
    const ClientReply anthropic = server.connect().request("POST", "/v1/messages", "{}");
    EXPECT_EQ(anthropic.json()["type"], "error");
    EXPECT_EQ(anthropic.json()["error"]["type"], "authentication_error");
}

// Also of keys without labels, and of two with the same one.
TEST(KeysTest, AStoredResponseIsItsKeysAlone) {
    const std::vector<std::string> keys{"sk-a", "sk-b", "sk-c", "sk-d", "sk-e"};
    KeyFile file("sk-a\nsk-b\nteam sk-c\nteam sk-d\nother sk-e\n");
    ReplayServerOptions options;
    options.server.api_key_file = file.path();
    const ReplayServer server(Lines{quick}, options);
    const auto call = [&](const std::string& key, const std::string& method,
                          const std::string& path, const Json& body = {}) {
        return server.connect().request(method, path, body.is_null() ? "" : body.dump(),
                                        "Authorization: Bearer " + key + "\r\n");
    };
    for (const std::string& owner : keys) {
        const std::string id =
            call(owner, "POST", "/v1/responses", {{"input", "mine"}}).json()["id"];
        const std::string path = "/v1/responses/" + id;
        const auto go_on = [&](const std::string& key, bool stream) {
            return call(key, "POST", "/v1/responses",
                        {{"input", "more"}, {"previous_response_id", id}, {"stream", stream}});
        };
        for (const std::string& other : keys) {
            if (other == owner) continue;
            SCOPED_TRACE(owner + " and " + other);
            const ClientReply unseen = call(other, "GET", path);
            EXPECT_EQ(unseen.status, 404);
            // Not to be told from one that never was.
            EXPECT_EQ(unseen.body, call(other, "GET", "/v1/responses/resp_none").body);
            EXPECT_EQ(call(other, "DELETE", path).status, 404);
            for (const bool stream : {false, true}) {
                const ClientReply reply = go_on(other, stream);
                EXPECT_EQ(reply.status, 404);
                EXPECT_EQ(reply.json()["error"]["param"], "previous_response_id");
            }
        }
        EXPECT_EQ(call(owner, "GET", path).json()["id"], id);
        for (const bool stream : {false, true})
            EXPECT_EQ(go_on(owner, stream).status, 200);
        EXPECT_EQ(call(owner, "DELETE", path).json()["deleted"], true);
        EXPECT_EQ(call(owner, "GET", path).status, 404);
    }
    // What a key has kept stays its own when the file has changed around it.
    const std::string id = call("sk-b", "POST", "/v1/responses", {{"input", "x"}}).json()["id"];
    file.write("sk-new\nnamed sk-b\n");
    while (call("sk-new", "GET", "/version").status != 200) {
    }
    EXPECT_EQ(call("sk-new", "GET", "/v1/responses/" + id).status, 404);
    EXPECT_EQ(call("sk-b", "GET", "/v1/responses/" + id).status, 200);
}

TEST(KeysTest, ChangesAreSeenAndOpenFilesRefused) {
    KeyFile file("first\n");
    auto ring = server::KeyRing::load(file.path());
    ASSERT_TRUE(ring.ok());
    const auto passes = [&](const std::string& key) {
        server::HttpRequest request;
        request.headers.push_back({"Authorization", "Bearer " + key});
        return ring->holder_of(request).has_value();
    };
    EXPECT_TRUE(passes("first"));
    file.write("label second\n");
    EXPECT_TRUE(ring->refresh().ok());
    EXPECT_FALSE(passes("first"));
    EXPECT_TRUE(passes("second"));
    file.write("third-key\n");
    for (const mode_t mode : {0640, 0604, 0660, 0644}) {
        ::chmod(file.path().c_str(), mode);
        EXPECT_FALSE(ring->refresh().ok());
        EXPECT_TRUE(ring->refresh().ok());  // said once
        EXPECT_TRUE(passes("second"));
        const auto fresh = server::KeyRing::load(file.path());
        EXPECT_FALSE(fresh.ok());
    }
    ::chmod(file.path().c_str(), 0600);
    EXPECT_TRUE(ring->refresh().ok());
    EXPECT_TRUE(passes("third-key"));
    file.write("# none\n");
    EXPECT_FALSE(server::KeyRing::load(file.path()).ok());
    EXPECT_FALSE(server::KeyRing::load("/nonexistent/keys").ok());
}

TEST(KeysTest, ByteOrderMarksAreNoPartOfAKeyAndControlBytesNone) {
    const auto load = [](const std::string& text) {
        const KeyFile file(text);
        return server::KeyRing::load(file.path());
    };
    for (const std::string text : {"\xef\xbb\xbfsecret\n", "\xef\xbb\xbf# keys\r\nme secret\r\n"}) {
        const auto ring = load(text);
        ASSERT_TRUE(ring.ok()) << ring.error().message();
        server::HttpRequest request;
        request.headers.push_back({"Authorization", "Bearer secret"});
        EXPECT_TRUE(ring->holder_of(request).has_value());
    }
    for (int byte = 0; byte < 128; ++byte) {
        if ((byte >= 0x20 && byte != 0x7f) || byte == '\n' || byte == '\t' || byte == '\r')
            continue;
        const auto ring = load(std::string("good\nsec") + static_cast<char>(byte) + "ret\n");
        ASSERT_FALSE(ring.ok()) << byte;
        EXPECT_NE(ring.error().message().find("plain text"), std::string::npos);
    }
    // As an editor saves it in UTF-16.
    EXPECT_FALSE(load(std::string("\xff\xfek\0e\0y\0\n\0", 10)).ok());
}

// A name of another site that resolves to this machine must not open a server without keys.
TEST(HostTest, OnlyLoopbackNamesReachAServerWithoutKeys) {
    const ReplayServer open(Lines{quick});
    const auto status = [](const ReplayServer& server, const std::string& host,
                           const std::string& path, const std::string& headers = "") {
        HttpClient client = server.connect();
        client.send("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + headers + "\r\n");
        return client.read_reply();
    };
    const std::string own[] = {"localhost",   "LocalHost:8000", "127.0.0.1",     "127.0.0.1:1",
                               "127.8.9.1:2", "[::1]",          "[::1]:8000",    "localhost.",
                               "a.localhost", "a.localhost:80", "localhost.:443"};
    const std::string others[] = {"evil.example",
                                  "evil.example:8000",
                                  "127.0.0.1.evil.example",
                                  "localhost.evil.example",
                                  "evillocalhost",
                                  "10.0.0.1",
                                  "[::2]:8000",
                                  "[::ffff:10.0.0.1]",
                                  "127.0.0.1@evil.example",
                                  "0.0.0.0",
                                  "2130706433",
                                  "[",
                                  "[]",
                                  ":8000",
                                  ""};
    for (const char* path : {"/status", "/v1/models", "/", "/health", "/assets/app.js"}) {
        for (const std::string& host : own)
            EXPECT_NE(status(open, host, path).status, 403) << host << path;
        // The host in a target of the absolute form counts, and not the header's.
        for (const std::string& host : {std::string("evil.example"), std::string("10.0.0.1:80"),
                                        std::string("127.0.0.1@evil.example")}) {
            for (const char* scheme : {"http://", "HTTPS://"}) {
                const ClientReply reply = status(open, "127.0.0.1", scheme + host + path);
                EXPECT_EQ(reply.status, 403) << host << path;
            }
        }
        EXPECT_NE(status(open, "evil.example", "http://127.0.0.1:8000" + std::string(path)).status,
                  403);
        for (const std::string& host : others) {
            const ClientReply reply = status(open, host, path);
            EXPECT_EQ(reply.status, 403) << host << path;
            EXPECT_EQ(reply.json()["error"]["code"], "forbidden_host") << host;
        }
    }
    const KeyFile file("secret\n");
    ReplayServerOptions options;
    options.server.api_key_file = file.path();
    const ReplayServer keyed(Lines{quick}, options);
    for (const char* host : {"evil.example", "localhost", "10.0.0.1"}) {
        EXPECT_EQ(status(keyed, host, "/status", "Authorization: Bearer secret\r\n").status, 200);
    }
}

TEST(KeysTest, ARunningServerTakesNewKeys) {
    KeyFile file("before\n");
    ReplayServerOptions options;
    options.server.api_key_file = file.path();
    const ReplayServer server(Lines{quick}, options);
    EXPECT_EQ(server.get("/version", "x-api-key: before\r\n").status, 200);
    file.write("after-the-change\n");
    while (server.get("/version", "x-api-key: after-the-change\r\n").status != 200) {
    }
    EXPECT_EQ(server.get("/version", "x-api-key: before\r\n").status, 401);
}

// Listens and counts who comes.
class Trap {
  public:
    Trap() {
        fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        ::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address);
        ::listen(fd_, 16);
        socklen_t size = sizeof address;
        ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
        port_ = ntohs(address.sin_port);
    }
    ~Trap() { ::close(fd_); }
    std::string port() const { return std::to_string(port_); }
    bool sprung() const { return ::accept(fd_, nullptr, nullptr) >= 0; }

  private:
    int fd_ = -1;
    std::uint16_t port_ = 0;
};

TEST(ImagesTest, NoAddressIsEverOpened) {
    const ReplayServer server(Lines{quick});
    const Trap trap;
    const std::string urls[] = {"http://127.0.0.1:" + trap.port() + "/a.png",
                                "http://localhost:" + trap.port() + "/a.png",
                                "https://127.0.0.1:" + trap.port() + "/a.png",
                                "http://[::1]:" + trap.port() + "/a.png",
                                "http://[::ffff:127.0.0.1]:" + trap.port() + "/a.png",
                                "http://2130706433:" + trap.port() + "/a.png",
                                "http://169.254.169.254/latest/meta-data/",
                                "HTTP://127.0.0.1:" + trap.port() + "/",
                                "ftp://127.0.0.1:" + trap.port() + "/",
                                "file:///etc/passwd",
                                "/etc/passwd",
                                "//127.0.0.1:" + trap.port() + "/",
                                ""};
    for (const std::string& url : urls) {
        for (const bool nested : {true, false}) {
            Json part{{"type", "image_url"}};
            part["image_url"] = nested ? Json{{"url", url}} : Json(url);
            const Json messages = Json::array(
                {{{"role", "user"},
                  {"content", Json::array({{{"type", "text"}, {"text", "see"}}, part})}}});
            const ClientReply reply = server.chat({{"messages", messages}});
            EXPECT_EQ(reply.status, 400) << url;
            EXPECT_EQ(reply.json()["error"]["code"], "invalid_value") << url;
        }
    }
    EXPECT_FALSE(trap.sprung());
    const Json video = Json::array(
        {{{"role", "user"},
          {"content",
           Json::array({{{"type", "video_url"}, {"video_url", {{"url", "data:x"}}}}})}}});
    EXPECT_EQ(server.chat({{"messages", video}}).json()["error"]["code"], "unsupported_parameter");
}

// What cannot fit into the context however it is cut into tokens is refused before it is cut.
TEST(HostileTest, TextFarBeyondTheContextIsRefusedUncut) {
    ReplayServerOptions options;
    options.context = 2000;
    const ReplayServer server(Lines{quick}, options);
    const auto longest =
        server::ServedModel::load(nano_folder())->format.tokenizer().longest_token();
    for (const char* letter : {"a", " ", "-", "\n", "1", "\xe6\x97\xa5"}) {
        for (const std::size_t bytes : {2001 * longest, std::size_t{3'000'000}}) {
            std::string text;
            while (text.size() < bytes)
                text += letter;
            const ClientReply chat = server.chat({{"messages", user_message(text)}});
            EXPECT_EQ(chat.status, 400);
            EXPECT_EQ(chat.json()["error"]["code"], "context_length_exceeded") << chat.body;
            EXPECT_EQ(chat.json()["error"]["param"], "messages");
            const std::string message = chat.json()["error"]["message"];
            EXPECT_NE(message.find("2000 tokens"), std::string::npos) << message;
            const ClientReply counted =
                server.connect().request("POST", "/tokenize", Json{{"prompt", text}}.dump());
            EXPECT_EQ(counted.json()["error"]["code"], "context_length_exceeded") << counted.body;
        }
    }
    EXPECT_EQ(server.chat({{"messages", user_message("short")}}).status, 200);
}

TEST(HostileTest, NestingAndSizesAreBounded) {
    const ReplayServer server(Lines{quick});
    const auto send = [&](const std::string& body) {
        return server.connect().request("POST", "/v1/chat/completions", body);
    };
    EXPECT_EQ(send(std::string(1000000, '[')).status, 400);
    std::string deep = "{\"messages\":";
    for (int i = 0; i < 100000; ++i)
        deep += "{\"a\":";
    EXPECT_EQ(send(deep).status, 400);
    std::string members = "{";
    for (int i = 0; i < 200000; ++i)
        members += "\"k" + std::to_string(i) + "\":1,";
    EXPECT_EQ(send(members + "\"z\":1}").status, 413);
    EXPECT_EQ(send("{\"messages\":[" + std::string(5000000, ',') + "]}").status, 413);
    EXPECT_EQ(send("{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}").status, 400);
    EXPECT_EQ(send("{\"temperature\":1e999}").status, 400);
    EXPECT_EQ(send("").status, 400);
    EXPECT_EQ(send("null").status, 400);
    EXPECT_EQ(server.get("/health").status, 200);
}

// Deterministic mutations of good requests: every one is answered, none with 5xx, and the server
// is as well afterwards as before.
TEST(HostileTest, TenThousandMalformedRequestsAreAllAnswered) {
    const ReplayServer server(Lines{quick});
    const std::vector<std::string> seeds{
        HttpClient::request_text(
            "POST", "/v1/chat/completions",
            R"({"model":"nano","messages":[{"role":"user","content":"Hello"}],"stream":true,)"
            R"("stream_options":{"include_usage":true},"temperature":0.5,"stop":["a"],"n":1,)"
            R"("tools":[{"type":"function","function":{"name":"f","parameters":{}}}]})"),
        HttpClient::request_text("POST", "/tokenize", R"({"prompt":"Hello there"})"),
        HttpClient::request_text("GET", "/v1/models", {}, "Accept: */*\r\n"),
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
        "chunked\r\n\r\n"
        "10\r\n{\"messages\":[{\"r\r\n19\r\nole\":\"user\",\"content\":\"x\"}\r\n2\r\n]}"
        "\r\n0\r\n\r\n"};
    std::mt19937 random(2026);
    const std::string special = "\"\\{}[]:,\r\n \t\0\x7f\xff%/";
    int good = 0;
    for (int round = 0; round < 10000; ++round) {
        std::string bytes = seeds[random() % seeds.size()];
        const int changes = 1 + static_cast<int>(random() % 8);
        for (int change = 0; change < changes && !bytes.empty(); ++change) {
            const std::size_t at = random() % bytes.size();
            switch (random() % 5) {
                case 0:
                    bytes[at] = static_cast<char>(random() % 256);
                    break;
                case 1:
                    bytes[at] = special[random() % special.size()];
                    break;
                case 2:
                    bytes.erase(at, 1 + random() % 12);
                    break;
                case 3:
                    bytes.insert(at, bytes.substr(random() % bytes.size(), 1 + random() % 12));
                    break;
                default:
                    bytes.resize(at);
            }
        }
        if (bytes.find_first_not_of("\r\n") == std::string::npos) bytes = "?";
        HttpClient client = server.connect();
        ASSERT_TRUE(client.connected());
        client.send(bytes);
        client.end_output();
        const ClientReply reply = client.read_reply();
        ASSERT_GE(reply.status, 200) << round << ": " << bytes;
        ASSERT_LT(reply.status, 500) << round << ": " << bytes;
        if (reply.status >= 400) {
            EXPECT_TRUE(reply.json()["error"]["code"].is_string()) << reply.body;
        } else {
            ++good;
        }
    }
    EXPECT_GT(good, 50);  // some mutations hurt nothing, so the rest of the way was walked too
    server.settle();
    EXPECT_EQ(server.get("/health").status, 200);
}

}  // namespace
}  // namespace percheron::test
