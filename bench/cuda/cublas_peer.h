// cuBLAS as a peer in the same process, found at run time: nothing here is linked to it.
#pragma once

#include <string>

#include <cublas_v2.h>
#include <dlfcn.h>

#include "cuda/measure.h"

namespace percheron::bench {

class CublasPeer {
  public:
    CublasPeer() {
        library_ = dlopen("libcublas.so.13", RTLD_NOW);
        if (library_ == nullptr) return;
        load(create_, "cublasCreate_v2");
        load(set_stream_, "cublasSetStream_v2");
        load(multiply_, "cublasGemmStridedBatchedEx");
        if (multiply_ == nullptr || create_(&handle_) != CUBLAS_STATUS_SUCCESS) handle_ = nullptr;
    }
    bool there() const { return handle_ != nullptr; }

    // y[b] = x[b] w[b]^T for every of `count` matrices: x [rows, k], w [n, k], y [rows, n], bf16,
    // sums in fp32, each one after the other in memory.
    void product(cudaStream_t stream, const void* x, const void* w, void* y, int rows, int n, int k,
                 int count) const {
        const float one = 1.0f, zero = 0.0f;
        set_stream_(handle_, stream);
        const cublasStatus_t status = multiply_(
            handle_, CUBLAS_OP_T, CUBLAS_OP_N, n, rows, k, &one, w, CUDA_R_16BF, k,
            static_cast<long long>(n) * k, x, CUDA_R_16BF, k, static_cast<long long>(rows) * k,
            &zero, y, CUDA_R_16BF, n, static_cast<long long>(rows) * n, count, CUBLAS_COMPUTE_32F,
            CUBLAS_GEMM_DEFAULT);
        if (status != CUBLAS_STATUS_SUCCESS) {
            std::printf("cuBLAS failed with code %d\n", static_cast<int>(status));
            std::exit(1);
        }
    }

  private:
    template <class Function>
    void load(Function& function, const char* name) {
        function = reinterpret_cast<Function>(dlsym(library_, name));
    }

    void* library_ = nullptr;
    cublasHandle_t handle_ = nullptr;
    cublasStatus_t (*create_)(cublasHandle_t*) = nullptr;
    cublasStatus_t (*set_stream_)(cublasHandle_t, cudaStream_t) = nullptr;
    cublasStatus_t (*multiply_)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                const void*, const void*, cudaDataType, int, long long, const void*,
                                cudaDataType, int, long long, const void*, void*, cudaDataType, int,
                                long long, int, cublasComputeType_t, cublasGemmAlgo_t) = nullptr;
};

}  // namespace percheron::bench
