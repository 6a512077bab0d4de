#include "engine/mask_threads.h"

#include <utility>

namespace percheron::engine {

MaskThreads::~MaskThreads() {
    stopping_.store(true);
    signal_.fetch_add(1);
    signal_.notify_all();
    for (std::thread& thread : threads_)
        thread.join();
    while (AnswerMasks* const left = pop())
        left->release();
}

void MaskThreads::order(std::shared_ptr<AnswerMasks> masks) {
    while (threads_.size() < wanted_) {
        threads_.emplace_back([this] { run(); });
    }
    AnswerMasks* const place = masks.get();
    place->keep(std::move(masks));
    const std::size_t pushed = pushed_.load(std::memory_order_relaxed);
    orders_[pushed % orders_.size()].store(place, std::memory_order_relaxed);
    pushed_.store(pushed + 1, std::memory_order_release);
    signal_.fetch_add(1);
    signal_.notify_one();
}

// Null: there is none.
AnswerMasks* MaskThreads::pop() {
    std::size_t popped = popped_.load();
    while (popped != pushed_.load(std::memory_order_acquire)) {
        AnswerMasks* const order = orders_[popped % orders_.size()].load(std::memory_order_relaxed);
        if (popped_.compare_exchange_weak(popped, popped + 1)) return order;
    }
    return nullptr;
}

void MaskThreads::run() {
    for (;;) {
        const std::uint32_t seen = signal_.load();
        if (stopping_.load()) return;
        AnswerMasks* const order = pop();
        if (order == nullptr) {
            signal_.wait(seen);
            continue;
        }
        // The engine thread may let go of it as soon as it is fulfilled.
        const std::shared_ptr<AnswerMasks> kept = order->release();
        kept->fulfil();
        fulfilled_();
    }
}

}  // namespace percheron::engine
