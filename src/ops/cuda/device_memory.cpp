#include "ops/cuda/device_memory.h"

#include <algorithm>
#include <string>

namespace percheron::ops::cuda {

Result<DeviceMemory> DeviceMemory::allocate(Bytes bytes, std::string_view purpose) {
    DeviceMemory memory;
    void* data = nullptr;
    PERCHERON_TRY(check(cudaMalloc(&data, std::max<Bytes>(bytes, 1)),
                        "allocating " + std::to_string(bytes) + " bytes of device memory for " +
                            std::string(purpose)));
    memory.data_ = static_cast<std::byte*>(data);
    memory.size_ = bytes;
    return memory;
}

void DeviceMemory::reset() {
    if (data_ != nullptr) cudaFree(data_);
    data_ = nullptr;
    size_ = 0;
}

Result<PinnedMemory> PinnedMemory::allocate(Bytes bytes, std::string_view purpose) {
    PinnedMemory memory;
    void* data = nullptr;
    PERCHERON_TRY(check(cudaMallocHost(&data, std::max<Bytes>(bytes, 1)),
                        "allocating " + std::to_string(bytes) + " bytes of pinned memory for " +
                            std::string(purpose)));
    memory.data_ = static_cast<std::byte*>(data);
    memory.size_ = bytes;
    return memory;
}

void PinnedMemory::reset() {
    if (data_ != nullptr) cudaFreeHost(data_);
    data_ = nullptr;
    size_ = 0;
}

Result<std::byte*> DeviceArena::take(Bytes bytes, std::string_view purpose) {
    constexpr Bytes alignment = 256;
    const Bytes rounded = (std::max<Bytes>(bytes, 1) + alignment - 1) / alignment * alignment;
    taken_ += rounded;
    if (rounded > largest_shared) {
        PERCHERON_ASSIGN(chunks_.emplace_back(), DeviceMemory::allocate(rounded, purpose));
        return chunks_.back().data();
    }
    if (rounded > left_) {
        const Bytes chunk = arena_chunk(taken_, rounded);
        PERCHERON_ASSIGN(chunks_.emplace_back(), DeviceMemory::allocate(chunk, purpose));
        free_ = chunks_.back().data();
        left_ = chunk;
    }
    std::byte* const taken = free_;
    free_ += rounded;
    left_ -= rounded;
    return taken;
}

}  // namespace percheron::ops::cuda
