#include "server/connection.h"

#include <array>
#include <cerrno>
#include <utility>

#include <sys/socket.h>

namespace percheron::server {
namespace {

constexpr std::size_t small_body = 64 * 1024;  // read and thrown away to keep a connection

}  // namespace

Connection::Connection(tcp::socket socket, const ConnectionLimits& limits, HeldBytes& held,
                       HttpService& service)
    : socket_(std::move(socket)),
      limits_(limits),
      service_(service),
      input_signal_(socket_.get_executor(), Clock::time_point::max()),
      output_signal_(socket_.get_executor(), Clock::time_point::max()),
      share_(held),
      phase_began_(Clock::now()),
      latest_input_(phase_began_),
      latest_output_(phase_began_) {
    boost::system::error_code ignored;
    socket_.non_blocking(true, ignored);
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.set_option(tcp::socket::keep_alive(true), ignored);
}

void Connection::enter(Phase phase) {
    phase_ = phase;
    phase_began_ = Clock::now();
}

// False: too much, beside what others hold.
bool Connection::hold() {
    return share_.set(inbox_.size() + body_bytes_);
}

void Connection::body_released() {
    body_bytes_ = 0;
    hold();
}

// ---- input ------------------------------------------------------------------------------------

void Connection::arm_read() {
    if (!open_ || input_ended_ || read_armed_) return;
    read_armed_ = true;
    socket_.async_wait(tcp::socket::wait_read,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                           self->read_armed_ = false;
                           if (!error) self->read_available();
                       });
}

void Connection::read_available() {
    if (!open_) return;
    thread_local std::array<char, 64 * 1024> scratch;
    const ssize_t count = ::recv(socket_.native_handle(), scratch.data(), scratch.size(), 0);
    if (count > 0) {
        latest_input_ = Clock::now();
        if (phase_ != Phase::lingering) {
            inbox_.append(scratch.data(), static_cast<std::size_t>(count));
        }
    } else if (count == 0) {
        input_ended_ = true;
    } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        close();
        return;
    }
    if (phase_ == Phase::working) {
        const bool fits = hold();
        if (!fits || inbox_.size() > limits_.early_input()) {
            close();
            return;
        }
    }
    arm_read();
    input_changed();
}

void Connection::input_changed() {
    input_signal_.cancel();
    if (input_ended_ && peer_gone_) {
        // Later, for whoever is writing at this moment must not lose its footing.
        asio::post(socket_.get_executor(), std::exchange(peer_gone_, nullptr));
    }
}

asio::awaitable<void> Connection::more_input() {
    arm_read();
    boost::system::error_code ignored;
    co_await input_signal_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

// ---- output -----------------------------------------------------------------------------------

void Connection::send(std::string_view bytes) {
    if (!open_) return;
    if (outbox_.empty()) {
        const ssize_t count =
            ::send(socket_.native_handle(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (count >= 0) {
            bytes.remove_prefix(static_cast<std::size_t>(count));
        } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            close();
            return;
        }
        if (bytes.empty()) return;
        latest_output_ = Clock::now();
    }
    // One reply may be of any size; what must not grow is the pile behind it.
    if (outbox_.size() - outbox_sent_ > limits_.pending_output) {
        close();
        return;
    }
    outbox_.append(bytes);
    arm_write();
}

void Connection::arm_write() {
    if (!open_ || write_armed_) return;
    write_armed_ = true;
    socket_.async_wait(tcp::socket::wait_write,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                           self->write_armed_ = false;
                           if (!error) self->write_pending();
                       });
}

void Connection::write_pending() {
    if (!open_) return;
    while (outbox_sent_ < outbox_.size()) {
        const ssize_t count = ::send(socket_.native_handle(), outbox_.data() + outbox_sent_,
                                     outbox_.size() - outbox_sent_, MSG_NOSIGNAL);
        if (count >= 0) {
            outbox_sent_ += static_cast<std::size_t>(count);
            latest_output_ = Clock::now();
        } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
            break;
        } else {
            close();
            return;
        }
    }
    if (outbox_sent_ == outbox_.size()) {
        outbox_.clear();
        outbox_sent_ = 0;
        if (outbox_.capacity() > 64 * 1024) outbox_.shrink_to_fit();
        output_signal_.cancel();
        return;
    }
    if (outbox_sent_ > 1024 * 1024) {
        outbox_.erase(0, outbox_sent_);
        outbox_sent_ = 0;
    }
    arm_write();
}

asio::awaitable<void> Connection::output_drained() {
    while (open_ && !outbox_.empty()) {
        boost::system::error_code ignored;
        co_await output_signal_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
}

// ---- life -------------------------------------------------------------------------------------

void Connection::close() {
    if (!open_) return;
    open_ = false;
    input_ended_ = true;
    boost::system::error_code ignored;
    socket_.close(ignored);
    output_signal_.cancel();
    input_changed();
}

std::optional<Clock::time_point> Connection::idle_since() const {
    if (phase_ == Phase::working || phase_ == Phase::body) return std::nullopt;
    return phase_began_;
}

void Connection::check_time(Clock::time_point now) {
    if (!open_) return;
    if (!outbox_.empty() && now - latest_output_ > limits_.write_silence) {
        close();
        return;
    }
    const auto age = now - phase_began_;
    switch (phase_) {
        case Phase::first_byte:
            if (age > limits_.first_byte) close();
            break;
        case Phase::idle:
            if (age > limits_.idle) close();
            break;
        case Phase::header:
        case Phase::body:
            // The reader answers 408 when it finds its time over.
            if (age > (phase_ == Phase::header ? limits_.header : limits_.body) ||
                (phase_ == Phase::body && now - latest_input_ > limits_.body_silence)) {
                input_signal_.cancel();
            }
            break;
        case Phase::working:
            break;
        case Phase::lingering:
            if (age > std::chrono::seconds(5)) close();
            break;
    }
}

// Reads until the header is complete.  False: the connection is done.
asio::awaitable<bool> Connection::read_header(HttpParser& parser) {
    while (true) {
        if (!inbox_.empty()) {
            inbox_.erase(0, parser.feed(inbox_));
            if (parser.started() && phase_ != Phase::header) enter(Phase::header);
        }
        if (parser.state() != HttpParser::State::header) co_return true;
        if (!open_) co_return false;
        if (input_ended_) {
            parser.end_of_input();
            co_return parser.state() == HttpParser::State::failed;
        }
        if (phase_ == Phase::header && Clock::now() - phase_began_ > limits_.header) {
            gave_up_ = true;
            send_fault({408, "request_timeout", "the request's headers did not arrive in time"},
                       HttpRequest());
            co_return false;
        }
        co_await more_input();
    }
}

asio::awaitable<bool> Connection::read_body(HttpParser& parser) {
    enter(Phase::body);
    latest_input_ = phase_began_;
    while (parser.state() == HttpParser::State::body) {
        if (!inbox_.empty()) {
            const std::size_t taken = parser.feed(inbox_);
            inbox_.erase(0, taken);
            body_bytes_ += taken;
            if (!hold()) {
                send_fault(
                    {429, "queue_full",
                     "the server holds as many bytes of requests as it may; try again later"},
                    parser.request());
                co_return false;
            }
            if (parser.state() != HttpParser::State::body) break;
        }
        if (!open_) co_return false;
        if (input_ended_) {
            parser.end_of_input();
            break;
        }
        const Clock::time_point now = Clock::now();
        if (now - latest_input_ > limits_.body_silence || now - phase_began_ > limits_.body) {
            gave_up_ = true;
            send_fault({408, "request_timeout", "the request's body did not arrive in time"},
                       parser.request());
            co_return false;
        }
        co_await more_input();
    }
    co_return true;
}

void Connection::send_fault(const HttpFault& fault, const HttpRequest& request) {
    const HttpResponse response = service_.fault_response(fault, request);
    send(render_head(response, request.http_1_0, false,
                     static_cast<long long>(response.body.size())) +
         response.body);
}

// Serves the request whose header is complete.  True: the next may follow.
asio::awaitable<bool> Connection::serve_one(HttpParser& parser) {
    std::optional<HttpResponse> refusal = service_.refuse(parser.request());
    const bool small = parser.announced_body().value_or(0) <= small_body;
    const bool whole =
        !parser.has_body() || (small && parser.announced_body() && !parser.wants_continue());
    bool may_keep_alive = true;
    if (!refusal || whole) {
        parser.accept_body();
        if (parser.state() == HttpParser::State::body) {
            if (parser.wants_continue() && inbox_.empty()) send("HTTP/1.1 100 Continue\r\n\r\n");
            const bool go_on = co_await read_body(parser);
            if (!go_on) co_return false;
        }
        if (parser.state() == HttpParser::State::failed) {
            send_fault(parser.fault(), parser.request());
            co_return false;
        }
    } else {
        may_keep_alive = false;  // the body stays unread
    }
    enter(Phase::working);
    HttpExchange exchange(*this, std::move(parser.request()),
                          may_keep_alive && service_.keeps_connections());
    if (refusal) {
        exchange.respond(std::move(*refusal));
    } else {
        co_await service_.serve(exchange);
    }
    peer_gone_ = nullptr;
    body_released();
    co_await output_drained();
    co_return open_&& exchange.keep_alive() && !input_ended_;
}

// Lets the last reply arrive: closing a socket with unread input would reset it.
asio::awaitable<void> Connection::linger() {
    co_await output_drained();
    if (!open_) co_return;
    enter(Phase::lingering);
    boost::system::error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    inbox_.clear();
    body_released();
    while (open_ && !input_ended_)
        co_await more_input();
}

asio::awaitable<void> Connection::run() {
    const auto self = shared_from_this();
    arm_read();
    bool go_on = true;
    bool first = true;
    while (go_on && open_) {
        enter(first ? Phase::first_byte : Phase::idle);
        first = false;
        if (inbox_.empty() && inbox_.capacity() > 64 * 1024) inbox_.shrink_to_fit();
        HttpParser parser(limits_.http);
        go_on = co_await read_header(parser);
        if (!go_on) break;
        if (parser.state() == HttpParser::State::failed) {
            send_fault(parser.fault(), parser.request());
            break;
        }
        go_on = co_await serve_one(parser);
    }
    if (open_ && gave_up_) co_await output_drained();
    if (open_ && !gave_up_) co_await linger();
    close();
}

// ---- exchange ---------------------------------------------------------------------------------

HttpExchange::HttpExchange(Connection& connection, HttpRequest request, bool may_keep_alive)
    : connection_(connection), request_(std::move(request)) {
    keep_alive_ = may_keep_alive && request_.keep_alive;
}

void HttpExchange::release_body() {
    std::string().swap(request_.body);
    connection_.body_released();
}

void HttpExchange::add_header(std::string name, std::string value) {
    extra_headers_.push_back({std::move(name), std::move(value)});
}

void HttpExchange::respond(HttpResponse response) {
    if (answered_) return;
    answered_ = true;
    status_ = response.status;
    response.headers.insert(response.headers.end(), extra_headers_.begin(), extra_headers_.end());
    std::string message = render_head(response, request_.http_1_0, keep_alive_,
                                      static_cast<long long>(response.body.size()));
    if (request_.method != "HEAD" && response.status != 204 && response.status != 304) {
        message += response.body;
    }
    connection_.send(message);
}

void HttpExchange::begin_stream(HttpResponse head) {
    if (answered_) return;
    answered_ = true;
    streaming_ = true;
    status_ = head.status;
    if (request_.http_1_0) keep_alive_ = false;
    head.headers.insert(head.headers.end(), extra_headers_.begin(), extra_headers_.end());
    connection_.send(render_head(head, request_.http_1_0, keep_alive_, -1));
}

void HttpExchange::end_stream() {
    if (chunked()) connection_.send("0\r\n\r\n");
}

}  // namespace percheron::server
