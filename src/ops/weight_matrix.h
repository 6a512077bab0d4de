// A weight matrix as it is stored: W[n, k], out x in, row-major, y = W x.
//
// One struct for every format, decided per tensor by what is in the file (MODEL.md section 3).
// Ops compute straight from these bytes; the reference dequantises with `dequantise_row`.
//
//   bf16        data: BFloat16[n][k]
//   f32         data: float[n][k]
//   fp8_block   data: Float8E4M3[n][k]; scales: float[ceil(n/128)][ceil(k/128)];
//               w = f8 * scale (the last blocks may be ragged)
//   w4a16       data: uint32[n][k/8], lowest nibble first, w = (nibble - 8) * scale;
//               scales: BFloat16[n][k/128]; k a multiple of 128
//   nvfp4       data: uint8[n][k/2], low nibble = even k, e2m1 codes; scales: Float8E4M3[n][k/16];
//               w = e2m1 * (block scale * global_scale), that product rounded to float first;
//               where a file holds the factor's inverse, w = e2m1 * (block scale / inverse), that
//               quotient rounded first.  global_scale is the rounded 1 / inverse then, and products
//               may use it: the two scales differ by a rounding.
//
// Memory may be a mapped file, host memory or device memory; the backend that made the view knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace percheron::ops {

enum class WeightFormat : std::uint8_t { bf16, f32, fp8_block, w4a16, nvfp4 };

std::string_view name_of(WeightFormat format);

struct WeightMatrix {
    WeightFormat format = WeightFormat::bf16;
    std::size_t n = 0;  // outputs
    std::size_t k = 0;  // inputs
    const void* data = nullptr;
    const void* scales = nullptr;
    float global_scale = 1.0f;    // nvfp4 only
    float global_inverse = 0.0f;  // nvfp4 whose file holds the inverse; else 0
    float input_scale = 0.0f;     // nvfp4 whose inputs are rounded too (fp4_inputs.h); else 0

    bool empty() const { return data == nullptr; }
};

// Bytes of data and scales together: what one pass over the matrix reads.
std::size_t stored_bytes(const WeightMatrix& matrix);
// Of each by itself; nvfp4's factor is in neither.
std::size_t data_bytes(const WeightMatrix& matrix);
std::size_t scale_bytes(const WeightMatrix& matrix);

// A view of `count` rows from `first` on, which for fp8_block is a multiple of 128.
WeightMatrix rows_of(const WeightMatrix& matrix, std::size_t first, std::size_t count);

// Row `row` widened to float, out[0..k).  Host memory only.
void dequantise_row(const WeightMatrix& matrix, std::size_t row, float* out);

}  // namespace percheron::ops
