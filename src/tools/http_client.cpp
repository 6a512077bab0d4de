#include "tools/http_client.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/http_reply_reader.h"

namespace percheron::tools {
namespace {

Error failure(std::string_view what) {
    return Error(ErrorCode::io, std::string(what) + ": " + std::strerror(errno));
}

std::string authority(const HttpAddress& address) {
    const bool brackets = address.host.find(':') != std::string::npos;
    return (brackets ? "[" + address.host + "]" : address.host) + ":" +
           std::to_string(address.port);
}

Error unreachable(const HttpAddress& address, std::string_view why) {
    return Error(ErrorCode::unavailable, "cannot reach " + address.url() + " (" + std::string(why) +
                                             "); check that percheron serve runs there");
}

struct AddressList {
    addrinfo* first = nullptr;
    ~AddressList() {
        if (first != nullptr) ::freeaddrinfo(first);
    }
};

// Waits until the socket is ready for `what`.  One of unavailable, cancelled.
Status wait_ready(const Descriptor& socket, short what, const HttpAddress& address,
                  const FetchOptions& options) {
    pollfd ready[2] = {{socket.get(), what, 0}, {options.interrupt, POLLIN, 0}};
    while (true) {
        const int count = ::poll(ready, 2, static_cast<int>(options.patience.count()));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return failure("cannot wait for a socket");
        if (count == 0) return unreachable(address, "no answer in time");
        if (ready[1].revents != 0) return Error(ErrorCode::cancelled, "interrupted");
        return {};
    }
}

// Connects to one of a name's addresses; with `options` waits no longer than they say.
Status connect_one(const Descriptor& socket, const addrinfo& target, const HttpAddress& address,
                   const FetchOptions* options) {
    if (::connect(socket.get(), target.ai_addr, target.ai_addrlen) == 0) return {};
    if (options == nullptr || errno != EINPROGRESS) {
        return unreachable(address, std::strerror(errno));
    }
    PERCHERON_TRY(wait_ready(socket, POLLOUT, address, *options));
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return unreachable(address, std::strerror(error));
    return {};
}

Result<Descriptor> connect_with(const HttpAddress& address, const FetchOptions* options) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    AddressList list;
    const int known = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(),
                                    &hints, &list.first);
    if (known != 0) return unreachable(address, ::gai_strerror(known));
    const int kind = SOCK_STREAM | SOCK_CLOEXEC | (options != nullptr ? SOCK_NONBLOCK : 0);
    Status last = unreachable(address, "the name has no address");
    for (const addrinfo* target = list.first; target != nullptr; target = target->ai_next) {
        Descriptor socket(::socket(target->ai_family, kind, 0));
        if (socket.get() < 0) {
            last = failure("cannot open a socket");
            continue;
        }
        last = connect_one(socket, *target, address, options);
        if (last.ok()) {
            const int one = 1;
            ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            return socket;
        }
        if (last.error().code() == ErrorCode::cancelled) break;
    }
    return std::move(last).error();
}

}  // namespace

Descriptor::~Descriptor() {
    if (number_ >= 0) ::close(number_);
}

std::string HttpAddress::url() const {
    return "http://" + authority(*this) + base;
}

Result<HttpAddress> parse_http_address(std::string_view url) {
    const auto wrong = [&](std::string_view what) {
        return Error(ErrorCode::invalid_argument,
                     std::string(what) + "; give an address as http://127.0.0.1:8000");
    };
    constexpr std::string_view scheme = "http://";
    if (url.starts_with("https://")) return wrong("https is not spoken here");
    if (url.starts_with(scheme)) url.remove_prefix(scheme.size());
    if (std::any_of(url.begin(), url.end(), [](char c) { return c <= ' ' || c > '~'; })) {
        return wrong("the URL has a character that is not allowed in one");
    }
    if (url.find_first_of("?#") != std::string_view::npos) {
        return wrong("the URL has a query or a fragment");
    }
    HttpAddress address;
    const std::size_t slash = std::min(url.find('/'), url.size());
    address.base = url.substr(slash);
    while (address.base.ends_with('/'))
        address.base.pop_back();
    std::string_view host = url.substr(0, slash);
    if (host.find('@') != std::string_view::npos) return wrong("the URL has a user name");
    std::string_view port;
    if (host.starts_with('[')) {
        const std::size_t end = host.find(']');
        if (end == std::string_view::npos) return wrong("the URL has no ] after its [");
        port = host.substr(end + 1);
        host = host.substr(1, end - 1);
        if (!port.empty() && port.front() != ':') return wrong("the URL has no : after its ]");
    } else {
        const std::size_t colon = std::min(host.find(':'), host.size());
        port = host.substr(colon);
        host = host.substr(0, colon);
    }
    if (host.empty()) return wrong("the URL names no host");
    address.host = host;
    if (!port.empty()) {
        port.remove_prefix(1);
        const auto [end, error] =
            std::from_chars(port.data(), port.data() + port.size(), address.port);
        if (error != std::errc{} || end != port.data() + port.size() || address.port == 0) {
            return wrong("the URL's port is not a number from 1 to 65535");
        }
    }
    return address;
}

Result<Descriptor> connect_to(const HttpAddress& address) {
    return connect_with(address, nullptr);
}

Status send_all(const Descriptor& socket, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t count = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (count <= 0) return failure("cannot send a request");
        bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return {};
}

Result<HttpReply> fetch(const HttpAddress& address, std::string_view path,
                        const FetchOptions& options) {
    PERCHERON_ASSIGN(const Descriptor socket, connect_with(address, &options));
    std::string request = "GET " + address.base + std::string(path) +
                          " HTTP/1.1\r\nHost: " + authority(address) + "\r\nConnection: close\r\n";
    if (!options.api_key.empty()) request += "Authorization: Bearer " + options.api_key + "\r\n";
    request += "\r\n";
    // So short that an empty socket takes it whole.
    PERCHERON_TRY(send_all(socket, request));

    HttpReply reply;
    HttpReplyReader reader(options.most_bytes);
    constexpr std::size_t scratch_bytes = 64 * 1024;
    const auto scratch = std::make_unique<char[]>(scratch_bytes);
    using State = HttpReplyReader::State;
    while (reader.state() != State::ended && reader.state() != State::broken) {
        PERCHERON_TRY(wait_ready(socket, POLLIN, address, options));
        const ssize_t count = ::recv(socket.get(), scratch.get(), scratch_bytes, 0);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (count < 0) return unreachable(address, std::strerror(errno));
        if (count == 0) {
            reader.end();
        } else {
            reader.add(std::string_view(scratch.get(), static_cast<std::size_t>(count)));
        }
        while (const auto piece = reader.next_piece())
            reply.body += *piece;
    }
    if (reader.state() == State::broken) {
        return Error(ErrorCode::corrupt,
                     address.url() + std::string(path) + ": " + reader.problem());
    }
    reply.status = reader.status();
    return reply;
}

Result<std::string> read_api_key(const std::filesystem::path& file) {
    std::ifstream stream(file);
    if (!stream) {
        return Error(ErrorCode::io,
                     "cannot read the key file " + file.string() + ": " + std::strerror(errno));
    }
    constexpr std::string_view blanks = " \t\r";
    for (std::string line; std::getline(stream, line);) {
        // Editors may begin a file with a byte order mark.
        if (line.starts_with("\xef\xbb\xbf")) line.erase(0, 3);
        const std::size_t last = line.find_last_not_of(blanks);
        if (last == std::string::npos || line[line.find_first_not_of(blanks)] == '#') continue;
        line.resize(last + 1);
        const std::string key = line.substr(line.find_last_of(blanks) + 1);
        const bool sendable = std::none_of(key.begin(), key.end(), [](char c) {
            return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
        });
        if (!sendable) break;
        return key;
    }
    return Error(ErrorCode::invalid_argument,
                 "the key file " + file.string() + " has no key; write one into it, one a line");
}

}  // namespace percheron::tools
