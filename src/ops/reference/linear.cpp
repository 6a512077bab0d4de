#include <vector>

#include "ops/reference/reference_primitives.h"
#include "ops/reference/scalar_functions.h"

namespace percheron::ops::reference {

void ReferencePrimitives::products(std::span<const Linear> ops) {
    std::vector<float> weight_row;
    std::vector<float> inputs;
    for (const Linear& op : ops) {
        const std::size_t k = op.weight.k;
        const std::size_t rows = op.row_count();
        inputs.resize(rows * k);
        for (std::size_t row = 0; row < rows; ++row) {
            const float* const from = op.input.row(op.rows.empty() ? row : op.rows[row]);
            for (std::size_t i = 0; i < k; ++i) {
                inputs[row * k + i] = product_input(from[i], op.arithmetic);
            }
        }
        weight_row.resize(k);
        for (std::size_t n = 0; n < op.weight.n; ++n) {
            dequantise_row(op.weight, n, weight_row.data());
            for (std::size_t row = 0; row < rows; ++row) {
                const float* const x = inputs.data() + row * k;
                double sum = 0;
                for (std::size_t i = 0; i < k; ++i) {
                    sum += static_cast<double>(weight_row[i]) * x[i];
                }
                op.output.row(row)[n] = static_cast<float>(sum);
            }
        }
    }
}

}  // namespace percheron::ops::reference
