// Loads a checkpoint's trunk onto the device and prints the rate beside the disk's: the same files
// read by as many threads in blocks of the same size, past the page cache, before every loading.
//
//   load_bench FOLDER [ROUNDS]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>

#include "checkpoint/checkpoint.h"
#include "core/direct_file.h"
#include "model/network.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/weight_ring.h"

using namespace percheron;

namespace {

constexpr std::size_t readers = ops::cuda::WeightRing::readers;
constexpr Bytes block = Bytes{8} << 20;

[[noreturn]] void fail(const Error& error) {
    std::fprintf(stderr, "load_bench: %s\n", error.message().c_str());
    std::exit(1);
}
template <class T>
T must(Result<T> result) {
    if (!result.ok()) fail(result.error());
    return std::move(result).value();
}
void must(const Status& status) {
    if (!status.ok()) fail(status.error());
}

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Bytes a second of all files, in blocks that the readers take in order, to memory of the kind that
// loading reads to.
double disk_rate(const checkpoint::ShardSet& shards) {
    struct Piece {
        std::size_t file;
        Bytes offset, bytes;
    };
    std::vector<DirectFile> files;
    std::vector<Piece> pieces;
    Bytes all = 0;
    for (const checkpoint::SafetensorsFile& file : shards.files()) {
        const Bytes size = file.mapping().bytes().size();
        for (Bytes at = 0; at < size; at += block)
            pieces.push_back({files.size(), at, std::min(block, size - at)});
        files.push_back(must(DirectFile::open(file.path())));
        if (!files.back().past_the_cache())
            std::printf("%s: no reads past the page cache here\n", file.path().c_str());
        all += size;
    }
    const auto memory =
        must(ops::cuda::PinnedMemory::allocate(readers * block, "measuring the disk"));
    std::atomic<std::size_t> next = 0;
    std::vector<std::thread> threads;
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t reader = 0; reader < readers; ++reader) {
        threads.emplace_back([&, reader] {
            for (std::size_t i = next++; i < pieces.size(); i = next++)
                must(files[pieces[i].file].read_blocks(
                    pieces[i].offset, {memory.data() + reader * block, block}, pieces[i].bytes));
        });
    }
    for (std::thread& thread : threads)
        thread.join();
    return static_cast<double>(all) / seconds_since(start);
}

// What the page cache holds of the files.
Bytes cached(const checkpoint::ShardSet& shards) {
    Bytes all = 0;
    for (const checkpoint::SafetensorsFile& file : shards.files()) {
        const auto bytes = file.mapping().bytes();
        std::vector<unsigned char> pages((bytes.size() + 4095) / 4096);
        if (::mincore(const_cast<std::byte*>(bytes.data()), bytes.size(), pages.data()) != 0)
            return 0;
        all += 4096 * static_cast<Bytes>(std::count_if(
                          pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
    }
    return all;
}

struct Loaded {
    double seconds = 0;
    Bytes bytes = 0, cached = 0;
};

Loaded load(const std::filesystem::path& folder) {
    const auto start = std::chrono::steady_clock::now();
    const auto files = must(checkpoint::Checkpoint::open(folder));
    const auto backend = must(ops::make_cuda_backend({}));
    auto* const reads = must(files->read_past_the_cache({}));
    must(backend->read_from(*reads));
    model::NetworkOptions options;
    options.max_logit_rows = 1;
    const auto network = must(model::Network::load(files->config(), *files, *backend, options));
    must(backend->finish_reading());
    reads->drop_from_cache();
    return {seconds_since(start), reads->figures().bytes, cached(files->shards())};
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "load_bench FOLDER [ROUNDS]\n");
        return 2;
    }
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 3;
    std::vector<Error> problems;
    const auto shards = checkpoint::ShardSet::scan(argv[1], problems);
    if (!problems.empty()) fail(problems.front());
    std::printf("%zu readers, blocks of %.0f MiB, staged at most 2 x %.0f MiB\n", readers,
                static_cast<double>(block) / (1 << 20),
                static_cast<double>(readers * ops::cuda::WeightRing::place_bytes) / (1 << 20));
    must(ops::make_cuda_backend({}));  // starts the driver
    std::vector<double> shares;
    for (int round = 0; round < rounds; ++round) {
        const double before = disk_rate(shards);
        const Loaded loaded = load(argv[1]);
        const double after = disk_rate(shards);
        const double rate = static_cast<double>(loaded.bytes) / loaded.seconds;
        shares.push_back(rate / ((before + after) / 2));
        std::printf(
            "loaded %.2f GB in %.2f s, %.2f GB/s; disk %.2f and %.2f GB/s: %.1f %%; "
            "%.1f MB in the page cache\n",
            static_cast<double>(loaded.bytes) / 1e9, loaded.seconds, rate / 1e9, before / 1e9,
            after / 1e9, 100 * shares.back(), static_cast<double>(loaded.cached) / 1e6);
        std::fflush(stdout);
    }
    std::sort(shares.begin(), shares.end());
    std::printf("median %.1f %% of the disk's rate\n", 100 * shares[shares.size() / 2]);
    return 0;
}
