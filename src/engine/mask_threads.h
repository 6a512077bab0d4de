// The threads that work out masks.  Orders go to them, and word comes back, without a lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "engine/answer_masks.h"

namespace percheron::engine {

class MaskThreads {
  public:
    // `orders` at most wait at a time.  Threads begin with the first order.
    MaskThreads(std::size_t threads, std::size_t orders) : wanted_(threads), orders_(orders) {}
    // Orders that nobody has begun are dropped; those under way are waited for.
    ~MaskThreads();
    MaskThreads(const MaskThreads&) = delete;
    MaskThreads& operator=(const MaskThreads&) = delete;

    // Called on a mask thread after every order.
    void on_fulfilled(std::function<void()> call) { fulfilled_ = std::move(call); }

    // Whether there is a place; then the order that `masks` has begun is fulfilled, whoever lets go
    // of it.  One thread alone asks and orders.
    bool has_place() const {
        return pushed_.load(std::memory_order_relaxed) - popped_.load(std::memory_order_acquire) <
               orders_.size();
    }
    void order(std::shared_ptr<AnswerMasks> masks);

  private:
    AnswerMasks* pop();
    void run();

    const std::size_t wanted_;
    std::function<void()> fulfilled_;
    std::vector<std::thread> threads_;

    // A ring: one thread pushes, whoever moves `popped_` on has what stood there.
    std::vector<std::atomic<AnswerMasks*>> orders_;
    std::atomic<std::size_t> pushed_{0};
    std::atomic<std::size_t> popped_{0};
    std::atomic<std::uint32_t> signal_{0};  // something changed for the threads
    std::atomic<bool> stopping_{false};
};

}  // namespace percheron::engine
