// Tokens a second over the last seconds, as status pages show them.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace percheron {

class Throughput {
  public:
    using Clock = std::chrono::steady_clock;

    explicit Throughput(Clock::time_point start) : start_(start) {}

    void add(Clock::time_point now, std::uint64_t tokens) {
        const std::int64_t second = second_of(now);
        Bucket& bucket = buckets_[static_cast<std::size_t>(second) % buckets_.size()];
        if (bucket.second != second) {
            bucket = {second, 0};
        }
        bucket.tokens += tokens;
    }

    double per_second(Clock::time_point now) const {
        const std::int64_t second = second_of(now);
        std::uint64_t tokens = 0;
        for (const Bucket& bucket : buckets_) {
            const bool recent = bucket.second >= 0 && bucket.second > second - window_seconds;
            tokens += recent && bucket.second <= second ? bucket.tokens : 0;
        }
        // The current second has only begun; an engine younger than the window has lived shorter.
        const double age = std::chrono::duration<double>(now - start_).count();
        const double begun = age - static_cast<double>(second);
        const double window =
            second < window_seconds - 1 ? age : static_cast<double>(window_seconds - 1) + begun;
        return window > 0 ? static_cast<double>(tokens) / window : 0.0;
    }

  private:
    static constexpr std::int64_t window_seconds = 5;
    struct Bucket {
        std::int64_t second = -1;
        std::uint64_t tokens = 0;
    };

    std::int64_t second_of(Clock::time_point now) const {
        return std::chrono::duration_cast<std::chrono::seconds>(now - start_).count();
    }

    Clock::time_point start_;
    std::array<Bucket, window_seconds> buckets_{};
};

}  // namespace percheron
