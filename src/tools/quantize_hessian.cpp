#include "tools/quantize_hessian.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "ops/cpu/cpu_primitives.h"
#include "ops/cpu/levels.h"

namespace percheron::tools {
namespace {

class CpuMath final : public CalibrationMath {
  public:
    CpuMath(const ops::cpu::Kernels& kernels, std::size_t threads)
        : pool_(ThreadPoolOptions{.threads = threads}), primitives_(kernels, pool_) {}
    ops::Primitives& primitives() override { return primitives_; }
    ThreadPool& pool() override { return pool_; }

  private:
    ThreadPool pool_;
    ops::cpu::CpuPrimitives primitives_;
};

double dot(const double* a, const double* b, std::size_t count) {
    constexpr std::size_t lanes = 8;
    double sums[lanes] = {};
    std::size_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        for (std::size_t lane = 0; lane < lanes; ++lane)
            sums[lane] += a[i + lane] * b[i + lane];
    }
    double sum = 0;
    for (const double part : sums)
        sum += part;
    for (; i < count; ++i)
        sum += a[i] * b[i];
    return sum;
}

// Lower triangular L with A = L LT in place of A's lower half.  False: A is not positive.
bool cholesky(std::vector<double>& a, std::size_t size, ThreadPool& pool) {
    constexpr std::size_t panel = 64;
    constexpr std::size_t rows_a_task = 16;
    for (std::size_t first = 0; first < size; first += panel) {
        const std::size_t last = std::min(size, first + panel);
        // What the columns to the left contribute to this panel.
        const std::size_t tasks = (size - first + rows_a_task - 1) / rows_a_task;
        pool.parallel_for(tasks, [&](std::size_t task, std::size_t) {
            const std::size_t from = first + task * rows_a_task;
            for (std::size_t row = from; row < std::min(size, from + rows_a_task); ++row) {
                for (std::size_t column = first; column < std::min(last, row + 1); ++column)
                    a[row * size + column] -= dot(&a[row * size], &a[column * size], first);
            }
        });
        for (std::size_t column = first; column < last; ++column) {
            double* const at = &a[column * size];
            const double square = at[column] - dot(at + first, at + first, column - first);
            if (!(square > 0) || !std::isfinite(square)) return false;
            at[column] = std::sqrt(square);
            for (std::size_t row = column + 1; row < last; ++row) {
                double* const below = &a[row * size];
                below[column] =
                    (below[column] - dot(below + first, at + first, column - first)) / at[column];
            }
        }
        pool.parallel_for(tasks, [&](std::size_t task, std::size_t) {
            const std::size_t from = first + task * rows_a_task;
            for (std::size_t row = std::max(from, last); row < std::min(size, from + rows_a_task);
                 ++row) {
                double* const below = &a[row * size];
                for (std::size_t column = first; column < last; ++column) {
                    const double* const at = &a[column * size];
                    below[column] =
                        (below[column] - dot(below + first, at + first, column - first)) /
                        at[column];
                }
            }
        });
    }
    return true;
}

std::vector<std::uint32_t> sorted_places(const std::vector<double>& diagonal, std::size_t group) {
    const std::size_t columns = diagonal.size();
    struct Group {
        double sum = 0;
        std::vector<std::uint32_t> columns;
    };
    std::vector<Group> groups;
    for (std::size_t first = 0; first < columns; first += group) {
        Group& one = groups.emplace_back();
        for (std::size_t column = first; column < std::min(columns, first + group); ++column) {
            one.sum += diagonal[column];
            one.columns.push_back(static_cast<std::uint32_t>(column));
        }
        std::stable_sort(
            one.columns.begin(), one.columns.end(),
            [&](std::uint32_t a, std::uint32_t b) { return diagonal[a] > diagonal[b]; });
    }
    // A last group that is shorter than the others stays last: places are cut every `group`.
    const auto whole = groups.begin() + static_cast<std::ptrdiff_t>(columns / group);
    std::stable_sort(groups.begin(), whole,
                     [](const Group& a, const Group& b) { return a.sum > b.sum; });
    std::vector<std::uint32_t> order;
    for (const Group& one : groups)
        order.insert(order.end(), one.columns.begin(), one.columns.end());
    return order;
}

}  // namespace

Result<std::unique_ptr<CalibrationMath>> CalibrationMath::create(std::size_t threads) {
    PERCHERON_ASSIGN(const ops::cpu::Kernels* const kernels, ops::cpu::choose_level(""));
    return std::unique_ptr<CalibrationMath>(std::make_unique<CpuMath>(*kernels, threads));
}

void Hessian::add(Rows<const float> rows, CalibrationMath& math) {
    transposed_.resize(columns_ * rows_a_sum);
    products_.resize(columns_ * columns_);
    for (std::size_t first = 0; first < rows.rows; first += rows_a_sum) {
        const std::size_t count = std::min(rows_a_sum, rows.rows - first);
        std::fill(transposed_.begin(), transposed_.end(), 0.0f);
        for (std::size_t row = 0; row < count; ++row) {
            const float* const from = rows.row(first + row);
            for (std::size_t column = 0; column < columns_; ++column)
                transposed_[column * rows_a_sum + row] = from[column];
        }
        ops::Linear product;
        product.weight = {ops::WeightFormat::f32, columns_, rows_a_sum, transposed_.data()};
        product.input = Rows<const float>(transposed_.data(), columns_, rows_a_sum);
        product.output = Rows<float>(products_.data(), columns_, columns_);
        product.arithmetic = ops::Arithmetic::fp32;
        product.numeric_class = ops::NumericClass::prefill;
        math.primitives().linear({&product, 1});
        math.pool().parallel_for(columns_, [&](std::size_t column, std::size_t) {
            for (std::size_t i = column * columns_; i < (column + 1) * columns_; ++i)
                sums_[i] += products_[i];
        });
        rows_ += count;
    }
}

double Hessian::squared_error(Rows<const float> errors, CalibrationMath& math) const {
    std::vector<double> sums(errors.rows);
    constexpr std::size_t rows_a_task = 8;
    math.pool().parallel_for(
        (errors.rows + rows_a_task - 1) / rows_a_task, [&](std::size_t task, std::size_t) {
            const std::size_t first = task * rows_a_task;
            const std::size_t last = std::min(errors.rows, first + rows_a_task);
            std::vector<double> product(columns_);
            for (std::size_t row = first; row < last; ++row) {
                const float* const error = errors.row(row);
                std::fill(product.begin(), product.end(), 0.0);
                for (std::size_t i = 0; i < columns_; ++i) {
                    const double factor = error[i];
                    const double* const line = &sums_[i * columns_];
                    for (std::size_t j = 0; j < columns_; ++j)
                        product[j] += factor * line[j];
                }
                for (std::size_t j = 0; j < columns_; ++j)
                    sums[row] += product[j] * error[j];
            }
        });
    return std::accumulate(sums.begin(), sums.end(), 0.0);
}

std::optional<HessianFactor> factorise(const Hessian& hessian, const FactorOptions& options,
                                       ThreadPool& pool) {
    const std::size_t columns = hessian.columns();
    const std::vector<double>& sums = hessian.sums();
    std::vector<double> diagonal(columns);
    double total = 0;
    std::size_t used = 0;
    for (std::size_t column = 0; column < columns; ++column) {
        diagonal[column] = sums[column * columns + column];
        total += diagonal[column];
        used += diagonal[column] > 0 ? 1 : 0;
    }
    if (used == 0 || !std::isfinite(total)) return std::nullopt;
    const double mean_used = total / static_cast<double>(used);
    const double added = options.damping * total / static_cast<double>(columns);

    HessianFactor factor;
    factor.order = sorted_places(diagonal, options.group);
    // From the last place to the first, so that the triangle comes out upper.
    std::vector<double> turned(columns * columns);
    pool.parallel_for(columns, [&](std::size_t row, std::size_t) {
        const std::size_t from = factor.order[columns - 1 - row];
        for (std::size_t column = 0; column <= row; ++column) {
            turned[row * columns + column] =
                sums[from * columns + factor.order[columns - 1 - column]];
        }
        double& own = turned[row * columns + row];
        own = (own > 0 ? own : mean_used) + added;
    });
    if (!cholesky(turned, columns, pool)) return std::nullopt;

    factor.feedback.assign(columns * columns, 0.0f);
    factor.importance.resize(columns);
    pool.parallel_for(columns, [&](std::size_t column, std::size_t) {
        const std::size_t place = columns - 1 - column;
        const double own = turned[column * columns + column];
        factor.importance[place] = static_cast<float>(own * own);
        for (std::size_t row = column; row < columns; ++row) {
            factor.feedback[(columns - 1 - row) * columns + place] =
                static_cast<float>(turned[row * columns + column] / own);
        }
    });
    return factor;
}

}  // namespace percheron::tools
