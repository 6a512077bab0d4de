// The periodic line of the log: what the server is doing, while it does something.
#pragma once

#include <cstdint>

#include "server/server_state.h"

namespace percheron::server {

class Rates {
  public:
    explicit Rates(ServerState& state) : state_(state) {}

    // Writes a line every ten seconds in which a token was prefilled or generated.
    void every_second();

  private:
    struct Counters {
        std::uint64_t prompt = 0;
        std::uint64_t generated = 0;
        std::uint64_t queries = 0;
        std::uint64_t hits = 0;
        std::uint64_t drafted = 0;
        std::uint64_t accepted = 0;
    };

    Counters counters() const;

    ServerState& state_;
    Counters before_;
    int seconds_ = 0;
};

}  // namespace percheron::server
