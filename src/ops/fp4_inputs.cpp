#include "ops/fp4_inputs.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "core/dtype.h"

namespace percheron::ops {
namespace {

constexpr std::size_t block_width = 16;

}  // namespace

void round_to_fp4(std::span<const float> in, float input_scale, std::span<float> out) {
    assert(in.size() == out.size() && in.size() % block_width == 0 && input_scale > 0);
    for (std::size_t first = 0; first < in.size(); first += block_width) {
        float largest = 0;
        for (std::size_t i = first; i < first + block_width; ++i)
            largest = std::max(largest, std::fabs(in[i]));
        const auto block = static_cast<float>(Float8E4M3(largest / (largest_e2m1 * input_scale)));
        const float scale = block * input_scale;
        for (std::size_t i = first; i < first + block_width; ++i)
            out[i] = scale > 0 ? nearest_e2m1(in[i] / scale) * block : 0.0f;
    }
}

bool Fp4Inputs::needed(std::span<const Linear> ops) {
    return std::any_of(ops.begin(), ops.end(),
                       [](const Linear& op) { return op.weight.input_scale != 0; });
}

Linear Fp4Inputs::rounded(const Linear& op) {
    const std::size_t rows = op.row_count(), k = op.weight.k;
    if (rows_.size() < rows * k) rows_.resize(rows * k);
    const Rows<float> inputs{rows_.data(), rows, k};
    for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t from = op.rows.empty() ? row : op.rows[row];
        round_to_fp4({op.input.row(from), k}, op.weight.input_scale, {inputs.row(row), k});
    }
    Linear result = op;
    result.input = inputs;
    result.rows = {};
    result.weight.global_scale *= op.weight.input_scale;
    result.weight.global_inverse /= op.weight.input_scale;
    result.weight.input_scale = 0;
    return result;
}

}  // namespace percheron::ops
