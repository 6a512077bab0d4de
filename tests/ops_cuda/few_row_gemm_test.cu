#include <algorithm>
#include <memory>

#include "ops/cuda/few_row_gemm.h"
#include "ops_cuda/check.h"
#include "ops_cuda/support.h"

using namespace percheron;
using namespace percheron::check;
using ops::WeightFormat;

namespace {

constexpr WeightFormat formats[] = {WeightFormat::bf16, WeightFormat::fp8_block,
                                    WeightFormat::w4a16, WeightFormat::nvfp4};
constexpr int row_counts[] = {1, 3, 7, 8, 9, 16, 17, 64, 255, 512};
constexpr int most_rows = 512;
constexpr float limit = 10.0f;

struct Shape {
    std::size_t n, k;
};

// y = W x in double for one row; adds every squared product to `terms`.
std::vector<double> product(const StoredMatrix& matrix, const __nv_bfloat16* x,
                            double* terms = nullptr) {
    const auto& view = matrix.view();
    std::vector<float> weights(view.k);
    std::vector<double> y(view.n);
    for (std::size_t n = 0; n < view.n; ++n) {
        ops::dequantise_row(view, n, weights.data());
        for (std::size_t k = 0; k < view.k; ++k) {
            const double term =
                static_cast<double>(weights[k]) * static_cast<double>(__bfloat162float(x[k]));
            y[n] += term;
            if (terms != nullptr) *terms += term * term;
        }
    }
    return y;
}

// Against the size that the values have without cancellation, `terms`: the root of the sum of the
// squared products, about what a sum of random signs comes to.
double relative_error(std::span<const float> got, std::span<const double> expected,
                      double terms = 0) {
    double error = 0, norm = terms;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double difference = got[i] - expected[i];
        error += difference * difference;
        norm += expected[i] * expected[i];
    }
    return std::sqrt(error / (norm + 1e-300));  // a NaN stays one and fails every comparison
}

std::vector<float> widened(const std::vector<__nv_bfloat16>& values) {
    std::vector<float> result(values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
        result[i] = __bfloat162float(values[i]);
    return result;
}

bool same_bits(const float* a, const float* b, std::size_t count) {
    return std::memcmp(a, b, count * sizeof(float)) == 0;
}

void check_shape(WeightFormat format, Shape shape, Random& random) {
    const StoredMatrix stored(format, shape.n, shape.k, random);
    const PackedOnDevice packed(stored);
    const std::size_t x_stride = (shape.k + 127) / 128 * 128;
    const auto x_host = as_bf16(normals(random, most_rows * x_stride));
    const OnDevice<__nv_bfloat16> x(x_host);
    const std::size_t stride = shape.n + 5;
    OnDevice<float> y(most_rows * stride);
    const auto run = [&](const __nv_bfloat16* input, int rows) {
        y.poison();
        const ops::cuda::FewRowProduct one{packed.view(), {},
                                           input,         static_cast<int>(x_stride),
                                           y.data(),      static_cast<int>(stride),
                                           false};
        CHECK_OK(ops::cuda::few_row_gemm({&one, 1}, rows, limit, {}));
        return y.download();
    };
    const auto whole = run(x.data(), most_rows);
    for (int row : {0, 1, 7, 8, 100, 511}) {
        double terms = 0;
        const auto expected = product(stored, x_host.data() + row * x_stride, &terms);
        const double error =
            relative_error({whole.data() + row * stride, shape.n}, expected, terms);
        CHECK_THAT(error < 2e-6, "%s %zux%zu row %d: error %.3g",
                   std::string(name_of(format)).c_str(), shape.n, shape.k, row, error);
        CHECK_THAT(std::isnan(whole[row * stride + shape.n]), "row %d wrote past its end", row);
    }
    for (int rows : row_counts) {
        // From another place in the batch, so that a row meets other neighbours and lanes.
        const int first = static_cast<int>(random.below(most_rows - rows + 1));
        const auto some = run(x.data() + first * x_stride, rows);
        int different = 0;
        for (int row = 0; row < rows; ++row)
            different += !same_bits(some.data() + row * stride,
                                    whole.data() + (first + row) * stride, shape.n);
        CHECK_THAT(different == 0, "%s %zux%zu: %d of %d rows changed their bits",
                   std::string(name_of(format)).c_str(), shape.n, shape.k, different, rows);
        if (rows < most_rows)
            CHECK_THAT(std::isnan(some[rows * stride]), "%d rows wrote a row too many", rows);
    }
}

}  // namespace

KERNEL_TEST(few_row_gemm_of_every_format_and_row_count) {
    Random random(1);
    constexpr Shape shapes[] = {{16, 128},  {1, 384},    {100, 256},  {130, 512}, {257, 1024},
                                {64, 1536}, {300, 2048}, {513, 2304}, {40, 4096}, {48, 8192}};
    for (WeightFormat format : formats) {
        for (Shape shape : shapes)
            check_shape(format, shape, random);
    }
    for (Shape shape : {Shape{33, 200}, Shape{17, 8}, Shape{65, 1032}})
        check_shape(WeightFormat::bf16, shape, random);
    // So large that the rows of many share a place, with blocks of several sizes and turns on a
    // device of 132 multiprocessors, over 1 to 8 slices.
    for (Shape shape : {Shape{20480, 640}, Shape{24890, 512}, Shape{16801, 1152},
                        Shape{14101, 2176}, Shape{21120, 256}, Shape{25400, 384}})
        check_shape(WeightFormat::bf16, shape, random);
    // Fewer outputs in eight slices, which two or eight blocks have together there.
    for (Shape shape : {Shape{4096, 2048}, Shape{2336, 4096}, Shape{3111, 2152}, Shape{288, 4096}})
        check_shape(WeightFormat::bf16, shape, random);
    check_shape(WeightFormat::fp8_block, {150, 200}, random);
    check_shape(WeightFormat::nvfp4, {50, 176}, random);
}

// Codes that a kernel keeps as tiny numbers must not lose anything beside small rows, nor may what
// makes up for it overflow beside large ones: rows a power of two larger give results so much
// larger.
KERNEL_TEST(few_row_gemm_of_small_and_large_rows) {
    Random random(4);
    constexpr std::size_t n = 40, k = 2048, rows = 11;
    for (WeightFormat format : formats) {
        const StoredMatrix stored(format, n, k, random);
        const PackedOnDevice packed(stored);
        const auto values = widened(as_bf16(normals(random, rows * k)));
        const auto product_of = [&](float factor) {
            std::vector<float> scaled = values;
            for (float& value : scaled)
                value *= factor;
            const OnDevice<__nv_bfloat16> x(as_bf16(scaled));
            OnDevice<float> y(rows * n);
            y.poison();
            const ops::cuda::FewRowProduct one{
                packed.view(),       {},   x.data(), static_cast<int>(k), y.data(),
                static_cast<int>(n), false};
            CHECK_OK(ops::cuda::few_row_gemm({&one, 1}, static_cast<int>(rows), limit, {}));
            return y.download();
        };
        const auto plain = product_of(1.0f);
        for (const float factor : {0x1p-24f, 0x1p-10f, 0x1p24f}) {
            const auto scaled = product_of(factor);
            int different = 0;
            for (std::size_t i = 0; i < plain.size(); ++i)
                different += scaled[i] != plain[i] * factor;
            CHECK_THAT(different == 0, "%s: %d of %zu results of rows times %g differ",
                       std::string(name_of(format)).c_str(), different, plain.size(), factor);
        }
    }
}

KERNEL_TEST(few_row_gemm_of_several_matrices_in_one_launch) {
    Random random(2);
    for (WeightFormat format : formats) {
        // Of bf16 so many that many rows' kernel of large matrices has them.
        const bool large = format == WeightFormat::bf16;
        const std::size_t widths[] = {large ? 12000u : 200u, 16, 5, 128, large ? 3300u : 300u};
        const std::size_t k = large ? 1024 : 2048;
        std::vector<std::unique_ptr<StoredMatrix>> stored;
        std::vector<std::unique_ptr<PackedOnDevice>> packed;
        std::size_t total = 0;
        for (std::size_t n : widths) {
            stored.push_back(std::make_unique<StoredMatrix>(format, n, k, random));
            packed.push_back(std::make_unique<PackedOnDevice>(*stored.back()));
            total += n;
        }
        for (int rows : {1, 9, 40, 500}) {
            const auto x_host = as_bf16(normals(random, rows * k));
            const OnDevice<__nv_bfloat16> x(x_host);
            OnDevice<float> y(rows * total);
            y.poison();
            std::vector<ops::cuda::FewRowProduct> products;
            std::size_t first = 0;
            for (const auto& matrix : packed) {
                products.push_back({matrix->view(),
                                    {},
                                    x.data(),
                                    static_cast<int>(k),
                                    y.data() + first,
                                    static_cast<int>(total),
                                    false});
                first += matrix->view().n;
            }
            CHECK_OK(ops::cuda::few_row_gemm(products, rows, limit, {}));
            const auto result = y.download();
            for (int row = 0; row < rows; row += 4 + rows / 16) {
                first = 0;
                for (const auto& matrix : stored) {
                    double terms = 0;
                    const auto expected = product(*matrix, x_host.data() + row * k, &terms);
                    const double error = relative_error(
                        {result.data() + row * total + first, matrix->view().n}, expected, terms);
                    CHECK_THAT(error < 2e-6, "row %d, columns from %zu: error %.3g", row, first,
                               error);
                    first += matrix->view().n;
                }
            }
        }
    }
}

// Heads with inputs of their own, and matrices with rows of their own in one launch.  Of many rows
// and many outputs units of several sizes must stay within one of them.
KERNEL_TEST(few_row_gemm_of_matrices_with_inputs_of_their_own) {
    Random random(5);
    struct Set {
        std::size_t matrices, heads, outputs, k;  // outputs and k of a head
    };
    for (Set set : {Set{1, 64, 512, 256}, Set{1, 64, 256, 512}, Set{2, 1, 8192, 128},
                    Set{2, 1, 10000, 256}, Set{1, 5, 96, 384}, Set{2, 40, 160, 128}}) {
        const std::size_t n = set.heads * set.outputs, x_stride = set.heads * set.k;
        std::vector<std::unique_ptr<StoredMatrix>> stored;
        std::vector<std::unique_ptr<PackedOnDevice>> packed;
        std::vector<std::vector<__nv_bfloat16>> x_host;
        std::vector<std::unique_ptr<OnDevice<__nv_bfloat16>>> x;
        for (std::size_t i = 0; i < set.matrices; ++i) {
            stored.push_back(std::make_unique<StoredMatrix>(WeightFormat::bf16, n, set.k, random));
            packed.push_back(std::make_unique<PackedOnDevice>(*stored.back()));
            x_host.push_back(as_bf16(normals(random, most_rows * x_stride)));
            x.push_back(std::make_unique<OnDevice<__nv_bfloat16>>(x_host.back()));
        }
        const std::size_t stride = set.matrices * n;
        OnDevice<float> y(most_rows * stride);
        const auto run = [&](std::size_t first, int rows) {
            y.poison();
            std::vector<ops::cuda::FewRowProduct> products(set.matrices);
            for (std::size_t i = 0; i < set.matrices; ++i) {
                products[i].weight = packed[i]->view();
                products[i].x = x[i]->data() + first * x_stride;
                products[i].x_stride = static_cast<int>(x_stride);
                products[i].y = y.data() + i * n;
                products[i].y_stride = static_cast<int>(stride);
                if (set.heads > 1) {
                    products[i].outputs_per_input = static_cast<int>(set.outputs);
                    products[i].input_step = static_cast<int>(set.k);
                }
            }
            CHECK_OK(ops::cuda::few_row_gemm(products, rows, limit, {}));
            return y.download();
        };
        constexpr int many = 70;
        const auto whole = run(0, many);
        for (std::size_t row : {0u, 33u, 69u}) {
            for (std::size_t i = 0; i < set.matrices; ++i) {
                std::vector<double> expected(n);
                double terms = 0;
                std::vector<float> weights(set.k);
                for (std::size_t o = 0; o < n; ++o) {
                    ops::dequantise_row(stored[i]->view(), o, weights.data());
                    const __nv_bfloat16* const from =
                        x_host[i].data() + row * x_stride + o / set.outputs * set.k;
                    for (std::size_t k = 0; k < set.k; ++k) {
                        const double term = static_cast<double>(weights[k]) *
                                            static_cast<double>(__bfloat162float(from[k]));
                        expected[o] += term;
                        terms += term * term;
                    }
                }
                const double error =
                    relative_error({whole.data() + row * stride + i * n, n}, expected, terms);
                CHECK_THAT(error < 2e-6, "%zu heads of %zux%zu, matrix %zu, row %zu: error %.3g",
                           set.heads, set.outputs, set.k, i, row, error);
            }
        }
        for (int rows : {1, 7, 9, 20, 33, 64}) {
            const auto first = static_cast<std::size_t>(random.below(many - rows + 1));
            const auto some = run(first, rows);
            CHECK_THAT(same_bits(some.data(), whole.data() + first * stride, rows * stride),
                       "%zu heads of %zux%zu at %d rows: bits changed", set.heads, set.outputs,
                       set.k, rows);
        }
    }
}

KERNEL_TEST(few_row_gemm_of_gate_and_up) {
    Random random(3);
    for (WeightFormat format : formats) {
        std::vector<Shape> shapes = {{128, 384}, {100, 2048}, {70, 4096}};
        // Of many rows two or eight blocks have eight slices together.
        if (format == WeightFormat::bf16)
            shapes.insert(shapes.end(), {Shape{2048, 2048}, Shape{1100, 2304}});
        for (Shape shape : shapes) {
            const StoredMatrix gate(format, shape.n, shape.k, random);
            const StoredMatrix up(format, shape.n, shape.k, random);
            const PackedOnDevice packed_gate(gate), packed_up(up);
            // Large inputs: both clamps must bite.
            const auto x_host = as_bf16(normals(random, most_rows * shape.k, 8.0f));
            const OnDevice<__nv_bfloat16> x(x_host);
            OnDevice<__nv_bfloat16> y(most_rows * shape.n);
            const auto run = [&](int first, int rows) {
                y.poison();
                const ops::cuda::FewRowProduct one{packed_gate.view(),
                                                   packed_up.view(),
                                                   x.data() + first * shape.k,
                                                   static_cast<int>(shape.k),
                                                   y.data(),
                                                   static_cast<int>(shape.n),
                                                   true};
                CHECK_OK(ops::cuda::few_row_gemm({&one, 1}, rows, limit, {}));
                return widened(y.download());
            };
            const auto whole = run(0, most_rows);
            int clamped = 0;
            for (int row : {0, 9, 300}) {
                const auto g = product(gate, x_host.data() + row * shape.k);
                const auto u = product(up, x_host.data() + row * shape.k);
                std::vector<double> expected(shape.n);
                for (std::size_t i = 0; i < shape.n; ++i) {
                    clamped += g[i] > limit || std::abs(u[i]) > limit;
                    const double a = std::min<double>(g[i], limit);
                    expected[i] = a / (1 + std::exp(-a)) * std::clamp<double>(u[i], -limit, limit);
                }
                const double error =
                    relative_error({whole.data() + row * shape.n, shape.n}, expected);
                CHECK_THAT(error < 3e-3, "%s row %d: error %.3g",
                           std::string(name_of(format)).c_str(), row, error);
            }
            CHECK_THAT(clamped > 0, "no value met a clamp");
            for (int rows : row_counts) {
                const int first = static_cast<int>(random.below(most_rows - rows + 1));
                const auto some = run(first, rows);
                CHECK_THAT(same_bits(some.data(), whole.data() + first * shape.n, rows * shape.n),
                           "%s at %d rows: bits changed", std::string(name_of(format)).c_str(),
                           rows);
            }
        }
    }
}
