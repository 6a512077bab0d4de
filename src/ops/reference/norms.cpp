#include <cmath>
#include <vector>

#include "ops/reference/reference_primitives.h"
#include "ops/reference/scalar_functions.h"

namespace percheron::ops::reference {
namespace {

// out = in / rms(in) * weight, of n values.
void normalise(const float* in, const float* weight, float eps, std::size_t n, float* out) {
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) {
        squares += static_cast<double>(in[i]) * in[i];
    }
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(n) + eps);
    for (std::size_t i = 0; i < n; ++i) {
        out[i] = static_cast<float>(in[i] * scale * weight[i]);
    }
}

}  // namespace

void ReferencePrimitives::rms_norm(const RmsNorm& op) {
    for (std::size_t row = 0; row < op.input.rows; ++row) {
        normalise(op.input.row(row), op.weight, op.eps, op.input.columns, op.output.row(row));
    }
}

void ReferencePrimitives::layer_norm(const LayerNorm& op) {
    const std::size_t n = op.input.columns;
    for (std::size_t row = 0; row < op.input.rows; ++row) {
        const float* const in = op.input.row(row);
        double mean = 0;
        for (std::size_t i = 0; i < n; ++i) {
            mean += in[i];
        }
        mean /= static_cast<double>(n);
        double variance = 0;
        for (std::size_t i = 0; i < n; ++i) {
            variance += (in[i] - mean) * (in[i] - mean);
        }
        variance /= static_cast<double>(n);
        const double scale = 1.0 / std::sqrt(variance + op.eps);
        float* const out = op.output.row(row);
        for (std::size_t i = 0; i < n; ++i) {
            out[i] = static_cast<float>((in[i] - mean) * scale * op.weight[i] + op.bias[i]);
        }
    }
}

void ReferencePrimitives::gated_norm(const GatedNorm& op) {
    const std::size_t heads = op.input.columns / op.dim;
    std::vector<float> normed(op.dim);
    for (std::size_t row = 0; row < op.input.rows; ++row) {
        for (std::size_t head = 0; head < heads; ++head) {
            const std::size_t first = head * op.dim;
            normalise(op.input.row(row) + first, op.weight, op.eps, op.dim, normed.data());
            const float* const gate = op.gate.row(row) + first;
            float* const out = op.output.row(row) + first;
            for (std::size_t c = 0; c < op.dim; ++c) {
                out[c] = static_cast<float>(normed[c] * sigmoid(gate[c]));
            }
        }
    }
}

}  // namespace percheron::ops::reference
