// Turns the bytes of a connection into one HttpRequest, with limits.  No sockets: the fuzzer feeds
// the same class.
//
// Feed bytes as they come; what feed() does not take stays the caller's and is offered again with
// more behind it.  The parser stops after the header (so that a request can be refused before its
// body is read) and goes on when the caller says accept_body().
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http_message.h"

namespace percheron::server {

struct HttpLimits {
    std::size_t header_bytes = 64 * 1024;
    std::size_t body_bytes = 64 * 1024 * 1024;
};

// Why a request was refused by the parser: an answer of this status, then the connection closes.
struct HttpFault {
    int status = 400;
    std::string code;
    std::string message;
};

class HttpParser {
  public:
    enum class State { header, header_complete, body, complete, failed };

    explicit HttpParser(const HttpLimits& limits);
    ~HttpParser();
    HttpParser(HttpParser&&) noexcept;
    HttpParser& operator=(HttpParser&&) noexcept;

    // Takes bytes from the front of `bytes`; returns how many.
    std::size_t feed(std::string_view bytes);
    // After header_complete: read the body.  May complete at once when there is none.
    void accept_body();
    // The peer sends nothing more.
    void end_of_input();

    State state() const { return state_; }
    const HttpFault& fault() const { return fault_; }
    // Complete but for the body from header_complete on.
    HttpRequest& request() { return request_; }
    // From header_complete on: bytes of body announced, absent when chunked.
    std::optional<unsigned long long> announced_body() const;
    bool has_body() const;
    bool wants_continue() const;
    // Whether any byte of a request has been taken.
    bool started() const { return started_; }

  private:
    struct Implementation;

    void fail(int status, std::string code, std::string message);
    void take_header();

    std::unique_ptr<Implementation> implementation_;
    HttpLimits limits_;
    HttpRequest request_;
    HttpFault fault_;
    State state_ = State::header;
    bool started_ = false;
};

}  // namespace percheron::server
