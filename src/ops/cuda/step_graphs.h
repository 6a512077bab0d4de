// Recorded steps, found again by a fingerprint of everything that their kernels were launched with.
#pragma once

#include <cstdint>
#include <cstring>
#include <list>
#include <type_traits>

#include <cuda_runtime.h>

#include "core/status.h"

namespace percheron::ops::cuda {

// FNV-1a over the bytes of plain values.
class Fingerprint {
  public:
    template <class T>
    void add(const T& value) {
        static_assert(std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>);
        unsigned char bytes[sizeof(T)];
        std::memcpy(bytes, &value, sizeof(T));
        for (const unsigned char byte : bytes)
            hash_ = (hash_ ^ byte) * 1099511628211ull;
    }
    std::uint64_t value() const { return hash_; }

  private:
    std::uint64_t hash_ = 1469598103934665603ull;
};

// The steps used last.  A step is worth recording when it comes a second time.
class StepGraphs {
  public:
    StepGraphs() = default;
    ~StepGraphs() { clear(); }
    StepGraphs(const StepGraphs&) = delete;
    StepGraphs& operator=(const StepGraphs&) = delete;

    // nullptr: not recorded.
    cudaGraphExec_t find(std::uint64_t fingerprint);
    // Whether this is at least the second time that the step is asked for.
    bool seen(std::uint64_t fingerprint);
    // Takes the captured graph and makes it ready.  Errors: internal.
    Result<cudaGraphExec_t> add(std::uint64_t fingerprint, cudaGraph_t graph);
    void clear();
    // Kernels of the step recorded last.
    std::size_t latest_kernels() const { return latest_kernels_; }

  private:
    static constexpr std::size_t most_graphs = 32;
    static constexpr std::size_t most_seen = 256;
    struct Entry {
        std::uint64_t fingerprint = 0;
        cudaGraphExec_t graph = nullptr;
    };
    std::list<Entry> graphs_;  // used last first
    std::list<std::uint64_t> seen_;
    std::size_t latest_kernels_ = 0;
};

}  // namespace percheron::ops::cuda
