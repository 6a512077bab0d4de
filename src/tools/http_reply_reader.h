// Takes one HTTP/1.1 reply apart as its bytes come: the head, then the body piece by piece, whether
// it is chunked, counted or ends with the connection.  A server may be anybody: heads and bodies
// have a limit, and what is not HTTP is a problem in one sentence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace percheron::tools {

class HttpReplyReader {
  public:
    static constexpr std::size_t most_head_bytes = 64 * 1024;

    enum class State { head, body, ended, broken };

    // A body of more bytes breaks the reply.
    explicit HttpReplyReader(
        std::uint64_t most_body_bytes = std::numeric_limits<std::uint64_t>::max())
        : most_body_bytes_(most_body_bytes) {}

    void add(std::string_view bytes);
    // The connection has ended.
    void end();

    // The next piece of the body that is there: a whole chunk, or what came of any other body.
    // Holds until the next call of add().
    std::optional<std::string_view> next_piece();

    State state() const { return state_; }
    int status() const { return status_; }  // 0 before the head is there
    bool chunked() const { return form_ == Form::chunked; }
    const std::string& problem() const { return problem_; }  // when broken

  private:
    enum class Form { chunked, counted, until_end };

    std::string_view unread() const { return std::string_view(bytes_).substr(read_); }
    void read_head();
    bool read_field(std::string_view line);
    std::optional<std::string_view> next_chunk();
    std::optional<std::string_view> take(std::size_t size);
    void fail(std::string problem);

    std::uint64_t most_body_bytes_;
    State state_ = State::head;
    Form form_ = Form::until_end;
    int status_ = 0;
    std::uint64_t left_ = 0;  // of a counted body
    std::uint64_t body_bytes_ = 0;
    std::string bytes_;
    std::size_t read_ = 0;  // of bytes_
    std::string problem_;
};

}  // namespace percheron::tools
