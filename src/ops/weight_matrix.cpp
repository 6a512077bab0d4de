#include "ops/weight_matrix.h"

#include <cstddef>

#include "core/dtype.h"

namespace percheron::ops {
namespace {

constexpr float e2m1_magnitude[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

float e2m1_value(unsigned code) {
    const float magnitude = e2m1_magnitude[code & 7u];
    return (code & 8u) != 0 ? -magnitude : magnitude;
}

std::size_t blocks(std::size_t count, std::size_t size) {
    return (count + size - 1) / size;
}

}  // namespace

std::string_view name_of(WeightFormat format) {
    switch (format) {
        case WeightFormat::bf16:
            return "bf16";
        case WeightFormat::f32:
            return "f32";
        case WeightFormat::fp8_block:
            return "fp8_block";
        case WeightFormat::w4a16:
            return "w4a16";
        case WeightFormat::nvfp4:
            return "nvfp4";
    }
    return "?";
}

std::size_t stored_bytes(const WeightMatrix& matrix) {
    const std::size_t factor = matrix.format == WeightFormat::nvfp4 ? sizeof(float) : 0;
    return data_bytes(matrix) + scale_bytes(matrix) + factor;
}

std::size_t data_bytes(const WeightMatrix& matrix) {
    const std::size_t count = matrix.n * matrix.k;
    switch (matrix.format) {
        case WeightFormat::bf16:
            return count * 2;
        case WeightFormat::f32:
            return count * 4;
        case WeightFormat::fp8_block:
            return count;
        case WeightFormat::w4a16:
        case WeightFormat::nvfp4:
            return count / 2;
    }
    return 0;
}

std::size_t scale_bytes(const WeightMatrix& matrix) {
    switch (matrix.format) {
        case WeightFormat::fp8_block:
            return blocks(matrix.n, 128) * blocks(matrix.k, 128) * 4;
        case WeightFormat::w4a16:
            return matrix.n * (matrix.k / 128) * 2;
        case WeightFormat::nvfp4:
            return matrix.n * (matrix.k / 16);
        case WeightFormat::bf16:
        case WeightFormat::f32:
            break;
    }
    return 0;
}

WeightMatrix rows_of(const WeightMatrix& matrix, std::size_t first, std::size_t count) {
    WeightMatrix before = matrix;
    before.n = first;
    WeightMatrix rows = matrix;
    rows.n = count;
    rows.data = static_cast<const std::byte*>(matrix.data) + data_bytes(before);
    if (matrix.scales != nullptr)
        rows.scales = static_cast<const std::byte*>(matrix.scales) + scale_bytes(before);
    return rows;
}

void dequantise_row(const WeightMatrix& matrix, std::size_t row, float* out) {
    const std::size_t k = matrix.k;
    switch (matrix.format) {
        case WeightFormat::bf16: {
            const auto* source = static_cast<const BFloat16*>(matrix.data) + row * k;
            for (std::size_t i = 0; i < k; ++i) {
                out[i] = static_cast<float>(source[i]);
            }
            return;
        }
        case WeightFormat::f32: {
            const auto* source = static_cast<const float*>(matrix.data) + row * k;
            for (std::size_t i = 0; i < k; ++i) {
                out[i] = source[i];
            }
            return;
        }
        case WeightFormat::fp8_block: {
            const auto* source = static_cast<const Float8E4M3*>(matrix.data) + row * k;
            const auto* scales =
                static_cast<const float*>(matrix.scales) + (row / 128) * blocks(k, 128);
            for (std::size_t i = 0; i < k; ++i) {
                out[i] = static_cast<float>(source[i]) * scales[i / 128];
            }
            return;
        }
        case WeightFormat::w4a16: {
            const auto* source = static_cast<const std::uint32_t*>(matrix.data) + row * (k / 8);
            const auto* scales = static_cast<const BFloat16*>(matrix.scales) + row * (k / 128);
            for (std::size_t i = 0; i < k; ++i) {
                const int nibble = static_cast<int>((source[i / 8] >> (4 * (i % 8))) & 15u);
                out[i] = static_cast<float>(nibble - 8) * static_cast<float>(scales[i / 128]);
            }
            return;
        }
        case WeightFormat::nvfp4: {
            const auto* source = static_cast<const std::uint8_t*>(matrix.data) + row * (k / 2);
            const auto* scales = static_cast<const Float8E4M3*>(matrix.scales) + row * (k / 16);
            for (std::size_t i = 0; i < k; ++i) {
                const unsigned code = (source[i / 2] >> (4 * (i % 2))) & 15u;
                const float block = static_cast<float>(scales[i / 16]);
                const float scale = matrix.global_inverse != 0.0f ? block / matrix.global_inverse
                                                                  : block * matrix.global_scale;
                out[i] = e2m1_value(code) * scale;
            }
            return;
        }
    }
}

}  // namespace percheron::ops
