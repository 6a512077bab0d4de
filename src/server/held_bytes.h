// How many bytes of requests the server holds, over all connections and replies: bodies being read,
// input that came early, prompts and pictures of replies under way.
//
// Each holder has a share.  Whoever makes the sum exceed the limit is turned away, unless its own
// share is small: small requests are bounded by the number of connections, and must get through
// beside large ones.  I/O thread only.
#pragma once

#include <cstddef>
#include <utility>

namespace percheron::server {

class HeldBytes {
  public:
    static constexpr std::size_t small_share = 64 * 1024;

    explicit HeldBytes(std::size_t limit) : limit_(limit) {}
    HeldBytes(const HeldBytes&) = delete;
    HeldBytes& operator=(const HeldBytes&) = delete;

    std::size_t total() const { return total_; }
    std::size_t limit() const { return limit_; }

    class Share {
      public:
        explicit Share(HeldBytes& held) : held_(held) {}
        ~Share() { set(0); }
        Share(const Share&) = delete;
        Share& operator=(const Share&) = delete;

        // What this holder holds now.  False: too much beside what others hold.
        bool set(std::size_t bytes) {
            const bool alone = held_.total_ == bytes_;
            held_.total_ += bytes - bytes_;
            bytes_ = bytes;
            return alone || bytes <= small_share || held_.total_ <= held_.limit_;
        }

      private:
        HeldBytes& held_;
        std::size_t bytes_ = 0;
    };

  private:
    std::size_t limit_;
    std::size_t total_ = 0;
};

}  // namespace percheron::server
