// The working memory of a stage: one block, cut anew by every stage.
//
// A lay-out function takes its matrices from the arena in a fixed order.  Run on an arena without
// memory it only measures; run later on the reserved one it gets views.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <memory>
#include <new>
#include <span>

#include "core/status.h"
#include "core/views.h"

namespace percheron::ops {

class ScratchArena {
  public:
    // Forgets what was handed out.
    void restart() { used_ = 0; }

    // An uninitialised matrix of this stage, rows contiguous and 64-byte aligned at its start.
    template <class T>
    Rows<T> rows(std::size_t count, std::size_t columns) {
        return Rows<T>(reinterpret_cast<T*>(take(count * columns * sizeof(T))), count, columns);
    }
    template <class T>
    std::span<T> span(std::size_t count) {
        T* const data = reinterpret_cast<T*>(take(count * sizeof(T)));
        return data == nullptr ? std::span<T>() : std::span<T>(data, count);
    }

    // The most that lay-outs took since the start.
    std::size_t peak() const { return peak_; }

    // Makes the measured peak real.  Views taken before are void.
    Status reserve() {
        memory_.reset(static_cast<std::byte*>(
            ::operator new(std::max<std::size_t>(peak_, 1), alignment, std::nothrow)));
        if (memory_ == nullptr) {
            return Error(ErrorCode::out_of_memory, "No memory for the stages' working space of " +
                                                       std::to_string(peak_) +
                                                       " bytes: lower the rows of a step.");
        }
        size_ = peak_;
        restart();
        return {};
    }

  private:
    static constexpr std::align_val_t alignment{64};
    struct Free {
        void operator()(std::byte* memory) const { ::operator delete(memory, alignment); }
    };

    std::byte* take(std::size_t bytes) {
        const std::size_t first = used_;
        used_ += (bytes + 63) / 64 * 64;
        peak_ = std::max(peak_, used_);
        if (memory_ == nullptr) return nullptr;
        assert(used_ <= size_);
        return memory_.get() + first;
    }

    std::unique_ptr<std::byte, Free> memory_;
    std::size_t size_ = 0;
    std::size_t used_ = 0;
    std::size_t peak_ = 0;
};

}  // namespace percheron::ops
