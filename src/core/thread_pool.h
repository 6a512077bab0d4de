// A pool for regions of a few microseconds: the caller and `threads - 1` workers share the tasks of
// one region at a time.
//
// Which thread runs a task is not fixed (each first takes its own share, then helps the others), so
// results must not depend on it: split outputs into tasks by shape, never by the number of threads.
//
// Workers spin for `spin` after their last region and then park; a parked worker costs nothing, and
// a region that starts while a worker is parked or not scheduled is finished by the others, so two
// busy processes on one machine slow each other down but never wait for each other.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace percheron {

// How many threads this process may run at once (its affinity mask).
std::size_t available_threads();

struct ThreadPoolOptions {
    std::size_t threads = 0;  // the caller's included; 0: available_threads()
    std::chrono::microseconds spin{200};
    // Ties worker i to the i-th processor of the affinity mask.  The caller is never tied.
    bool pin = false;
};

class ThreadPool {
  public:
    explicit ThreadPool(const ThreadPoolOptions& options = {});
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    std::size_t threads() const { return threads_; }

    // Calls function(task, thread) once for every task in [0, tasks) and returns when all are done;
    // thread < threads() names the running thread's scratch.  No allocation, no lock.  One caller
    // at a time; not from inside a task.  `function` must not throw.
    template <class Function>
    void parallel_for(std::size_t tasks, Function&& function) {
        using Plain = std::remove_reference_t<Function>;
        if (tasks == 0) return;
        if (tasks == 1 || threads() == 1) {
            for (std::size_t task = 0; task < tasks; ++task)
                function(task, std::size_t{0});
            return;
        }
        run(static_cast<std::uint32_t>(tasks), const_cast<std::remove_const_t<Plain>*>(&function),
            [](void* context, std::size_t task, std::size_t thread) {
                (*static_cast<Plain*>(context))(task, thread);
            });
    }

  private:
    using Task = void (*)(void* context, std::size_t task, std::size_t thread);

    void run(std::uint32_t tasks, void* context, Task task);
    void work(std::size_t thread);
    void take_tasks(std::uint32_t region, std::size_t thread);
    void finish(std::uint32_t count);

    // Padding keeps what the caller writes, what workers write and what both read apart.
    static constexpr std::size_t line = 128;

    // The running region.  Written before its shares are opened, read only by whoever holds an
    // unfinished task of it.
    alignas(line) Task task_ = nullptr;
    void* context_ = nullptr;
    std::uint32_t tasks_ = 0;

    alignas(line) std::atomic<std::uint32_t> region_{0};  // the number of the latest region
    std::atomic<std::uint32_t> parked_{0};
    std::atomic<bool> stop_{false};

    alignas(line) std::atomic<std::uint32_t> finished_{0};
    std::atomic<bool> caller_waits_{false};

    // One a thread: the region's number, the next task and the end of its share in one word.
    struct Share {
        alignas(line) std::atomic<std::uint64_t> value{0};
    };
    alignas(line) std::unique_ptr<Share[]> shares_;
    std::size_t threads_ = 1;
    std::vector<std::thread> workers_;
    std::uint32_t spin_rounds_ = 0;
};

}  // namespace percheron
