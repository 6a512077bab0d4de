// Reads one HTTP reply with server-sent events as its bytes come, an event or more a chunk, and of
// each event the text it adds.  For the load client: no copies but of an unfinished tail.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tools/http_reply_reader.h"

namespace percheron::tools {

class EventStreamReader {
  public:
    using State = HttpReplyReader::State;

    // Takes all of `bytes`; returns how many events with text were completed.
    std::uint32_t feed(std::string_view bytes);

    State state() const;
    int status() const { return http_.status(); }
    const std::string& content() const { return content_; }  // answer text so far
    const std::string& problem() const { return problem_; }  // when broken, or an error event
    std::uint64_t completion_tokens() const { return completion_tokens_; }
    bool finished() const { return finished_; }  // a finish_reason came
    bool done() const { return done_; }          // data: [DONE] came

  private:
    void read_events(std::string_view data);
    void read_event(std::string_view event);
    void fail(std::string problem);

    HttpReplyReader http_;
    bool broken_ = false;
    std::string content_;
    std::string problem_;
    std::uint64_t completion_tokens_ = 0;
    std::uint32_t text_events_ = 0;
    bool finished_ = false;
    bool done_ = false;
};

}  // namespace percheron::tools
