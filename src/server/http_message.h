// One HTTP request and one HTTP reply, without sockets.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace percheron::server {

struct HttpHeader {
    std::string name;
    std::string value;
};

struct HttpRequest {
    std::string method;  // as sent: "GET", "POST", ...
    std::string path;    // the target's path, without the query
    std::string query;   // what follows '?', undecoded
    std::vector<HttpHeader> headers;
    std::string body;
    bool http_1_0 = false;
    bool keep_alive = true;  // what the client asked for

    // The first header of that name (compared without case), or nothing.
    std::string_view header(std::string_view name) const;
};

struct HttpResponse {
    int status = 200;
    std::string content_type = "application/json";
    std::vector<HttpHeader> headers;
    std::string body;
};

// Whether a host's name or address means this machine whatever a name server says: localhost, names
// below it, 127.0.0.0/8, ::1 (without brackets).
bool is_loopback(std::string_view host);

bool equal_without_case(std::string_view left, std::string_view right);

std::string_view reason_phrase(int status);

// Status line and headers with the blank line.  `content_length` < 0: the body is chunked on
// HTTP/1.1 and ends with the connection on HTTP/1.0.
std::string render_head(const HttpResponse& response, bool http_1_0, bool keep_alive,
                        long long content_length);

}  // namespace percheron::server
