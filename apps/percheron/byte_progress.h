// Progress of work that is counted in bytes, on stderr, with rate and time left: one line that
// rewrites itself on a terminal, a line every tenth elsewhere.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include <unistd.h>

#include "percheron/types.h"

namespace percheron::apps {

class ByteProgress {
  public:
    explicit ByteProgress(std::string name) : name_(std::move(name)) {}

    void operator()(Bytes done, Bytes total) {
        const auto now = std::chrono::steady_clock::now();
        const auto percent = static_cast<int>(100 * done / std::max<Bytes>(total, 1));
        const bool terminal = ::isatty(STDERR_FILENO) != 0;
        if (percent < shown_ + (terminal ? 1 : 10) && done < total) return;
        shown_ = percent;
        const double seconds = std::chrono::duration<double>(now - start_).count();
        const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
        const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
        std::fprintf(stderr, "%s%s: %3d %%, %.1f MiB/s, %.0f s left%s", terminal ? "\r" : "",
                     name_.c_str(), percent, rate / (1024.0 * 1024.0), left,
                     terminal && done < total ? "   " : "   \n");
    }

  private:
    std::string name_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    int shown_ = 0;
};

}  // namespace percheron::apps
