#include "tools/quantize_rounder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tools/quantize_gptq.h"

namespace percheron::tools {
namespace {

using ops::WeightFormat;

constexpr std::size_t slab_rows = 128;  // rows of one FP8 block

template <class T>
std::span<T> typed(std::vector<std::byte>& bytes) {
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

PackedWeight empty_parts(const PlannedWeight& weight, float global_scale) {
    PackedWeight packed;
    packed.global_scale = global_scale;
    for (const checkpoint::TensorHeader& output : weight.outputs)
        packed.parts.emplace_back(output.bytes());
    if (weight.format == WeightFormat::w4a16) {
        const std::uint64_t shape[2] = {weight.rows(), weight.columns()};
        std::memcpy(packed.parts[2].data(), shape, sizeof(shape));
    } else if (weight.format == WeightFormat::nvfp4) {
        std::memcpy(packed.parts[2].data(), &global_scale, sizeof(global_scale));
    }
    return packed;
}

// Rows [first, first + rows) of the matrix, `weights` [rows][k].
RoundingError round_rows(WeightFormat format, std::span<const float> weights, std::size_t first,
                         std::size_t rows, std::size_t k, PackedWeight& packed) {
    if (format == WeightFormat::fp8_block) {
        const std::size_t columns = (k + slab_rows - 1) / slab_rows;
        return round_to_fp8_blocks(
            weights, rows, k, typed<Float8E4M3>(packed.parts[0]).subspan(first * k, rows * k),
            typed<float>(packed.parts[1]).subspan(first / slab_rows * columns, columns));
    }
    RoundingError error;
    for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t at = first + row;
        const auto values = weights.subspan(row * k, k);
        if (format == WeightFormat::nvfp4) {
            error +=
                round_to_nvfp4(values, packed.global_scale,
                               typed<std::uint8_t>(packed.parts[0]).subspan(at * (k / 2), k / 2),
                               typed<Float8E4M3>(packed.parts[1]).subspan(at * (k / 16), k / 16));
        } else {
            error += round_to_w4a16(
                values, typed<std::uint32_t>(packed.parts[0]).subspan(at * (k / 8), k / 8),
                typed<BFloat16>(packed.parts[1]).subspan(at * (k / 128), k / 128));
        }
    }
    return error;
}

}  // namespace

ops::WeightMatrix PackedWeight::view(const PlannedWeight& weight) const {
    return {weight.format,   weight.rows(),   weight.columns(),
            parts[0].data(), parts[1].data(), global_scale};
}

std::vector<float> dequantised(const ops::WeightMatrix& matrix, ThreadPool& pool) {
    std::vector<float> values(matrix.n * matrix.k);
    pool.parallel_for(matrix.n, [&](std::size_t row, std::size_t) {
        ops::dequantise_row(matrix, row, values.data() + row * matrix.k);
    });
    return values;
}

float largest_magnitude(const ops::WeightMatrix& matrix, ThreadPool& pool) {
    std::vector<float> largest(matrix.n);
    pool.parallel_for(matrix.n, [&](std::size_t row, std::size_t) {
        std::vector<float> values(matrix.k);
        ops::dequantise_row(matrix, row, values.data());
        for (const float value : values)
            largest[row] = std::max(largest[row], std::fabs(value));
    });
    return largest.empty() ? 0.0f : *std::max_element(largest.begin(), largest.end());
}

Result<PackedWeight> MatrixRounder::nearest(const PlannedWeight& weight,
                                            const ops::WeightMatrix& source, float global_scale) {
    PackedWeight packed = empty_parts(weight, global_scale);
    const std::size_t slabs = (source.n + slab_rows - 1) / slab_rows;
    std::vector<RoundingError> errors(slabs);
    pool_.parallel_for(slabs, [&](std::size_t slab, std::size_t) {
        const std::size_t first = slab * slab_rows;
        const std::size_t rows = std::min(slab_rows, source.n - first);
        std::vector<float> weights(rows * source.k);
        for (std::size_t row = 0; row < rows; ++row)
            ops::dequantise_row(source, first + row, weights.data() + row * source.k);
        for (const float value : weights)
            errors[slab].squared_sum += value * 0.0f;  // NaN if any is not finite
        if (errors[slab].squared_sum != 0) return;
        errors[slab] = round_rows(weight.format, weights, first, rows, source.k, packed);
    });
    for (const RoundingError& error : errors)
        packed.error += error;
    // A NaN or an infinity anywhere in the matrix ends up here.
    if (!std::isfinite(packed.error.squared_sum)) {
        return Error(ErrorCode::corrupt, checkpoint::describe(weight.source.data) +
                                             ": holds values that are not finite");
    }
    return packed;
}

PackedWeight MatrixRounder::calibrated(const PlannedWeight& weight, Rows<const float> values,
                                       const HessianFactor& factor, float global_scale) {
    PackedWeight packed = empty_parts(weight, global_scale);
    if (weight.format == WeightFormat::nvfp4) {
        solve_nvfp4(values, factor, global_scale, pool_, typed<std::uint8_t>(packed.parts[0]),
                    typed<Float8E4M3>(packed.parts[1]));
    } else {
        solve_w4a16(values, factor, pool_, typed<std::uint32_t>(packed.parts[0]),
                    typed<BFloat16>(packed.parts[1]));
    }
    const ops::WeightMatrix view = packed.view(weight);
    std::vector<float> row(values.columns);
    for (std::size_t i = 0; i < values.rows; ++i) {
        ops::dequantise_row(view, i, row.data());
        for (std::size_t j = 0; j < values.columns; ++j) {
            const double before = values.row(i)[j];
            packed.error.squared_error += (before - row[j]) * (before - row[j]);
            packed.error.squared_sum += before * before;
        }
    }
    return packed;
}

}  // namespace percheron::tools
