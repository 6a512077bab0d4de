#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/reference/reference_primitives.h"
#include "ops/stored_values.h"

namespace percheron::ops::reference {

void ReferencePrimitives::add_rows(const AddRows& op) {
    for (std::size_t row = 0; row < op.output.rows; ++row) {
        for (std::size_t i = 0; i < op.output.columns; ++i) {
            const float sum = op.input.row(row)[i] + (op.bias == nullptr ? 0.0f : op.bias[i]);
            op.output.row(row)[i] =
                op.residual.data == nullptr ? sum : op.residual.row(row)[i] + sum;
        }
    }
}

void ReferencePrimitives::gelu(const Gelu& op) {
    for (std::size_t row = 0; row < op.output.rows; ++row) {
        for (std::size_t i = 0; i < op.output.columns; ++i) {
            const double x = op.input.row(row)[i];
            op.output.row(row)[i] = static_cast<float>(x / 2 * (1 + std::erf(x / std::sqrt(2.0))));
        }
    }
}

namespace {

void store_turned(const float* in, const float* norm, const StorePatchHeads& op, PatchPlace place,
                  void* out, std::size_t at) {
    const std::size_t dim = op.heads.dim;
    double squares = 0;
    for (std::size_t i = 0; i < dim; ++i) {
        squares += static_cast<double>(in[i]) * in[i];
    }
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(dim) + op.eps);
    std::vector<double> normed(dim);
    for (std::size_t i = 0; i < dim; ++i) {
        normed[i] = in[i] * scale * norm[i];
    }
    const std::size_t half = dim / 2;
    const std::size_t quarter = dim / 4;
    for (std::size_t j = 0; j < half; ++j) {
        const double along = j < quarter ? place.y : place.x;
        const double power = -4.0 * static_cast<double>(j % quarter) / static_cast<double>(dim);
        const double angle = along * std::pow(static_cast<double>(op.theta), power);
        const double a = normed[j];
        const double b = normed[j + half];
        const DType dtype = op.heads.dtype;
        store_rounded(out, dtype, at + j,
                      static_cast<float>(a * std::cos(angle) - b * std::sin(angle)));
        store_rounded(out, dtype, at + j + half,
                      static_cast<float>(b * std::cos(angle) + a * std::sin(angle)));
    }
}

}  // namespace

void ReferencePrimitives::store_patch_heads(const StorePatchHeads& op) {
    const std::size_t dim = op.heads.dim;
    const std::size_t width = op.heads.heads * dim;
    for (std::size_t row = 0; row < op.rows.rows; ++row) {
        for (std::size_t head = 0; head < op.heads.heads; ++head) {
            const float* const query = op.rows.row(row) + head * dim;
            const std::size_t at = (head * op.heads.patches + op.first + row) * dim;
            store_turned(query, op.query_norm, op, op.places[row], op.heads.query, at);
            store_turned(query + width, op.key_norm, op, op.places[row], op.heads.key, at);
            for (std::size_t i = 0; i < dim; ++i) {
                store_rounded(op.heads.value, op.heads.dtype, at + i, query[2 * width + i]);
            }
        }
    }
}

void ReferencePrimitives::patch_attention(const PatchAttention& op) {
    const PatchHeads& heads = op.heads;
    const std::size_t dim = heads.dim;
    const auto load = [&](const void* of, std::size_t head, std::size_t patch, std::size_t i) {
        return static_cast<double>(
            load_stored(of, heads.dtype, (head * heads.patches + patch) * dim + i));
    };
    std::vector<double> weights(heads.patches);
    for (std::size_t row = 0; row < op.output.rows; ++row) {
        for (std::size_t head = 0; head < heads.heads; ++head) {
            double largest = -INFINITY;
            for (std::size_t patch = 0; patch < heads.patches; ++patch) {
                double score = 0;
                for (std::size_t i = 0; i < dim; ++i) {
                    score += load(heads.query, head, op.first + row, i) *
                             load(heads.key, head, patch, i);
                }
                weights[patch] = score / std::sqrt(static_cast<double>(dim));
                largest = std::max(largest, weights[patch]);
            }
            double total = 0;
            for (double& weight : weights) {
                weight = std::exp(weight - largest);
                total += weight;
            }
            for (std::size_t i = 0; i < dim; ++i) {
                double sum = 0;
                for (std::size_t patch = 0; patch < heads.patches; ++patch) {
                    sum += weights[patch] * load(heads.value, head, patch, i);
                }
                op.output.row(row)[head * dim + i] = static_cast<float>(sum / total);
            }
        }
    }
}

}  // namespace percheron::ops::reference
