#include "server/http_message.h"

#include <algorithm>
#include <ctime>

#include <arpa/inet.h>

namespace percheron::server {

bool equal_without_case(std::string_view left, std::string_view right) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                      [&](char a, char b) { return lower(a) == lower(b); });
}

bool is_loopback(std::string_view host) {
    if (host.ends_with('.')) host.remove_suffix(1);
    constexpr std::string_view name = "localhost";
    if (host == "::1" || equal_without_case(host, name)) return true;
    if (host.size() > name.size() && host[host.size() - name.size() - 1] == '.' &&
        equal_without_case(host.substr(host.size() - name.size()), name)) {
        return true;
    }
    unsigned char address[4];
    return ::inet_pton(AF_INET, std::string(host).c_str(), address) == 1 && address[0] == 127;
}

std::string_view HttpRequest::header(std::string_view name) const {
    for (const HttpHeader& field : headers) {
        if (equal_without_case(field.name, name)) return field.value;
    }
    return {};
}

std::string_view reason_phrase(int status) {
    switch (status) {
        case 200:
            return "OK";
        case 204:
            return "No Content";
        case 304:
            return "Not Modified";
        case 400:
            return "Bad Request";
        case 401:
            return "Unauthorized";
        case 403:
            return "Forbidden";
        case 404:
            return "Not Found";
        case 405:
            return "Method Not Allowed";
        case 408:
            return "Request Timeout";
        case 411:
            return "Length Required";
        case 413:
            return "Content Too Large";
        case 415:
            return "Unsupported Media Type";
        case 417:
            return "Expectation Failed";
        case 429:
            return "Too Many Requests";
        case 431:
            return "Request Header Fields Too Large";
        case 500:
            return "Internal Server Error";
        case 503:
            return "Service Unavailable";
        default:
            return "Status";
    }
}

std::string render_head(const HttpResponse& response, bool http_1_0, bool keep_alive,
                        long long content_length) {
    char date[64];
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&now, &parts);
    std::strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &parts);

    std::string head;
    head.reserve(256);
    head += http_1_0 ? "HTTP/1.0 " : "HTTP/1.1 ";
    head += std::to_string(response.status);
    head += ' ';
    head += reason_phrase(response.status);
    head += "\r\nServer: percheron\r\nDate: ";
    head += date;
    if (!response.content_type.empty()) {
        head += "\r\nContent-Type: ";
        head += response.content_type;
    }
    for (const HttpHeader& field : response.headers) {
        head += "\r\n";
        head += field.name;
        head += ": ";
        head += field.value;
    }
    const bool has_body = response.status != 204 && response.status != 304;
    if (has_body && content_length >= 0) {
        head += "\r\nContent-Length: ";
        head += std::to_string(content_length);
    } else if (has_body && !http_1_0) {
        head += "\r\nTransfer-Encoding: chunked";
    }
    head += keep_alive ? "\r\nConnection: keep-alive\r\n\r\n" : "\r\nConnection: close\r\n\r\n";
    return head;
}

}  // namespace percheron::server
