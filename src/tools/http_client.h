// The little that this program needs as a client of an HTTP server: connect, send, fetch one path.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "core/status.h"

namespace percheron::tools {

// Owns an open file descriptor.
class Descriptor {
  public:
    Descriptor() = default;
    explicit Descriptor(int number) : number_(number) {}
    ~Descriptor();
    Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    int get() const { return number_; }

  private:
    int number_ = -1;
};

struct HttpAddress {
    std::string host = "127.0.0.1";  // a name or a numeric address, without brackets
    std::uint16_t port = 8000;
    std::string base;  // before every path: "/percheron", or empty
    // "http://HOST:PORT/base", brackets around an IPv6 address.
    std::string url() const;
};

// From "http://HOST:PORT/base", any part after the host missing, "http://" too.
// Errors: invalid_argument.
Result<HttpAddress> parse_http_address(std::string_view url);

// Errors: unavailable (nobody listens there, or the name is not known); io.
Result<Descriptor> connect_to(const HttpAddress& address);

Status send_all(const Descriptor& socket, std::string_view bytes);

struct HttpReply {
    int status = 0;
    std::string body;
};

struct FetchOptions {
    std::string api_key;                       // sent as a bearer token unless empty
    std::chrono::milliseconds patience{5000};  // for connecting and then for each silence
    std::uint64_t most_bytes = 16 << 20;       // of the body
    int interrupt = -1;  // a descriptor that ends the fetch when it becomes readable
};

// GET base + path over a connection of its own.
// Errors: unavailable (not reachable, silent, or cut); corrupt (not HTTP, or too large); cancelled.
Result<HttpReply> fetch(const HttpAddress& address, std::string_view path,
                        const FetchOptions& options);

// The first key of a file with a key a line, `KEY` or `LABEL KEY`, as the server's --api-key-file.
// Errors: io; invalid_argument when it has none.
Result<std::string> read_api_key(const std::filesystem::path& file);

}  // namespace percheron::tools
