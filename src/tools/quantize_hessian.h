// What the inputs of a matrix say about its weights: H = sum over calibration rows of x xT.
//
// The squared error that an error E [n, k] of the weights makes in the outputs of those rows is
// trace(E H ET).  factorise() takes H apart for the rounding of quantize_gptq.h:
//   H' = P (H + damping * mean diagonal * I) PT = U diag(d) UT      U upper triangular, ones on its
//                                                                   diagonal
// so that trace(E H' ET) = sum over rows and columns of d_j (E U)_j^2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/thread_pool.h"
#include "core/views.h"
#include "ops/primitives.h"

namespace percheron::tools {

// Products with single-precision inputs, split over a pool.  The calibration's matrix work.
class CalibrationMath {
  public:
    // Errors: of choose_level().
    static Result<std::unique_ptr<CalibrationMath>> create(std::size_t threads);
    virtual ~CalibrationMath() = default;
    virtual ops::Primitives& primitives() = 0;
    virtual ThreadPool& pool() = 0;
};

class Hessian {
  public:
    explicit Hessian(std::size_t columns) : columns_(columns), sums_(columns * columns) {}

    // Rows [any number, columns].  The sums do not depend on the number of threads, nor on how the
    // rows are cut as long as the cuts lie on multiples of rows_a_sum.
    static constexpr std::size_t rows_a_sum = 256;
    void add(Rows<const float> rows, CalibrationMath& math);

    std::size_t columns() const { return columns_; }
    std::size_t rows() const { return rows_; }
    const std::vector<double>& sums() const { return sums_; }  // [columns][columns]

    // trace(E H ET) for E [n, columns].
    double squared_error(Rows<const float> errors, CalibrationMath& math) const;

  private:
    std::size_t columns_;
    std::size_t rows_ = 0;
    std::vector<double> sums_;
    std::vector<float> transposed_, products_;
};

// U and d of a permuted Hessian.
struct HessianFactor {
    std::vector<std::uint32_t> order;  // order[i]: the column that stands at place i
    std::vector<float> feedback;       // U [columns][columns]
    std::vector<float> importance;     // d [columns]

    std::size_t columns() const { return order.size(); }
};

struct FactorOptions {
    double damping = 0.01;    // of the mean diagonal
    std::size_t group = 128;  // columns that share scales stay together
};

// Places follow the diagonal: the group with the largest sum first, the largest column of each
// group first, equals in their old order.  A column that no row used (diagonal 0) is treated as one
// of mean size without relations.  Nothing: H holds something not finite, or no row was added.
std::optional<HessianFactor> factorise(const Hessian& hessian, const FactorOptions& options,
                                       ThreadPool& pool);

}  // namespace percheron::tools
