// Accepts connections and keeps them; their time limits are looked at by tick().  I/O thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>

#include "core/status.h"
#include "server/connection.h"

namespace percheron::server {

class HttpServer {
  public:
    HttpServer(asio::io_context& io, const ConnectionLimits& limits, std::size_t most_connections,
               HeldBytes& held, HttpService& service)
        : io_(io),
          acceptor_(io),
          limits_(limits),
          most_connections_(most_connections),
          held_(held),
          service_(service) {}

    // Binds and begins to accept.  Port 0 takes any.  Errors: io, invalid_argument (the host).
    Status listen(const std::string& host, std::uint16_t port);
    std::uint16_t port() const { return port_; }

    void tick();
    void stop_accepting();
    void close_all();
    // Whether a request is being read or answered, or output waits, on any connection.
    bool busy() const;

  private:
    asio::awaitable<void> accept();
    asio::awaitable<void> keep(std::shared_ptr<Connection> connection);
    void make_room();

    asio::io_context& io_;
    tcp::acceptor acceptor_;
    ConnectionLimits limits_;
    std::size_t most_connections_;
    HeldBytes& held_;
    HttpService& service_;
    std::uint16_t port_ = 0;
    std::unordered_set<std::shared_ptr<Connection>> connections_;
};

}  // namespace percheron::server
