#include "server/http_server.h"

#include "core/logging.h"

namespace percheron::server {

Status HttpServer::listen(const std::string& host, std::uint16_t port) {
    boost::system::error_code error;
    const auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
    if (error) {
        return Error(ErrorCode::invalid_argument,
                     "--host " + host +
                         " is not an address of this machine; use 127.0.0.1, ::1, "
                         "0.0.0.0 or another numeric address");
    }
    const tcp::endpoint endpoint(address, port);
    const auto failed = [&](std::string_view what) {
        return Error(ErrorCode::io, "cannot " + std::string(what) + " " + host + ":" +
                                        std::to_string(port) + ": " + error.message() +
                                        "; choose another --port or --host");
    };
    acceptor_.open(endpoint.protocol(), error);
    if (error) return failed("open a socket for");
    acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    acceptor_.bind(endpoint, error);
    if (error) return failed("bind");
    acceptor_.listen(4096, error);
    if (error) return failed("listen on");
    port_ = acceptor_.local_endpoint(error).port();
    asio::co_spawn(io_, accept(), asio::detached);
    return {};
}

asio::awaitable<void> HttpServer::accept() {
    asio::steady_timer pause(io_);
    while (acceptor_.is_open()) {
        boost::system::error_code error;
        tcp::socket socket =
            co_await acceptor_.async_accept(asio::redirect_error(asio::use_awaitable, error));
        if (!acceptor_.is_open()) co_return;
        if (error) {
            // Out of descriptors, mostly: what waits in the backlog is taken a little later.
            log_warning("cannot accept a connection: " + error.message());
            pause.expires_after(std::chrono::milliseconds(100));
            co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
            continue;
        }
        make_room();
        auto connection = std::make_shared<Connection>(std::move(socket), limits_, held_, service_);
        connections_.insert(connection);
        asio::co_spawn(io_, keep(std::move(connection)), asio::detached);
    }
}

asio::awaitable<void> HttpServer::keep(std::shared_ptr<Connection> connection) {
    try {
        co_await connection->run();
    } catch (const std::exception& error) {
        log_error(std::string("a connection ended by an exception: ") + error.what());
        connection->close();
    }
    connections_.erase(connection);
}

// At the limit the connection that has idled longest makes way.
void HttpServer::make_room() {
    if (connections_.size() < most_connections_) return;
    std::shared_ptr<Connection> longest;
    Clock::time_point since = Clock::time_point::max();
    for (const auto& connection : connections_) {
        const auto idle = connection->idle_since();
        if (idle && *idle < since) {
            since = *idle;
            longest = connection;
        }
    }
    if (longest) longest->close();
}

void HttpServer::tick() {
    const Clock::time_point now = Clock::now();
    for (const auto& connection : connections_)
        connection->check_time(now);
}

bool HttpServer::busy() const {
    for (const auto& connection : connections_) {
        if (!connection->idle_since()) return true;
    }
    return false;
}

void HttpServer::stop_accepting() {
    boost::system::error_code ignored;
    acceptor_.close(ignored);
}

void HttpServer::close_all() {
    const auto connections = connections_;
    for (const auto& connection : connections)
        connection->close();
}

}  // namespace percheron::server
