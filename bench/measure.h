// Timing shared by the benches.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <vector>

namespace percheron::bench {

// Time of the wall, or of this process alone (`exclusive`), which other programs on the machine
// disturb less; only with one thread does the latter say anything.
struct Clock {
    using duration = std::chrono::nanoseconds;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::time_point<Clock>;
    static inline bool exclusive = false;
    static time_point now() {
        timespec time{};
        clock_gettime(exclusive ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
        return time_point(std::chrono::seconds(time.tv_sec) +
                          std::chrono::nanoseconds(time.tv_nsec));
    }
};

inline double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

inline double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values.empty() ? 0.0 : values[values.size() / 2];
}

// Least seconds of `runs` calls, after one that does not count: what undisturbed work takes.
template <class Body>
double least_seconds(std::size_t runs, Body&& body) {
    body();
    std::vector<double> times;
    for (std::size_t run = 0; run < runs; ++run) {
        const auto start = Clock::now();
        body();
        times.push_back(seconds_since(start));
    }
    return *std::min_element(times.begin(), times.end());
}

}  // namespace percheron::bench
