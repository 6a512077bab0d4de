// Random matrices for the oracle's tests.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "core/views.h"
#include "ops/weight_matrix.h"

namespace percheron::tests {

using Generator = std::mt19937_64;

// A matrix that owns its numbers.
struct Matrix {
    std::vector<float> values;
    std::size_t columns = 0;

    Matrix(std::size_t rows, std::size_t columns, float fill = 0.0f)
        : values(rows * columns, fill), columns(columns) {}
    static Matrix random(Generator& generator, std::size_t rows, std::size_t columns,
                         float deviation = 1.0f) {
        Matrix matrix(rows, columns);
        std::normal_distribution<float> normal(0.0f, deviation);
        for (float& value : matrix.values) {
            value = normal(generator);
        }
        return matrix;
    }

    std::size_t rows() const { return columns == 0 ? 0 : values.size() / columns; }
    float& at(std::size_t row, std::size_t column) { return values[row * columns + column]; }
    float at(std::size_t row, std::size_t column) const { return values[row * columns + column]; }
    Rows<float> view() { return Rows<float>(values.data(), rows(), columns); }
    // As fp32 weights.
    ops::WeightMatrix weight() const {
        ops::WeightMatrix view;
        view.format = ops::WeightFormat::f32;
        view.n = rows();
        view.k = columns;
        view.data = values.data();
        return view;
    }
};

}  // namespace percheron::tests
