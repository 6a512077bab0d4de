#include <algorithm>
#include <numeric>
#include <vector>

#include "ops/reference/reference_primitives.h"
#include "ops/reference/scalar_functions.h"

namespace percheron::ops::reference {

void ReferencePrimitives::router(const Router& op) {
    const std::size_t experts = op.weight.n;
    const std::size_t chosen = op.experts.columns;
    std::vector<float> logits(experts);
    std::vector<float> scores(experts);
    std::vector<std::uint32_t> order(experts);
    for (std::size_t row = 0; row < op.input.rows; ++row) {
        const Linear product{op.weight, op.input.slice(row, 1),
                             Rows<float>(logits.data(), 1, experts), Arithmetic::fp32};
        linear({&product, 1});
        for (std::size_t e = 0; e < experts; ++e) {
            scores[e] = static_cast<float>(sigmoid(logits[e]));
        }
        std::iota(order.begin(), order.end(), 0u);
        std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
            return scores[a] + op.bias[a] > scores[b] + op.bias[b];
        });
        double sum = 1e-20;
        for (std::size_t j = 0; j < chosen; ++j) {
            sum += scores[order[j]];
        }
        for (std::size_t j = 0; j < chosen; ++j) {
            op.experts.row(row)[j] = order[j];
            const double weight = scores[order[j]] / (op.normalise ? sum : 1.0);
            op.weights.row(row)[j] = static_cast<float>(op.scale * weight);
        }
    }
}

void ReferencePrimitives::swiglu(const Swiglu& op) {
    for (std::size_t row = 0; row < op.gate.rows; ++row) {
        for (std::size_t i = 0; i < op.gate.columns; ++i) {
            const double gate = std::min(op.gate.row(row)[i], op.limit);
            const double up = std::clamp(op.up.row(row)[i], -op.limit, op.limit);
            op.output.row(row)[i] = static_cast<float>(gate * sigmoid(gate) * up);
        }
    }
}

void ReferencePrimitives::combine_experts(const CombineExperts& op) {
    const std::size_t chosen = op.place.columns;
    for (std::size_t row = 0; row < op.output.rows; ++row) {
        for (std::size_t i = 0; i < op.output.columns; ++i) {
            double sum = 0;
            for (std::size_t j = 0; j < chosen; ++j) {
                sum += static_cast<double>(op.weights.row(row)[j]) *
                       op.expert_output.row(op.place.row(row)[j])[i];
            }
            op.output.row(row)[i] = static_cast<float>(sum + op.shared.row(row)[i]);
        }
    }
}

}  // namespace percheron::ops::reference
