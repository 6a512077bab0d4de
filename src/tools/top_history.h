// The samples of a server that a live view compares: the rates so far, and where the last minute
// began.
#pragma once

#include <deque>
#include <string>

#include "tools/server_sample.h"
#include "tools/top_view.h"

namespace percheron::tools {

class TopHistory {
  public:
    explicit TopHistory(std::string url) { state_.url = std::move(url); }

    // `seconds`: a clock that never goes back.
    void add(ServerSample sample, double seconds);
    // Why there is no newer sample.
    void fail(std::string trouble) { state_.trouble = std::move(trouble); }

    const TopState& state() const { return state_; }

  private:
    struct Past {
        double seconds = 0;
        ServerSample sample;  // without its requests
    };

    TopState state_;
    std::deque<Past> minute_;
};

}  // namespace percheron::tools
