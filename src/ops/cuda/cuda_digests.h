// Where a step's digests of logits lie, on the device and for the host.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/device_memory.h"
#include "ops/cuda/launch.h"
#include "ops/logit_digest.h"

namespace percheron::ops::cuda {

class CudaDigests final : public LogitDigests {
  public:
    CudaDigests(int device, cudaStream_t stream) : device_(device), stream_(stream) {}

    // Room for the digests of `rows` rows.  Errors: out_of_memory.
    Status reserve(std::size_t rows, std::size_t vocabulary);
    static Bytes bytes(std::size_t rows, std::size_t vocabulary);

    // Of [rows][vocabulary] logits in device memory, by requests there; ready when the stream has
    // passed.
    Status launch(const float* logits, std::size_t rows, const DigestRequest* requests,
                  const LaunchContext& context);

    Status exclude(std::span<const TokenId> ids, std::size_t vocabulary) override;
    std::span<const LogitDigest> digests() const override {
        return {reinterpret_cast<const LogitDigest*>(host_.data()), rows_};
    }
    Status fetch(std::size_t row, float* values) override;
    // Replayed steps have no launch().
    void note_rows(const float* logits, std::size_t rows) {
        logits_ = logits;
        rows_ = rows;
    }

  private:
    int device_;
    cudaStream_t stream_;
    std::size_t vocabulary_ = 0;
    DeviceMemory excluded_;  // a bit a token
    DeviceMemory device_digests_;
    PinnedMemory host_;
    const float* logits_ = nullptr;  // of the latest step
    std::size_t rows_ = 0;
};

}  // namespace percheron::ops::cuda
