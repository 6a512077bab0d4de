// Device memory owned by objects, all of it from plain cudaMalloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "percheron/types.h"

#include "core/status.h"
#include "ops/cuda/device_error.h"

namespace percheron::ops::cuda {

// One allocation.
class DeviceMemory {
  public:
    DeviceMemory() = default;
    ~DeviceMemory() { reset(); }
    DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
    DeviceMemory& operator=(DeviceMemory&& other) noexcept {
        swap(other);
        return *this;
    }

    // Errors: out_of_memory, with the purpose named.
    static Result<DeviceMemory> allocate(Bytes bytes, std::string_view purpose);

    std::byte* data() const { return data_; }
    Bytes size() const { return size_; }
    void reset();

  private:
    void swap(DeviceMemory& other) {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
    }

    std::byte* data_ = nullptr;
    Bytes size_ = 0;
};

// Pinned host memory, which copies to and from the device without a detour.
class PinnedMemory {
  public:
    PinnedMemory() = default;
    ~PinnedMemory() { reset(); }
    PinnedMemory(PinnedMemory&& other) noexcept { swap(other); }
    PinnedMemory& operator=(PinnedMemory&& other) noexcept {
        swap(other);
        return *this;
    }

    static Result<PinnedMemory> allocate(Bytes bytes, std::string_view purpose);

    std::byte* data() const { return data_; }
    Bytes size() const { return size_; }
    void reset();

  private:
    void swap(PinnedMemory& other) {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
    }

    std::byte* data_ = nullptr;
    Bytes size_ = 0;
};

// Many blocks that live as long as the arena, packed into few allocations: cudaMalloc rounds each
// to megabytes, and a checkpoint has tens of thousands of matrices.
class DeviceArena {
  public:
    // 256-byte aligned.  Errors: out_of_memory.
    Result<std::byte*> take(Bytes bytes, std::string_view purpose);

  private:
    static constexpr Bytes chunk_bytes = Bytes{64} << 20;

    std::vector<DeviceMemory> chunks_;
    std::byte* free_ = nullptr;
    Bytes left_ = 0;
};

}  // namespace percheron::ops::cuda
