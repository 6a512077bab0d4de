// Scratch that reaches its size in the first steps and is then reused.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

namespace percheron::ops::cpu {

// An aligned array of floats without initial values.  Growing loses the contents.
class WorkingMemory {
  public:
    void reserve(std::size_t floats) {
        if (floats <= size_) return;
        data_.reset(static_cast<float*>(::operator new(floats * sizeof(float), alignment)));
        size_ = floats;
    }
    float* data() const { return data_.get(); }
    std::size_t size() const { return size_; }

  private:
    static constexpr std::align_val_t alignment{64};
    struct Free {
        void operator()(float* memory) const { ::operator delete(memory, alignment); }
    };
    std::unique_ptr<float, Free> data_;
    std::size_t size_ = 0;
};

// Pieces handed out one after the other; restart() makes all of it free again.  What was handed
// out stays where it is while more is taken; after a restart everything fits into one block.
class GrowingBlocks {
  public:
    void restart() {
        if (overflow_.empty()) {
            used_ = 0;
            return;
        }
        overflow_.clear();
        main_.reserve(total_ * 2);
        used_ = 0;
        total_ = 0;
    }
    float* take(std::size_t floats) {
        floats = (floats + 15) / 16 * 16;
        if (used_ + floats <= main_.size()) {
            float* const piece = main_.data() + used_;
            used_ += floats;
            total_ = used_;
            return piece;
        }
        total_ += floats;
        overflow_.emplace_back();
        overflow_.back().reserve(floats);
        return overflow_.back().data();
    }
    void reserve(std::size_t floats) { main_.reserve(floats); }

  private:
    WorkingMemory main_;
    std::vector<WorkingMemory> overflow_;
    std::size_t used_ = 0;
    std::size_t total_ = 0;
};

}  // namespace percheron::ops::cpu
