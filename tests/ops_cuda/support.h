// What kernel tests and kernel benchmarks share: device memory, a fixed stream of random numbers,
// random matrices in every stored format.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "core/dtype.h"
#include "ops/cuda/packed_matrix.h"
#include "ops/weight_matrix.h"

namespace percheron::check {

inline void require(cudaError_t code, const char* what) {
    if (code == cudaSuccess) return;
    std::printf("%s: %s\n", what, cudaGetErrorString(code));
    std::exit(1);
}

// Device memory of `count` Ts.
template <class T>
class OnDevice {
  public:
    explicit OnDevice(std::size_t count) : count_(count) {
        require(cudaMalloc(&data_, std::max<std::size_t>(1, count) * sizeof(T)), "cudaMalloc");
    }
    explicit OnDevice(std::span<const T> host) : OnDevice(host.size()) { upload(host); }
    explicit OnDevice(const std::vector<T>& host) : OnDevice(std::span<const T>(host)) {}
    ~OnDevice() { cudaFree(data_); }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

    T* data() const { return data_; }
    std::size_t size() const { return count_; }
    void upload(std::span<const T> host) {
        require(cudaMemcpy(data_, host.data(), host.size_bytes(), cudaMemcpyHostToDevice),
                "upload");
    }
    std::vector<T> download() const {
        std::vector<T> host(count_);
        require(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
                "download");
        return host;
    }
    // Every byte 0xff: NaN in every float format, so that what was not written shows.
    void poison() { require(cudaMemset(data_, 0xff, count_ * sizeof(T)), "poison"); }

  private:
    T* data_ = nullptr;
    std::size_t count_;
};

// SplitMix64: the same numbers everywhere.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t bits() {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    std::size_t below(std::size_t n) { return bits() % n; }
    float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }
    float uniform(float low, float high) { return low + (high - low) * uniform(); }
    float normal() {
        const float u = std::fmax(uniform(), 1e-7f);
        return std::sqrt(-2.0f * std::log(u)) * std::cos(6.2831853f * uniform());
    }

  private:
    std::uint64_t state_;
};

inline std::vector<float> normals(Random& random, std::size_t count, float scale = 1.0f) {
    std::vector<float> values(count);
    for (float& value : values)
        value = scale * random.normal();
    return values;
}

inline std::vector<__nv_bfloat16> as_bf16(std::span<const float> values) {
    std::vector<__nv_bfloat16> result(values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
        result[i] = __float2bfloat16_rn(values[i]);
    return result;
}

// A random matrix as it would be stored, in host memory.  Codes cover their whole range except
// NaN; values are of order 1 / sqrt(k) times a row's own factor.
class StoredMatrix {
  public:
    StoredMatrix(ops::WeightFormat format, std::size_t n, std::size_t k, Random& random) {
        view_.format = format;
        view_.n = n;
        view_.k = k;
        const float size = 1.0f / std::sqrt(static_cast<float>(k));
        const std::size_t count = n * k;
        switch (format) {
            case ops::WeightFormat::bf16:
                data_.resize(count * 2);
                for (std::size_t i = 0; i < count; ++i)
                    put16(data_, i, BFloat16(size * random.normal()).bits);
                break;
            case ops::WeightFormat::fp8_block: {
                data_.resize(count);
                for (auto& code : data_)
                    do
                        code = static_cast<std::uint8_t>(random.bits());
                    while ((code & 0x7f) == 0x7f);
                const std::size_t blocks = ((n + 127) / 128) * ((k + 127) / 128);
                scales_.resize(blocks * 4);
                for (std::size_t i = 0; i < blocks; ++i) {
                    const float scale = size / 100 * random.uniform(0.5f, 2.0f);
                    std::memcpy(scales_.data() + i * 4, &scale, 4);
                }
                break;
            }
            case ops::WeightFormat::w4a16:
                random_bytes(data_, count / 2, random);
                scales_.resize(n * (k / 128) * 2);
                for (std::size_t i = 0; i < n * (k / 128); ++i)
                    put16(scales_, i, BFloat16(size / 5 * random.uniform(0.2f, 2.0f)).bits);
                break;
            case ops::WeightFormat::nvfp4:
                random_bytes(data_, count / 2, random);
                scales_.resize(n * (k / 16));
                // Subnormal, negative and zero ones included.
                for (auto& code : scales_)
                    code = static_cast<std::uint8_t>(random.below(0x7f) | (random.bits() & 0x80));
                view_.global_scale = size / 100;
                break;
            case ops::WeightFormat::f32:
                break;
        }
        view_.data = data_.data();
        view_.scales = scales_.data();
    }
    StoredMatrix(const StoredMatrix&) = delete;

    const ops::WeightMatrix& view() const { return view_; }
    const std::vector<std::uint8_t>& data() const { return data_; }
    const std::vector<std::uint8_t>& scales() const { return scales_; }

  private:
    static void put16(std::vector<std::uint8_t>& bytes, std::size_t i, std::uint16_t value) {
        std::memcpy(bytes.data() + 2 * i, &value, 2);
    }
    static void random_bytes(std::vector<std::uint8_t>& bytes, std::size_t count, Random& random) {
        bytes.resize(count);
        for (auto& byte : bytes)
            byte = static_cast<std::uint8_t>(random.bits());
    }

    ops::WeightMatrix view_;
    std::vector<std::uint8_t> data_, scales_;
};

// The same matrix packed on the device.
class PackedOnDevice {
  public:
    explicit PackedOnDevice(const StoredMatrix& stored)
        : data_(stored.data()),
          scales_(stored.scales()),
          packed_(ops::cuda::packed_bytes(stored.view().format, stored.view().n, stored.view().k)) {
        ops::WeightMatrix view = stored.view();
        view.data = data_.data();
        view.scales = scales_.data();
        packed_.poison();
        auto result = ops::cuda::pack_matrix(view, packed_.data(), nullptr);
        if (!result.ok()) {
            std::printf("%s\n", result.error().message().c_str());
            std::exit(1);
        }
        view_ = *result;
        require(cudaDeviceSynchronize(), "packing");
    }
    const ops::cuda::PackedMatrix& view() const { return view_; }

  private:
    OnDevice<std::uint8_t> data_, scales_, packed_;
    ops::cuda::PackedMatrix view_;
};

}  // namespace percheron::check
