// What this machine can do at most, measured: the ceilings that other figures are shares of.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "percheron/types.h"

#include "core/status.h"

namespace percheron::tools {

struct ReadRate {
    std::size_t threads = 0;
    double bytes_per_second = 0;  // from memory, beyond every cache
};

struct GemmRate {
    std::string by;  // "OpenBLAS sgemm", ...
    double operations_per_second = 0;
};

struct MachineFigures {
    std::size_t processors = 0;
    std::string simd;                      // the level the CPU backend uses
    std::vector<std::string> simd_levels;  // those it could
    std::vector<Bytes> caches;             // first level of data to last
    std::vector<ReadRate> reads;           // by threads: 1, 2, 4, ... all
    std::vector<GemmRate> gemms;           // of those found, all processors
    double disk_bytes_per_second = 0;      // 0: not measured

    double read_ceiling() const;
    double gemm_ceiling() const;
};

struct MachineBenchOptions {
    std::size_t threads = 0;  // 0: all
    Bytes buffer = 0;         // read over and over; 0: eight times the last cache, 256 MiB at least
    std::size_t runs = 5;     // of which the best counts
    bool products = true;     // gemms are measured too
    std::filesystem::path file;  // read past the page cache; empty: no disk figure
};

// OpenBLAS and oneDNN are used where they are installed.
// Errors: out_of_memory; io (the file).
Result<MachineFigures> measure_machine(const MachineBenchOptions& options);

}  // namespace percheron::tools
