#include "tools/machine_bench.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include "core/thread_pool.h"
#include "ops/cpu/cpu_primitives.h"
#include "ops/cpu/levels.h"

namespace percheron::tools {
namespace {

using Clock = std::chrono::steady_clock;

// Least seconds of `runs` calls after one that does not count.
template <class Body>
double least_seconds(std::size_t runs, Body&& body) {
    body();
    double least = 1e300;
    for (std::size_t run = 0; run < runs; ++run) {
        const auto start = Clock::now();
        body();
        least = std::min(least, std::chrono::duration<double>(Clock::now() - start).count());
    }
    return least;
}

std::vector<Bytes> cache_sizes() {
    std::vector<Bytes> sizes;
    for (const int name : {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE}) {
        const long size = ::sysconf(name);
        if (size > 0) sizes.push_back(static_cast<Bytes>(size));
    }
    return sizes;
}

double read_rate(const ops::cpu::Kernels& kernels, std::size_t threads, const float* data,
                 std::size_t floats, std::size_t runs) {
    ThreadPool pool({.threads = threads});
    constexpr std::size_t block = 1 << 16;
    const std::size_t blocks = floats / block;
    std::vector<float> sums(blocks);
    const double seconds = least_seconds(runs, [&] {
        pool.parallel_for(blocks, [&](std::size_t i, std::size_t) {
            sums[i] = kernels.sum_of_squares(data + i * block, block);
        });
    });
    return static_cast<double>(blocks * block * sizeof(float)) / seconds;
}

// Square products of this size: large enough for every library to reach its rate.
constexpr int gemm_size = 1536;
constexpr double gemm_operations = 2.0 * gemm_size * gemm_size * gemm_size;

struct Matrices {
    std::vector<float> a = std::vector<float>(gemm_size * gemm_size, 0.5f);
    std::vector<float> b = std::vector<float>(gemm_size * gemm_size, 0.25f);
    std::vector<float> c = std::vector<float>(gemm_size * gemm_size);
};

void measure_openblas(Matrices& m, std::size_t threads, std::size_t runs,
                      std::vector<GemmRate>& rates) {
    void* const library = ::dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*,
                           int, float, float*, int);
    using Threads = void (*)(int);
    const auto sgemm = reinterpret_cast<Sgemm>(::dlsym(library, "cblas_sgemm"));
    const auto set_threads =
        reinterpret_cast<Threads>(::dlsym(library, "openblas_set_num_threads"));
    if (sgemm == nullptr) return;
    if (set_threads != nullptr) set_threads(static_cast<int>(threads));
    constexpr int row_major = 101, no_transpose = 111, n = gemm_size;
    const double seconds = least_seconds(runs, [&] {
        sgemm(row_major, no_transpose, no_transpose, n, n, n, 1.0f, m.a.data(), n, m.b.data(), n,
              0.0f, m.c.data(), n);
    });
    rates.push_back({"OpenBLAS sgemm", gemm_operations / seconds});
}

// oneDNN's plain C entries; the bf16 one takes bf16 inputs and adds up in fp32.
template <class Input>
void measure_onednn(void* library, const char* entry, const char* name, const Input* a,
                    const Input* b, float* c, std::size_t runs, std::vector<GemmRate>& rates) {
    using Gemm = int (*)(char, char, std::int64_t, std::int64_t, std::int64_t, float, const Input*,
                         std::int64_t, const Input*, std::int64_t, float, float*, std::int64_t);
    const auto gemm = reinterpret_cast<Gemm>(::dlsym(library, entry));
    if (gemm == nullptr) return;
    constexpr std::int64_t n = gemm_size;
    int status = 0;
    const double seconds = least_seconds(
        runs, [&] { status = gemm('N', 'N', n, n, n, 1.0f, a, n, b, n, 0.0f, c, n); });
    if (status == 0) rates.push_back({name, gemm_operations / seconds});
}

void measure_onednn(Matrices& m, std::size_t runs, std::vector<GemmRate>& rates) {
    void* library = nullptr;
    for (const char* name : {"libdnnl.so.3", "libdnnl.so.2"}) {
        if (library == nullptr) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) return;
    measure_onednn(library, "dnnl_sgemm", "oneDNN sgemm", m.a.data(), m.b.data(), m.c.data(), runs,
                   rates);
    const std::vector<BFloat16> a(m.a.begin(), m.a.end()), b(m.b.begin(), m.b.end());
    measure_onednn(library, "dnnl_gemm_bf16bf16f32", "oneDNN bf16", a.data(), b.data(), m.c.data(),
                   runs, rates);
}

// Our own prefill product, BF16 weights from memory, inputs rounded to BF16.
void measure_own(const ops::cpu::Kernels& kernels, Matrices& m, std::size_t threads,
                 std::size_t runs, std::vector<GemmRate>& rates) {
    ThreadPool pool({.threads = threads});
    ops::cpu::CpuPrimitives primitives(kernels, pool);
    std::vector<BFloat16> weights(m.b.begin(), m.b.end());
    const ops::WeightMatrix weight{ops::WeightFormat::bf16, gemm_size, gemm_size,
                                   weights.data(),          nullptr,   1.0f};
    const ops::Linear product[] = {{weight, Rows<const float>(m.a.data(), gemm_size, gemm_size),
                                    Rows<float>(m.c.data(), gemm_size, gemm_size),
                                    ops::Arithmetic::standard, ops::NumericClass::prefill}};
    const double seconds = least_seconds(runs, [&] { primitives.linear(product); });
    rates.push_back({"percheron prefill product, bf16 weights", gemm_operations / seconds});
}

Result<double> disk_rate(const std::filesystem::path& file) {
    const auto failed = [&](const char* what) {
        return Error(ErrorCode::io, file.string() + ": " + what + ": " + std::strerror(errno));
    };
    int descriptor = ::open(file.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (descriptor < 0) descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return failed("cannot be opened");
    ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    constexpr std::size_t block = std::size_t{8} << 20;
    const std::unique_ptr<void, decltype(&std::free)> buffer(std::aligned_alloc(4096, block),
                                                             &std::free);
    Bytes total = 0;
    const auto start = Clock::now();
    for (;;) {
        const ssize_t count = ::read(descriptor, buffer.get(), block);
        if (count < 0) {
            const Error error = failed("cannot be read");
            ::close(descriptor);
            return error;
        }
        if (count == 0) break;
        total += static_cast<Bytes>(count);
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    ::close(descriptor);
    return static_cast<double>(total) / seconds;
}

}  // namespace

double MachineFigures::read_ceiling() const {
    double best = 0;
    for (const ReadRate& rate : reads) {
        best = std::max(best, rate.bytes_per_second);
    }
    return best;
}

double MachineFigures::gemm_ceiling() const {
    double best = 0;
    for (const GemmRate& rate : gemms) {
        best = std::max(best, rate.operations_per_second);
    }
    return best;
}

Result<MachineFigures> measure_machine(const MachineBenchOptions& options) {
    MachineFigures figures;
    figures.processors = options.threads == 0 ? available_threads() : options.threads;
    figures.caches = cache_sizes();
    PERCHERON_ASSIGN(const ops::cpu::Kernels* const kernels, ops::cpu::choose_level(""));
    figures.simd = kernels->level;
    for (const std::string_view level : ops::cpu::available_levels()) {
        figures.simd_levels.emplace_back(level);
    }
    const Bytes last = figures.caches.empty() ? 0 : figures.caches.back();
    const Bytes buffer =
        options.buffer != 0 ? options.buffer : std::max<Bytes>(8 * last, Bytes{256} << 20);
    const std::size_t floats = buffer / sizeof(float);
    try {
        const std::vector<float> data(floats, 1.0f);
        for (std::size_t threads = 1;; threads = std::min(2 * threads, figures.processors)) {
            figures.reads.push_back(
                {threads, read_rate(*kernels, threads, data.data(), floats, options.runs)});
            if (threads == figures.processors) break;
        }
        if (options.products) {
            Matrices matrices;
            measure_openblas(matrices, figures.processors, options.runs, figures.gemms);
            measure_onednn(matrices, options.runs, figures.gemms);
            measure_own(*kernels, matrices, figures.processors, options.runs, figures.gemms);
        }
    } catch (const std::bad_alloc&) {
        return Error(ErrorCode::out_of_memory,
                     "No memory for a buffer of " + std::to_string(buffer) + " bytes to read.");
    }
    if (!options.file.empty()) {
        PERCHERON_ASSIGN(figures.disk_bytes_per_second, disk_rate(options.file));
    }
    return figures;
}

}  // namespace percheron::tools
