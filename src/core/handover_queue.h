// A bounded queue from one thread to another, without a lock: the one that pushes never waits, and
// neither does the one that pops.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace percheron {

template <class Item>
class HandoverQueue {
  public:
    explicit HandoverQueue(std::size_t capacity) : items_(capacity) {}

    // The pushing thread.  False, with the item untouched: it is full.
    [[nodiscard]] bool push(Item&& item) {
        const std::size_t pushed = pushed_.load(std::memory_order_relaxed);
        if (pushed - popped_.load(std::memory_order_acquire) == items_.size()) return false;
        items_[pushed % items_.size()] = std::move(item);
        pushed_.store(pushed + 1, std::memory_order_release);
        return true;
    }

    // The popping thread; the item stays until pop().  Null: there is none.
    Item* front() {
        const std::size_t popped = popped_.load(std::memory_order_relaxed);
        if (popped == pushed_.load(std::memory_order_acquire)) return nullptr;
        return &items_[popped % items_.size()];
    }
    std::optional<Item> pop() {
        Item* const item = front();
        if (item == nullptr) return std::nullopt;
        std::optional<Item> taken(std::move(*item));
        popped_.fetch_add(1, std::memory_order_release);
        return taken;
    }

    // Any thread, of a moment that may be over.
    bool empty() const {
        return popped_.load(std::memory_order_acquire) == pushed_.load(std::memory_order_acquire);
    }

  private:
    std::vector<Item> items_;
    std::atomic<std::size_t> pushed_{0};
    std::atomic<std::size_t> popped_{0};
};

}  // namespace percheron
