// One client's connection: reads requests, hands them to the service one after another, and sends
// what the service writes.  Lives on the I/O thread alone.
//
// A read is always pending, also while a request is being worked on, so a client that goes away is
// noticed at once; bytes of a next request that arrive early wait in the inbox.  Output is written
// straight to the socket; only what the socket does not take is kept, and a client that lets too
// much pile up, or takes nothing for too long, is dropped.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/asio.h"
#include "server/held_bytes.h"
#include "server/http_message.h"
#include "server/http_parser.h"

namespace percheron::server {

using Clock = std::chrono::steady_clock;

struct ConnectionLimits {
    HttpLimits http;
    std::chrono::seconds first_byte{30};  // a new connection that sends nothing
    std::chrono::seconds idle{650};       // between requests
    std::chrono::seconds header{30};      // from a request's first byte to its last header
    std::chrono::seconds body_silence{30};
    std::chrono::seconds body{600};
    std::chrono::seconds write_silence{60};  // the client takes nothing of what waits for it
    std::size_t pending_output = 16 * 1024 * 1024;

    // Bytes taken beyond the request being worked on: one more request.  A client that sends more
    // is dropped; reading no further would hide its going away.
    std::size_t early_input() const { return http.header_bytes + http.body_bytes; }
};

class HttpExchange;

// What answers requests.
class HttpService {
  public:
    virtual ~HttpService() = default;
    // Called when the headers are known and the body is not yet read.  An answer refuses the
    // request.
    virtual std::optional<HttpResponse> refuse(const HttpRequest& request) = 0;
    // Must answer through the exchange before it returns.
    virtual asio::awaitable<void> serve(HttpExchange& exchange) = 0;
    // The body of an error reply in the service's form; `request` as far as it is known.
    virtual HttpResponse fault_response(const HttpFault& fault, const HttpRequest& request) = 0;
    // Whether connections stay open after a reply.
    virtual bool keeps_connections() const = 0;
};

class Connection : public std::enable_shared_from_this<Connection> {
  public:
    Connection(tcp::socket socket, const ConnectionLimits& limits, HeldBytes& held,
               HttpService& service);

    // Serves requests until the connection ends.
    asio::awaitable<void> run();

    void send(std::string_view bytes);
    // Whether replies can still be delivered.  False also when the client has closed its side.
    bool peer_present() const { return open_ && !input_ended_; }
    bool open() const { return open_; }
    // `callback` runs once, from the I/O thread's queue, when the client goes away or closes its
    // sending side; it must bear being called after the request has ended.
    void on_peer_gone(std::function<void()> callback) { peer_gone_ = std::move(callback); }
    // Resumes when everything sent has reached the socket or the connection is closed.
    asio::awaitable<void> output_drained();

    // Closes what has overrun its time.
    void check_time(Clock::time_point now);
    // Idle since when; absent while a request is under way.
    std::optional<Clock::time_point> idle_since() const;
    void close();
    // The body of the request being worked on is held no longer.
    void body_released();

  private:
    enum class Phase { first_byte, idle, header, body, working, lingering };

    void enter(Phase phase);
    bool hold();
    void arm_read();
    void read_available();
    void arm_write();
    void write_pending();
    void input_changed();
    asio::awaitable<void> more_input();
    asio::awaitable<bool> read_header(HttpParser& parser);
    asio::awaitable<bool> read_body(HttpParser& parser);
    asio::awaitable<bool> serve_one(HttpParser& parser);
    asio::awaitable<void> linger();
    void send_fault(const HttpFault& fault, const HttpRequest& request);

    tcp::socket socket_;
    const ConnectionLimits& limits_;
    HttpService& service_;
    asio::steady_timer input_signal_;
    asio::steady_timer output_signal_;
    std::function<void()> peer_gone_;

    HeldBytes::Share share_;
    std::string inbox_;           // bytes read and not yet parsed
    std::size_t body_bytes_ = 0;  // of the request being read or worked on
    std::string outbox_;
    std::size_t outbox_sent_ = 0;
    bool open_ = true;
    bool input_ended_ = false;
    bool gave_up_ = false;  // on a client that was silent for too long: nothing of it is awaited
    bool read_armed_ = false;
    bool write_armed_ = false;

    Phase phase_ = Phase::first_byte;
    Clock::time_point phase_began_;
    Clock::time_point latest_input_;
    Clock::time_point latest_output_;
};

// One request and its reply.
class HttpExchange {
  public:
    HttpExchange(Connection& connection, HttpRequest request, bool may_keep_alive);

    const HttpRequest& request() const { return request_; }
    HttpRequest& request() { return request_; }
    Connection& connection() { return connection_; }

    // Frees the request's body; call when it has been read.
    void release_body();

    // Added to the reply whatever it will be.
    void add_header(std::string name, std::string value);

    // The whole reply.  Only before begin_stream().
    void respond(HttpResponse response);

    // A reply whose body comes piece by piece.  Pieces given to send_piece() must carry their
    // chunk framing when chunked() says so; end_stream() closes the body.
    void begin_stream(HttpResponse head);
    bool chunked() const { return !request_.http_1_0; }
    void send_piece(std::string_view framed) { connection_.send(framed); }
    void end_stream();

    bool answered() const { return answered_; }
    bool streaming() const { return streaming_; }
    bool keep_alive() const { return keep_alive_; }
    int status() const { return status_; }

  private:
    Connection& connection_;
    HttpRequest request_;
    std::vector<HttpHeader> extra_headers_;
    bool keep_alive_;
    bool answered_ = false;
    bool streaming_ = false;
    int status_ = 0;
};

}  // namespace percheron::server
