// One end of the connection between front and rank: frames out from any thread, frames in on the
// one thread that waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "core/status.h"
#include "parallel/message_bytes.h"
#include "parallel/messages.h"

namespace percheron::parallel {

// A descriptor, closed with it.
class Descriptor {
  public:
    explicit Descriptor(int number = -1) : number_(number) {}
    Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~Descriptor();
    int number() const { return number_; }

  private:
    int number_;
};

// Frames out of bytes that come in any pieces.
class FrameReader {
  public:
    struct Frame {
        MessageKind kind{};
        std::span<const std::uint8_t> fields;
    };

    void add(std::span<const std::uint8_t> bytes) {
        bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    }
    // The next whole frame, valid until add(); none: there is not one yet.  Errors: corrupt (no
    // frame can look like this); nothing can be read behind it.
    Result<std::optional<Frame>> next();

  private:
    Message bytes_;
    std::size_t at_ = 0;  // of them, read
};

class ControlLink {
  public:
    // `end`: of a socket pair.
    explicit ControlLink(Descriptor end);

    // Never waits: what the socket does not take at once goes out while somebody waits.  Any
    // thread.
    void send(const Message& frame);
    // Ends a wait.  Any thread.
    void wake();

    // Waits until something came, was called for or the time is over; `beside` is a descriptor to
    // look at as well, or -1.  False: the other end is closed.
    bool wait(std::chrono::milliseconds most, int beside = -1);
    Result<std::optional<FrameReader::Frame>> next() { return reader_.next(); }

    // Nothing comes or goes any more, and the other end sees that.
    void close();
    // Sends what is left, waiting for the socket; for a process that is about to end.
    void flush();

  private:
    bool send_pending();
    bool receive();

    Descriptor end_;
    Descriptor wake_;
    std::mutex mutex_;
    Message pending_;
    std::size_t sent_ = 0;  // of them
    FrameReader reader_;
};

}  // namespace percheron::parallel
