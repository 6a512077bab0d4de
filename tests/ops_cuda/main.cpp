// kernel_test [FILTER...]: runs the cases whose name contains one of the filters, or all.  Exit
// code 0 only if at least one case ran and every check of every case held.
#include <chrono>
#include <cstdio>
#include <cstring>

#include <cuda_runtime.h>

#include "ops_cuda/check.h"

namespace percheron::check {

namespace {
int checks = 0, failures = 0;
}

std::vector<Case>& cases() {
    static std::vector<Case> all;
    return all;
}

void fail(const char* file, int line, const std::string& what) {
    if (++failures <= 8) std::printf("    %s:%d: %s\n", file, line, what.c_str());
}

void count_check() {
    ++checks;
}

}  // namespace percheron::check

int main(int argc, char** argv) {
    using namespace percheron::check;
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
        std::printf("no CUDA device: the kernel tests need one\n");
        return 1;
    }
    std::printf("device %s, %d multiprocessors\n", properties.name, properties.multiProcessorCount);
    int ran = 0, failed = 0;
    for (const Case& one : cases()) {
        bool wanted = argc == 1;
        for (int i = 1; i < argc; ++i)
            wanted |= std::strstr(one.name, argv[i]) != nullptr;
        if (!wanted) continue;
        checks = failures = 0;
        const auto start = std::chrono::steady_clock::now();
        one.body();
        const cudaError_t error = cudaDeviceSynchronize();
        if (error != cudaSuccess) fail(one.name, 0, cudaGetErrorString(error));
        if (checks == 0) fail(one.name, 0, "the case checked nothing");
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        std::printf("%-6s %-44s %7d checks %6.2f s\n", failures == 0 ? "ok" : "FAILED", one.name,
                    checks, seconds);
        ++ran;
        failed += failures != 0;
        if (error != cudaSuccess) break;  // the context is gone
    }
    std::printf("%d cases, %d failed\n", ran, failed);
    return ran > 0 && failed == 0 ? 0 : 1;
}
