// A small HTTP client for tests: raw bytes out, replies and events in.  It waits as long as the
// connection stands.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace percheron::test {

using Json = nlohmann::ordered_json;

struct ClientReply {
    int status = 0;                              // 0: no valid reply came
    std::map<std::string, std::string> headers;  // names in lower case
    std::string body;                            // without chunk framing
    std::vector<std::string> chunks;             // of a chunked body
    bool whole = false;                          // came to its proper end

    Json json() const { return Json::parse(body, nullptr, false); }
    std::string header(const std::string& name) const {
        const auto found = headers.find(name);
        return found == headers.end() ? "" : found->second;
    }
};

class HttpClient {
  public:
    explicit HttpClient(std::uint16_t port) {
        fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
        const int one = 1;
        ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    ~HttpClient() { close(); }
    HttpClient(const HttpClient&) = delete;
    HttpClient& operator=(const HttpClient&) = delete;
    HttpClient(HttpClient&& other) noexcept
        : fd_(std::exchange(other.fd_, -1)),
          connected_(other.connected_),
          buffer_(std::move(other.buffer_)) {}

    HttpClient& operator=(HttpClient&& other) noexcept {
        std::swap(fd_, other.fd_);
        std::swap(connected_, other.connected_);
        std::swap(buffer_, other.buffer_);
        return *this;
    }

    bool connected() const { return connected_; }
    int fd() const { return fd_; }

    void close() {
        if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    }
    // Closes with a reset instead of an orderly end.
    void reset() {
        const linger hard{1, 0};
        ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        close();
    }
    void end_output() { ::shutdown(fd_, SHUT_WR); }

    bool send(std::string_view bytes) {
        while (!bytes.empty()) {
            const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (count <= 0) return false;
            bytes.remove_prefix(static_cast<std::size_t>(count));
        }
        return true;
    }

    // More bytes into the buffer; false at the end of the connection.
    bool receive() {
        char bytes[65536];
        const ssize_t count = ::recv(fd_, bytes, sizeof bytes, 0);
        if (count <= 0) return false;
        buffer_.append(bytes, static_cast<std::size_t>(count));
        return true;
    }

    // The same if some come within so many milliseconds.
    bool receive_within(int wait_ms) {
        pollfd poll_for{fd_, POLLIN, 0};
        return ::poll(&poll_for, 1, wait_ms) > 0 && receive();
    }

    const std::string& buffered() const { return buffer_; }

    // Whether the server has ended the connection.
    bool ended() {
        while (receive()) {
        }
        char byte = 0;
        return ::recv(fd_, &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
    }

    bool receive_until(std::string_view text) {
        while (buffer_.find(text) == std::string::npos) {
            if (!receive()) return false;
        }
        return true;
    }

    // The next reply on the connection (`head`: it answers HEAD and has no body).
    ClientReply read_reply(bool head = false) {
        ClientReply reply;
        while (true) {
            if (!receive_until("\r\n\r\n")) return reply;
            parse_head(reply);
            if (reply.status != 100) break;
            reply = {};
        }
        if (head || reply.status == 204 || reply.status == 304) {
            reply.whole = true;
        } else if (reply.header("transfer-encoding") == "chunked") {
            read_chunks(reply);
        } else if (!reply.header("content-length").empty()) {
            const std::size_t length = std::stoul(reply.header("content-length"));
            while (buffer_.size() < length && receive()) {
            }
            reply.whole = buffer_.size() >= length;
            reply.body = buffer_.substr(0, length);
            buffer_.erase(0, length);
        } else {
            while (receive()) {
            }
            reply.body = std::exchange(buffer_, "");
            reply.whole = true;
        }
        return reply;
    }

    ClientReply request(std::string_view method, std::string_view path, std::string_view body = {},
                        std::string_view headers = {}) {
        if (!send(request_text(method, path, body, headers))) return {};
        return read_reply(method == "HEAD");
    }

    static std::string request_text(std::string_view method, std::string_view path,
                                    std::string_view body = {}, std::string_view headers = {}) {
        std::string text;
        text.append(method).append(" ").append(path).append(" HTTP/1.1\r\nHost: 127.0.0.1\r\n");
        text.append(headers);
        if (!body.empty() || method == "POST") {
            text +=
                "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
                "\r\n";
        }
        return text.append("\r\n").append(body);
    }

  private:
    void parse_head(ClientReply& reply) {
        const std::size_t end = buffer_.find("\r\n\r\n");
        std::string_view head = std::string_view(buffer_).substr(0, end + 2);
        std::size_t line_end = head.find("\r\n");
        const std::string_view status_line = head.substr(0, line_end);
        if (status_line.size() > 12 && status_line.substr(0, 7) == "HTTP/1.") {
            reply.status = std::atoi(std::string(status_line.substr(9, 3)).c_str());
        }
        head.remove_prefix(line_end + 2);
        while (!head.empty()) {
            line_end = head.find("\r\n");
            const std::string_view line = head.substr(0, line_end);
            const std::size_t colon = line.find(':');
            std::string name(line.substr(0, colon));
            for (char& c : name)
                c = static_cast<char>(std::tolower(c));
            reply.headers[name] = std::string(line.substr(line.find_first_not_of(' ', colon + 1)));
            head.remove_prefix(line_end + 2);
        }
        buffer_.erase(0, end + 4);
    }

    void read_chunks(ClientReply& reply) {
        while (receive_until("\r\n")) {
            const std::size_t line_end = buffer_.find("\r\n");
            const std::size_t size = std::stoul(buffer_.substr(0, line_end), nullptr, 16);
            while (buffer_.size() < line_end + 2 + size + 2) {
                if (!receive()) return;
            }
            const std::string chunk = buffer_.substr(line_end + 2, size);
            buffer_.erase(0, line_end + 2 + size + 2);
            if (size == 0) {
                reply.whole = true;
                return;
            }
            reply.body += chunk;
            reply.chunks.push_back(chunk);
        }
    }

    int fd_ = -1;
    bool connected_ = false;
    std::string buffer_;
};

// One event stream, taken apart.
struct EventStream {
    std::vector<Json> events;  // the data, in order, without [DONE]
    bool done = false;         // ended by [DONE]
    bool well_formed = true;   // nothing but "data: ...\n\n"

    explicit EventStream(std::string_view body) {
        while (!body.empty()) {
            const std::size_t end = body.find("\n\n");
            if (end == std::string_view::npos || done || body.substr(0, 6) != "data: ") {
                well_formed = false;
                return;
            }
            const std::string_view data = body.substr(6, end - 6);
            if (data == "[DONE]") {
                done = true;
            } else {
                events.push_back(Json::parse(data, nullptr, false));
                if (events.back().is_discarded()) well_formed = false;
            }
            body.remove_prefix(end + 2);
        }
    }
};

}  // namespace percheron::test
