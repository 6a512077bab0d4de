// Replies that are sent as server-sent events: the head of the stream, the pieces, its end.
#pragma once

#include <string>
#include <string_view>

#include "server/generation.h"
#include "server/reply_writer.h"
#include "server/sse.h"

namespace percheron::server {

class EventStreamWriter : public ReplyWriter {
  public:
    explicit EventStreamWriter(HttpExchange& exchange, ErrorForm form = ErrorForm::openai)
        : exchange_(exchange), form_(form) {}

    void begin() override;
    // An error reply while nothing has been sent, else an event.
    void fail(const ApiError& error) override;
    void keep_alive() override;

  protected:
    // The event that ends a stream by a failure, into text().
    virtual void append_failure(const ApiError& error) = 0;
    // A comment, which clients pass over, unless the format has an event for it.
    virtual std::string_view sign_of_life() const { return ": keep-alive\n\n"; }

    // Where the events of this step are appended.
    std::string& text() { return buffer_.text(); }
    // Sends them.
    void flush();
    // Sends them, the last ones.
    void close();

    ErrorForm form() const { return form_; }

  private:
    HttpExchange& exchange_;
    ErrorForm form_;
    EventBuffer buffer_;
};

}  // namespace percheron::server
