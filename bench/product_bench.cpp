// The products of each weight format at a few row counts, in bytes of weights a second beside the
// read bandwidth that the same threads reach on the same memory, and in multiply-adds a second
// beside the rate of a loop of fused multiply-adds in registers.
//
//   product_bench [--n N] [--k K] [--megabytes SIZE] [--threads N] [--simd LEVEL]
//
// Up to 16 rows are of the decode class, more of the prefill class.
//
// Several matrices of n x k are read in turn, SIZE megabytes together, so that the caches that
// serve a real step serve this one.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "bench/measure.h"
#include "core/thread_pool.h"
#include "ops/cpu/cpu_primitives.h"
#include "ops/cpu/levels.h"

namespace percheron::bench {
namespace {

struct Options {
    std::size_t n = 2048, k = 4096, megabytes = 512, threads = 0;
    std::string simd;
};

Options parse(int count, char** values) {
    Options options;
    for (int i = 1; i + 1 < count; i += 2) {
        const std::string name = values[i];
        if (name == "--n")
            options.n = std::stoul(values[i + 1]);
        else if (name == "--k")
            options.k = std::stoul(values[i + 1]);
        else if (name == "--megabytes")
            options.megabytes = std::stoul(values[i + 1]);
        else if (name == "--threads")
            options.threads = std::stoul(values[i + 1]);
        else if (name == "--simd")
            options.simd = values[i + 1];
        else {
            std::fprintf(stderr, "product_bench: unknown option %s\n", name.c_str());
            std::exit(2);
        }
    }
    return options;
}

// Reads all of it and keeps one bit, with as many loads in flight as the processor has.
std::uint64_t read_all(const std::uint64_t* data, std::size_t words) {
    using Eight = std::uint64_t __attribute__((vector_size(64), aligned(8)));
    Eight sums[4] = {};
    for (std::size_t i = 0; i + 32 <= words; i += 32)
        for (std::size_t j = 0; j < 4; ++j)
            sums[j] ^= *reinterpret_cast<const Eight*>(data + i + 8 * j);
    const Eight all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
    std::uint64_t result = 0;
    for (int i = 0; i < 8; ++i)
        result ^= all[i];
    return result;
}

ops::WeightMatrix matrix_at(ops::WeightFormat format, std::size_t n, std::size_t k,
                            const std::uint8_t* at) {
    ops::WeightMatrix matrix;
    matrix.format = format;
    matrix.n = n;
    matrix.k = k;
    matrix.data = at;
    // Scales behind the values, as far as the format has any.
    const std::size_t values = n * k;
    matrix.scales = at + (format == ops::WeightFormat::w4a16 ? values / 2 : values);
    return matrix;
}

int run(const Options& options) {
    const auto kernels = ops::cpu::choose_level(options.simd);
    if (!kernels.ok()) {
        std::fprintf(stderr, "product_bench: %s\n", kernels.error().message().c_str());
        return 2;
    }
    Clock::exclusive = options.threads == 1;
    ThreadPool pool({.threads = options.threads});
    ops::cpu::CpuPrimitives ops(*kernels.value(), pool);
    const std::size_t bytes = options.megabytes << 20;
    std::vector<std::uint64_t> memory(bytes / 8);
    std::uint64_t state = 1;
    for (std::uint64_t& word : memory) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        // Every small float of it lies between 2^-32 and 2: no NaN, nothing that overflows, no
        // subnormal sums that some processors take long for.
        word = (state & 0xbfffbfffbfffbfffu) | 0x3000300030003000u;
    }

    std::uint64_t sink = 0;
    const double read_seconds = least_seconds(15, [&] {
        std::vector<std::uint64_t> results(pool.threads() * 16);
        constexpr std::size_t blocks = 64;
        pool.parallel_for(blocks, [&](std::size_t block, std::size_t thread) {
            const std::size_t each = memory.size() / blocks;
            results[thread * 16] ^= read_all(memory.data() + block * each, each);
        });
        for (std::uint64_t result : results)
            sink ^= result;
    });
    const double ceiling = static_cast<double>(bytes) / read_seconds;
    std::printf("%s, %zu threads, %zu x %zu, %zu MiB; reading: %.1f GB/s (%d)\n",
                std::string(kernels.value()->level).c_str(), pool.threads(), options.n, options.k,
                options.megabytes, ceiling / 1e9, static_cast<int>(sink & 1));

    const auto* const base = reinterpret_cast<const std::uint8_t*>(memory.data());
    for (const ops::WeightFormat format :
         {ops::WeightFormat::bf16, ops::WeightFormat::fp8_block, ops::WeightFormat::w4a16}) {
        const ops::WeightMatrix first = matrix_at(format, options.n, options.k, base);
        const std::size_t stored = ops::stored_bytes(first);
        const std::size_t count = std::max<std::size_t>(1, bytes / (stored + 4096));
        for (const std::size_t rows : {1, 2, 4, 8, 16, 64, 512}) {
            std::vector<float> x(rows * options.k, 0.5f), y(rows * options.n);
            // Many rows are bound by arithmetic: a few matrices are enough.
            const std::size_t matrices = rows > 16 ? std::min<std::size_t>(count, 2) : count;
            const double seconds = least_seconds(rows > 16 ? 5 : 15, [&] {
                for (std::size_t i = 0; i < matrices; ++i) {
                    const ops::Linear op{
                        matrix_at(format, options.n, options.k,
                                  base + i * (stored + 4095) / 4096 * 4096),
                        Rows<const float>(x.data(), rows, options.k),
                        Rows<float>(y.data(), rows, options.n), ops::Arithmetic::standard,
                        rows > 16 ? ops::NumericClass::prefill : ops::NumericClass::decode};
                    ops.linear(std::span(&op, 1));
                }
            });
            const double rate = static_cast<double>(stored * matrices) / seconds;
            const double macs =
                static_cast<double>(options.n * options.k * rows * matrices) / seconds;
            std::printf(
                "%-9s rows %3zu: %6.1f GB/s of weights, %5.1f %% of reading, %6.1f "
                "GMAC/s\n",
                std::string(ops::name_of(format)).c_str(), rows, rate / 1e9, 100 * rate / ceiling,
                macs / 1e9);
        }
    }
    return 0;
}

}  // namespace
}  // namespace percheron::bench

int main(int count, char** values) {
    return percheron::bench::run(percheron::bench::parse(count, values));
}
