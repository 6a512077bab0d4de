#include "server/event_stream_writer.h"

namespace percheron::server {

void EventStreamWriter::begin() {
    if (exchange_.streaming()) return;
    HttpResponse head;
    head.content_type = "text/event-stream";
    head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    exchange_.begin_stream(std::move(head));
}

void EventStreamWriter::fail(const ApiError& error) {
    if (!exchange_.streaming()) {
        exchange_.respond(error_response(error, form_));
        return;
    }
    append_failure(error);
    close();
}

void EventStreamWriter::keep_alive() {
    begin();
    text() += sign_of_life();
    flush();
}

void EventStreamWriter::flush() {
    if (!buffer_.empty()) exchange_.send_piece(buffer_.piece(exchange_.chunked()));
    buffer_.clear();
}

void EventStreamWriter::close() {
    flush();
    exchange_.end_stream();
}

}  // namespace percheron::server
