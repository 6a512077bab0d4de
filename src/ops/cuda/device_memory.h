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

// Of an arena that has given out `taken` bytes, the next allocation, where `bytes` are asked for:
// for matrices of a megabyte and more up to 64 MiB, and 256 MiB of a large model, in the number of
// them by which the driver's rounding costs least; for smaller ones a quarter of what is taken,
// from 8 to 64 MiB.  So little is left over, of a small model too.
constexpr Bytes arena_chunk(Bytes taken, Bytes bytes) {
    constexpr Bytes mebibyte = Bytes{1} << 20, granularity = 2 * mebibyte;
    const auto rounded = [](Bytes size) {
        return (size + granularity - 1) / granularity * granularity;
    };
    Bytes target = taken > (Bytes{16} << 30) ? 256 * mebibyte : 64 * mebibyte;
    if (bytes < mebibyte) {
        target = taken / 4 < 8 * mebibyte    ? 8 * mebibyte
                 : taken / 4 > 64 * mebibyte ? 64 * mebibyte
                                             : taken / 4;
    }
    const Bytes largest = target / bytes > 0 ? target / bytes : 1;
    Bytes best = largest;
    for (Bytes blocks = largest; blocks > largest / 2 && largest - blocks < 64; --blocks) {
        if (rounded(blocks * bytes) * best < rounded(best * bytes) * blocks) best = blocks;
    }
    return rounded(best * bytes);
}

// Many blocks that live as long as the arena, packed into few allocations: cudaMalloc rounds each
// to megabytes, and a checkpoint has tens of thousands of matrices.
class DeviceArena {
  public:
    // 256-byte aligned.  Errors: out_of_memory.
    Result<std::byte*> take(Bytes bytes, std::string_view purpose);

  private:
    // Larger blocks stand alone, so that what is left of a chunk stays in use.
    static constexpr Bytes largest_shared = Bytes{32} << 20;

    std::vector<DeviceMemory> chunks_;
    Bytes taken_ = 0;
    std::byte* free_ = nullptr;
    Bytes left_ = 0;
};

}  // namespace percheron::ops::cuda
