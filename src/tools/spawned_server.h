// A server of this same binary as a child process, for benches that measure it from outside.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"

namespace percheron::tools {

class SpawnedServer {
  public:
    // Runs `percheron serve ARGUMENTS --port 0` and waits for its ready line.  Its log goes to
    // /dev/null.  Errors: io, or the child's end before it was ready.
    static Result<std::unique_ptr<SpawnedServer>> start(const std::vector<std::string>& arguments);
    ~SpawnedServer();  // asks it to end and waits

    std::uint16_t port() const { return port_; }
    int process() const { return process_; }

  private:
    SpawnedServer(int process, std::uint16_t port) : process_(process), port_(port) {}
    int process_;
    std::uint16_t port_;
};

}  // namespace percheron::tools
