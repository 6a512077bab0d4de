// Every allocation of this program, to show that a step makes none.
#pragma once

#include <atomic>
#include <cstddef>

namespace percheron::tests {

extern std::atomic<std::size_t> allocations;
extern std::atomic<std::size_t> allocated_bytes;

}  // namespace percheron::tests
