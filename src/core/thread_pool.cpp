#include "core/thread_pool.h"

#include <algorithm>
#include <utility>

#include <pthread.h>
#include <sched.h>

namespace percheron {
namespace {

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
}

// A share of a region: the region's number above, the next task and the end below.  The number
// makes a claim by somebody who missed the end of an earlier region fail.
constexpr std::uint32_t task_bits = 16;
constexpr std::uint32_t most_tasks = (1u << task_bits) - 1;

constexpr std::uint64_t share_of(std::uint32_t region, std::uint32_t next, std::uint32_t end) {
    return (std::uint64_t{region} << 32) | (std::uint64_t{next} << task_bits) | end;
}

std::vector<int> allowed_processors() {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::vector<int> processors;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        for (int processor = 0; processor < CPU_SETSIZE; ++processor)
            if (CPU_ISSET(processor, &set)) processors.push_back(processor);
    return processors;
}

void pin_to(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    // Best effort: an unpinned worker is slower, not wrong.
    (void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

// How many relax() calls fit into `time`: a pause takes from 10 to 140 cycles, by processor.
std::uint32_t rounds_in(std::chrono::microseconds time) {
    constexpr std::uint32_t probe = 200;
    const auto start = std::chrono::steady_clock::now();
    for (std::uint32_t i = 0; i < probe; ++i)
        relax();
    const auto took = std::chrono::steady_clock::now() - start;
    const double each =
        std::max(1.0, std::chrono::duration<double, std::nano>(took).count()) / probe;
    const double rounds = std::chrono::duration<double, std::nano>(time).count() / each;
    return static_cast<std::uint32_t>(std::clamp(rounds, 1.0, 1e8));
}

}  // namespace

std::size_t available_threads() {
    return std::max<std::size_t>(1, allowed_processors().size());
}

ThreadPool::ThreadPool(const ThreadPoolOptions& options) {
    const std::size_t threads = options.threads != 0 ? options.threads : available_threads();
    spin_rounds_ = rounds_in(options.spin);
    threads_ = std::min<std::size_t>(threads, 1024);
    shares_ = std::make_unique<Share[]>(threads_);
    const std::vector<int> processors = allowed_processors();
    for (std::size_t thread = 1; thread < threads_; ++thread) {
        const int processor =
            options.pin && !processors.empty() ? processors[thread % processors.size()] : -1;
        workers_.emplace_back([this, thread, processor] {
            if (processor >= 0) pin_to(processor);
            work(thread);
        });
    }
}

ThreadPool::~ThreadPool() {
    stop_.store(true);
    region_.fetch_add(1);
    region_.notify_all();
    for (std::thread& worker : workers_)
        worker.join();
}

void ThreadPool::run(std::uint32_t tasks, void* context, Task task) {
    // More tasks than a share can count: in several regions.
    while (tasks > most_tasks) {
        struct Part {
            void* context;
            Task task;
            std::uint32_t first;
        } part{context, task, tasks - most_tasks};
        run(most_tasks, &part, [](void* inner, std::size_t index, std::size_t thread) {
            const Part& of = *static_cast<Part*>(inner);
            of.task(of.context, of.first + index, thread);
        });
        tasks -= most_tasks;
    }

    task_ = task;
    context_ = context;
    tasks_ = tasks;
    finished_.store(0, std::memory_order_relaxed);
    const std::uint32_t region = region_.load(std::memory_order_relaxed) + 1;
    const std::size_t count = threads_;
    for (std::size_t thread = 0; thread < count; ++thread) {
        const auto first = static_cast<std::uint32_t>(tasks * thread / count);
        const auto end = static_cast<std::uint32_t>(tasks * (thread + 1) / count);
        shares_[thread].value.store(share_of(region, first, end), std::memory_order_release);
    }
    // Ordered against parked_: either this thread sees the worker parked, or the worker sees the
    // region before it sleeps.
    region_.store(region, std::memory_order_seq_cst);
    if (parked_.load(std::memory_order_seq_cst) != 0) region_.notify_all();

    take_tasks(region, 0);

    for (std::uint32_t round = 0; round < spin_rounds_; ++round) {
        if (finished_.load(std::memory_order_acquire) == tasks) return;
        relax();
    }
    caller_waits_.store(true, std::memory_order_seq_cst);
    for (;;) {
        const std::uint32_t finished = finished_.load(std::memory_order_seq_cst);
        if (finished == tasks) break;
        finished_.wait(finished);
    }
    caller_waits_.store(false, std::memory_order_relaxed);
}

void ThreadPool::take_tasks(std::uint32_t region, std::size_t thread) {
    const std::size_t count = threads_;
    std::uint32_t done = 0;
    for (std::size_t step = 0; step < count; ++step) {
        const std::size_t owner = thread + step < count ? thread + step : thread + step - count;
        std::atomic<std::uint64_t>& share = shares_[owner].value;
        std::uint64_t seen = share.load(std::memory_order_acquire);
        for (;;) {
            const auto next = static_cast<std::uint32_t>((seen >> task_bits) & most_tasks);
            const auto end = static_cast<std::uint32_t>(seen & most_tasks);
            if (static_cast<std::uint32_t>(seen >> 32) != region || next >= end) break;
            if (!share.compare_exchange_weak(seen, share_of(region, next + 1, end),
                                             std::memory_order_acq_rel, std::memory_order_acquire))
                continue;
            task_(context_, next, thread);
            ++done;
            seen = share.load(std::memory_order_acquire);
        }
        // Once a share, not once a task: every thread writes this line.
        if (done != 0) finish(std::exchange(done, 0));
    }
}

void ThreadPool::finish(std::uint32_t count) {
    const std::uint32_t total = tasks_;
    const std::uint32_t before = finished_.fetch_add(count, std::memory_order_seq_cst);
    if (before + count == total && caller_waits_.load(std::memory_order_seq_cst))
        finished_.notify_all();
}

void ThreadPool::work(std::size_t thread) {
    std::uint32_t seen = 0;
    for (;;) {
        std::uint32_t region = region_.load(std::memory_order_acquire);
        for (std::uint32_t round = 0; region == seen && round < spin_rounds_; ++round) {
            relax();
            region = region_.load(std::memory_order_acquire);
        }
        if (region == seen) {
            parked_.fetch_add(1, std::memory_order_seq_cst);
            region_.wait(seen, std::memory_order_seq_cst);
            parked_.fetch_sub(1, std::memory_order_seq_cst);
            continue;
        }
        seen = region;
        if (stop_.load(std::memory_order_acquire)) return;
        take_tasks(region, thread);
    }
}

}  // namespace percheron
