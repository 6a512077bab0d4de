#include "server/http_parser.h"

#include <algorithm>
#include <optional>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

namespace percheron::server {

namespace http = boost::beast::http;

namespace {

// The absolute form of a target, which proxies send: its path stays in `target`, and the host it
// names is returned, which counts in place of the Host header's (RFC 9112, 3.2.2).
std::optional<std::string> take_authority(std::string_view& target) {
    for (const std::string_view scheme : {"http://", "https://"}) {
        if (!equal_without_case(target.substr(0, scheme.size()), scheme)) continue;
        target.remove_prefix(scheme.size());
        const std::size_t end = std::min(target.find_first_of("/?"), target.size());
        std::string_view authority = target.substr(0, end);
        target = end == target.size() ? std::string_view("/") : target.substr(end);
        const std::size_t user = authority.rfind('@');
        if (user != std::string_view::npos) authority.remove_prefix(user + 1);
        return std::string(authority);
    }
    return std::nullopt;
}

}  // namespace

struct HttpParser::Implementation {
    http::request_parser<http::string_body> parser;
};

HttpParser::HttpParser(const HttpLimits& limits)
    : implementation_(std::make_unique<Implementation>()), limits_(limits) {
    implementation_->parser.eager(false);
    implementation_->parser.header_limit(static_cast<std::uint32_t>(limits.header_bytes));
    implementation_->parser.body_limit(limits.body_bytes);
}

HttpParser::~HttpParser() = default;
HttpParser::HttpParser(HttpParser&&) noexcept = default;
HttpParser& HttpParser::operator=(HttpParser&&) noexcept = default;

void HttpParser::fail(int status, std::string code, std::string message) {
    state_ = State::failed;
    fault_ = {status, std::move(code), std::move(message)};
}

std::size_t HttpParser::feed(std::string_view bytes) {
    std::size_t taken = 0;
    // Blank lines before a request line are ignored, as RFC 9112 asks.
    while (!started_ && taken < bytes.size() && (bytes[taken] == '\r' || bytes[taken] == '\n')) {
        ++taken;
    }
    bytes.remove_prefix(taken);
    while (!bytes.empty() && (state_ == State::header || state_ == State::body)) {
        started_ = true;
        boost::beast::error_code error;
        const std::size_t used =
            implementation_->parser.put(boost::asio::buffer(bytes.data(), bytes.size()), error);
        taken += used;
        bytes.remove_prefix(used);
        if (error == http::error::need_more) {
            if (used == 0) break;
        } else if (error == http::error::header_limit) {
            fail(431, "request_too_large",
                 "the request's headers are longer than " + std::to_string(limits_.header_bytes) +
                     " bytes; send fewer or shorter headers");
        } else if (error == http::error::body_limit) {
            fail(413, "request_too_large",
                 "the request's body is longer than " + std::to_string(limits_.body_bytes) +
                     " bytes; send less or raise --max-body");
        } else if (error) {
            fail(400, "invalid_http",
                 "this is not a valid HTTP request (" + error.message() + "); check the client");
        } else if (state_ == State::header && implementation_->parser.is_header_done()) {
            take_header();
        } else if (state_ == State::body && implementation_->parser.is_done()) {
            request_.body = std::move(implementation_->parser.get().body());
            state_ = State::complete;
        }
    }
    return taken;
}

void HttpParser::take_header() {
    const auto& message = implementation_->parser.get();
    request_.method = std::string(message.method_string());
    const auto whole = message.target();
    std::string_view target(whole.data(), whole.size());
    const std::optional<std::string> named_host = take_authority(target);
    const std::size_t question = target.find('?');
    request_.path = std::string(target.substr(0, question));
    if (question != std::string_view::npos)
        request_.query = std::string(target.substr(question + 1));
    request_.http_1_0 = message.version() == 10;
    request_.keep_alive = message.keep_alive();
    std::size_t hosts = 0;
    for (const auto& field : message) {
        const auto name = field.name_string();
        const auto value = field.value();
        const bool is_host = field.name() == http::field::host;
        request_.headers.push_back(
            {std::string(name.data(), name.size()),
             is_host && named_host ? *named_host : std::string(value.data(), value.size())});
        hosts += is_host ? 1 : 0;
    }
    state_ = State::header_complete;
    const std::string_view encoding = request_.header("Transfer-Encoding");
    const std::string_view compressed = request_.header("Content-Encoding");
    if (!encoding.empty() && !equal_without_case(encoding, "chunked")) {
        fail(400, "invalid_http",
             "this Transfer-Encoding is not understood; send chunked or a "
             "Content-Length");
    } else if (!compressed.empty() && !equal_without_case(compressed, "identity")) {
        fail(415, "unsupported_parameter",
             "compressed request bodies are not accepted; send the body as it is");
    } else if (hosts > 1 || (hosts == 0 && !request_.http_1_0)) {
        fail(400, "invalid_http", "a request needs exactly one Host header");
    }
}

void HttpParser::accept_body() {
    if (state_ != State::header_complete) return;
    if (implementation_->parser.is_done() || !has_body()) {
        state_ = State::complete;
        return;
    }
    if (announced_body().value_or(0) > limits_.body_bytes) {
        fail(413, "request_too_large",
             "the request's body of " + std::to_string(*announced_body()) +
                 " bytes is longer than " + std::to_string(limits_.body_bytes) +
                 "; send less or raise --max-body");
        return;
    }
    state_ = State::body;
    implementation_->parser.eager(true);
}

void HttpParser::end_of_input() {
    if (state_ == State::complete || state_ == State::failed || !started_) return;
    fail(400, "invalid_http", "the connection ended inside a request; send it whole");
}

std::optional<unsigned long long> HttpParser::announced_body() const {
    const auto length = implementation_->parser.content_length();
    if (!length) return std::nullopt;
    return *length;
}

bool HttpParser::has_body() const {
    return implementation_->parser.chunked() || announced_body().value_or(0) > 0;
}

bool HttpParser::wants_continue() const {
    return equal_without_case(request_.header("Expect"), "100-continue") && !request_.http_1_0;
}

}  // namespace percheron::server
