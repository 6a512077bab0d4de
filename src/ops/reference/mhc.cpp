#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/reference/reference_primitives.h"
#include "ops/reference/scalar_functions.h"

namespace percheron::ops::reference {
namespace {

// C: S x S, [source][destination].  Divides every row, or every column, by its sum + eps.
void divide_rows(std::vector<double>& c, std::size_t streams, double eps) {
    for (std::size_t a = 0; a < streams; ++a) {
        double sum = 0;
        for (std::size_t b = 0; b < streams; ++b) {
            sum += c[a * streams + b];
        }
        for (std::size_t b = 0; b < streams; ++b) {
            c[a * streams + b] /= sum + eps;
        }
    }
}

void divide_columns(std::vector<double>& c, std::size_t streams, double eps) {
    for (std::size_t b = 0; b < streams; ++b) {
        double sum = 0;
        for (std::size_t a = 0; a < streams; ++a) {
            sum += c[a * streams + b];
        }
        for (std::size_t a = 0; a < streams; ++a) {
            c[a * streams + b] /= sum + eps;
        }
    }
}

void softmax_rows(std::vector<double>& c, std::size_t streams, double eps) {
    for (std::size_t a = 0; a < streams; ++a) {
        double* const row = c.data() + a * streams;
        const double largest = *std::max_element(row, row + streams);
        double sum = 0;
        for (std::size_t b = 0; b < streams; ++b) {
            row[b] = std::exp(row[b] - largest);
            sum += row[b];
        }
        for (std::size_t b = 0; b < streams; ++b) {
            row[b] = row[b] / sum + eps;
        }
    }
}

}  // namespace

void ReferencePrimitives::mhc_gates(const MhcGateComputation& op) {
    const std::size_t streams = op.streams;
    const std::size_t width = op.state.columns;
    std::vector<float> fn_row(width);
    std::vector<double> mixes(op.fn.n);
    std::vector<double> comb(streams * streams);
    for (std::size_t row = 0; row < op.state.rows; ++row) {
        const float* const f = op.state.row(row);
        double squares = 0;
        for (std::size_t i = 0; i < width; ++i) {
            squares += static_cast<double>(f[i]) * f[i];
        }
        const double r = 1.0 / std::sqrt(squares / static_cast<double>(width) + op.rms_eps);
        for (std::size_t n = 0; n < op.fn.n; ++n) {
            dequantise_row(op.fn, n, fn_row.data());
            double sum = 0;
            for (std::size_t i = 0; i < width; ++i) {
                sum += static_cast<double>(fn_row[i]) * f[i];
            }
            mixes[n] = r * sum;
        }
        for (std::size_t i = 0; i < streams; ++i) {
            const std::size_t j = streams + i;
            op.pre.row(row)[i] =
                static_cast<float>(sigmoid(op.scale[0] * mixes[i] + op.base[i]) + op.mhc_eps);
            op.post.row(row)[i] =
                static_cast<float>(2.0 * sigmoid(op.scale[1] * mixes[j] + op.base[j]));
        }
        for (std::size_t i = 0; i < streams * streams; ++i) {
            const std::size_t n = 2 * streams + i;
            comb[i] = op.scale[2] * mixes[n] + op.base[n];
        }
        softmax_rows(comb, streams, op.mhc_eps);
        divide_columns(comb, streams, op.mhc_eps);
        for (std::size_t iteration = 1; iteration < op.iterations; ++iteration) {
            divide_rows(comb, streams, op.mhc_eps);
            divide_columns(comb, streams, op.mhc_eps);
        }
        for (std::size_t i = 0; i < streams * streams; ++i) {
            op.comb.row(row)[i] = static_cast<float>(comb[i]);
        }
    }
}

void ReferencePrimitives::mhc_update(const MhcUpdate& op) {
    const std::size_t streams = op.streams;
    const std::size_t hidden = op.output.columns;
    std::vector<float> before(streams);
    for (std::size_t row = 0; row < op.state.rows; ++row) {
        float* const state = op.state.row(row);
        const float* const comb = op.comb.row(row);
        for (std::size_t i = 0; i < hidden; ++i) {
            for (std::size_t a = 0; a < streams; ++a) {
                before[a] = state[a * hidden + i];
            }
            for (std::size_t j = 0; j < streams; ++j) {
                double sum = static_cast<double>(op.post.row(row)[j]) * op.output.row(row)[i];
                for (std::size_t a = 0; a < streams; ++a) {
                    sum += static_cast<double>(comb[a * streams + j]) * before[a];
                }
                state[j * hidden + i] = static_cast<float>(sum);
            }
        }
    }
}

void ReferencePrimitives::mhc_collapse(const MhcCollapse& op) {
    const std::size_t hidden = op.output.columns;
    for (std::size_t row = 0; row < op.state.rows; ++row) {
        const float* const state = op.state.row(row);
        float* const out = op.output.row(row);
        for (std::size_t i = 0; i < hidden; ++i) {
            double sum = 0;
            for (std::size_t s = 0; s < op.streams; ++s) {
                const double pre = op.pre.data != nullptr ? op.pre.row(row)[s]
                                                          : 1.0 / static_cast<double>(op.streams);
                sum += pre * state[s * hidden + i];
            }
            out[i] = static_cast<float>(sum);
        }
    }
    if (op.norm != nullptr) rms_norm({op.output, op.norm, op.rms_eps, op.output});
}

}  // namespace percheron::ops::reference
