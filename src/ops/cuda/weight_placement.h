// Bringing weights to the device: uploaded as stored, packed there for the products
// (packed_matrix.h), piece by piece: from host memory through one staging buffer, from files
// through a ring of them (weight_ring.h).
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <cuda_runtime.h>

#include "core/status.h"
#include "ops/backend.h"
#include "ops/cuda/device_memory.h"
#include "ops/cuda/packed_matrix.h"
#include "ops/cuda/weight_ring.h"

namespace percheron::ops::cuda {

// A placed product matrix as the kernels take it: WeightMatrix::data is the packed memory.
PackedMatrix packed_view(const WeightMatrix& placed);

// kv_b after placement: WeightMatrix::data holds both parts, one after the other.
//   keys    [H * latent, query_key_dim]: W_uk of each head, transposed
//   values  [H * value_dim, latent]
struct LatentHeadMatrices {
    PackedMatrix keys, values;
};
LatentHeadMatrices latent_heads_view(const WeightMatrix& placed, const NetworkShape& shape);

// A layer's experts in device memory, one entry an expert.
struct ExpertTable {
    WeightFormat gate_format = WeightFormat::bf16, down_format = WeightFormat::bf16;
    const std::uint8_t* const* gates = nullptr;
    const std::uint8_t* const* ups = nullptr;
    const std::uint8_t* const* downs = nullptr;
    const float* gate_scales = nullptr;
    const float* up_scales = nullptr;
    const float* down_scales = nullptr;
    std::int32_t* touched = nullptr;  // experts that the latest step's rows chose
};

class WeightPlacement {
  public:
    explicit WeightPlacement(cudaStream_t stream) : stream_(stream) {}

    // Backend::read_from() and finish_reading().
    Status read_from(int device, WeightFiles& files);
    Status finish_reading();

    // `stored` may be host or device memory.  fp32 matrices are taken if every value is a bf16.
    // Errors: unsupported (format), out_of_memory, internal; the matrix is named.
    Result<WeightMatrix> pack(const WeightMatrix& stored, std::string_view name);
    Result<WeightMatrix> keep_rows(const WeightMatrix& stored, std::string_view name);
    Result<WeightMatrix> latent_heads(const WeightMatrix& stored, const NetworkShape& shape,
                                      std::string_view name);
    Result<const float*> vector(std::span<const float> values, std::string_view name);
    // The table itself is host memory and lives as long as this object.
    Result<const ExpertTable*> experts(std::span<const FeedForwardWeights> experts,
                                       std::string_view layer);

    // Of every layer, in the order in which they were placed.
    const std::vector<std::unique_ptr<ExpertTable>>& tables() const { return tables_; }

    // Everything is placed: the staging buffer goes.
    void release_staging() { staging_.reset(); }

  private:
    Result<std::byte*> staging(Bytes bytes);
    Result<WeightMatrix> narrowed(const WeightMatrix& stored, std::string_view name);
    Status copy(const WeightMatrix& stored, std::byte* data, std::byte* scales,
                std::string_view name);
    Status pack_into(const WeightMatrix& stored, std::uint8_t* packed, std::string_view name);
    template <class T>
    Result<const T*> upload(std::span<const T> values, std::string_view name);

    cudaStream_t stream_;
    DeviceArena arena_;
    DeviceMemory staging_;
    std::unique_ptr<WeightRing> ring_;  // while weights come from files
    std::vector<BFloat16> narrow_;      // of the fp32 matrix that is being placed
    std::vector<std::unique_ptr<ExpertTable>> tables_;
};

}  // namespace percheron::ops::cuda
