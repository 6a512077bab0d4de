#include "tools/quantize_gptq.h"

#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "ops/weight_matrix.h"
#include "tools/quantize_formats.h"

namespace percheron::tools {
namespace {

using Matrix = std::vector<double>;

// Rows whose numbers hang together and have very different sizes, as activations do.
std::vector<float> random_rows(std::mt19937_64& random, std::size_t rows, std::size_t columns) {
    std::normal_distribution<float> normal;
    std::vector<float> mix(columns * 8), result(rows * columns);
    for (float& value : mix)
        value = normal(random);
    std::vector<float> size(columns);
    for (float& value : size)
        value = std::exp(1.5f * normal(random));
    for (std::size_t row = 0; row < rows; ++row) {
        float hidden[8];
        for (float& value : hidden)
            value = normal(random);
        for (std::size_t i = 0; i < columns; ++i) {
            float sum = 0.5f * normal(random);
            for (std::size_t j = 0; j < 8; ++j)
                sum += 0.3f * hidden[j] * mix[i * 8 + j];
            result[row * columns + i] = size[i] * sum;
        }
    }
    return result;
}

std::vector<float> random_weights(std::mt19937_64& random, std::size_t count) {
    std::normal_distribution<float> normal(0.0f, 0.04f);
    std::vector<float> weights(count);
    for (float& weight : weights)
        weight = normal(random);
    return weights;
}

std::unique_ptr<CalibrationMath> math(std::size_t threads) {
    return CalibrationMath::create(threads).value();
}

Hessian hessian_of(const std::vector<float>& rows, std::size_t columns, CalibrationMath& math) {
    Hessian hessian(columns);
    hessian.add(Rows<const float>(rows.data(), rows.size() / columns, columns), math);
    return hessian;
}

std::vector<float> values_of(const ops::WeightMatrix& matrix) {
    std::vector<float> values(matrix.n * matrix.k);
    for (std::size_t row = 0; row < matrix.n; ++row)
        ops::dequantise_row(matrix, row, values.data() + row * matrix.k);
    return values;
}

struct Int4Matrix {
    std::size_t n, k;
    std::vector<std::uint32_t> words;
    std::vector<BFloat16> scales;

    Int4Matrix(std::size_t n, std::size_t k) : n(n), k(k), words(n * k / 8), scales(n * k / 128) {}
    std::vector<float> values() const {
        return values_of({ops::WeightFormat::w4a16, n, k, words.data(), scales.data()});
    }
};

double squared_error(const Hessian& hessian, const std::vector<float>& before,
                     const std::vector<float>& after, CalibrationMath& math) {
    std::vector<float> errors(before.size());
    for (std::size_t i = 0; i < errors.size(); ++i)
        errors[i] = before[i] - after[i];
    return hessian.squared_error(
        Rows<const float>(errors.data(), errors.size() / hessian.columns(), hessian.columns()),
        math);
}

TEST(Hessian, IsTheSumOfProductsForAnyThreadsAndCuts) {
    std::mt19937_64 random(1);
    for (const std::size_t columns : {16u, 128u, 200u}) {
        const std::size_t rows = 700;
        const std::vector<float> values = random_rows(random, rows, columns);
        const auto one = math(1);
        const auto three = math(3);
        const Hessian hessian = hessian_of(values, columns, *one);
        Hessian cut(columns);
        const std::size_t first = 2 * Hessian::rows_a_sum;
        cut.add(Rows<const float>(values.data(), first, columns), *three);
        cut.add(Rows<const float>(values.data() + first * columns, rows - first, columns), *three);
        EXPECT_EQ(hessian.sums(), cut.sums());
        EXPECT_EQ(hessian.rows(), rows);
        for (std::size_t i = 0; i < columns; ++i) {
            for (std::size_t j = 0; j < columns; ++j) {
                double sum = 0, sizes = 0;
                for (std::size_t row = 0; row < rows; ++row) {
                    const double product =
                        static_cast<double>(values[row * columns + i]) * values[row * columns + j];
                    sum += product;
                    sizes += std::fabs(product);
                }
                ASSERT_NEAR(hessian.sums()[i * columns + j], sum, 1e-5 * sizes + 1e-9);
            }
        }
    }
}

TEST(Hessian, ItsFactorsGiveTheDampedMatrixBack) {
    std::mt19937_64 random(2);
    const auto pool = math(2);
    for (const std::size_t columns : {128u, 256u, 160u}) {
        std::vector<float> rows = random_rows(random, 300, columns);
        for (std::size_t row = 0; row < 300; ++row)
            rows[row * columns + 7] = 0;  // no row uses it
        const Hessian hessian = hessian_of(rows, columns, *pool);
        const FactorOptions options{0.02, 32};
        const auto factor = factorise(hessian, options, pool->pool());
        ASSERT_TRUE(factor);
        double mean = 0;
        for (std::size_t i = 0; i < columns; ++i)
            mean += hessian.sums()[i * columns + i] / static_cast<double>(columns);
        std::vector<bool> seen(columns);
        for (std::size_t i = 0; i < columns; ++i) {
            const std::uint32_t a = factor->order[i];
            seen[a] = true;
            // Groups stay together.
            EXPECT_EQ(a / 32, factor->order[i / 32 * 32] / 32);
            for (std::size_t j = i; j < columns; ++j) {
                const std::uint32_t b = factor->order[j];
                double sum = 0;
                for (std::size_t l = j; l < columns; ++l) {
                    sum += static_cast<double>(factor->feedback[i * columns + l]) *
                           factor->importance[l] * factor->feedback[j * columns + l];
                }
                double expected = hessian.sums()[a * columns + b];
                if (a == b) {
                    expected = (a == 7 ? mean * static_cast<double>(columns) /
                                             static_cast<double>(columns - 1)
                                       : expected) +
                               0.02 * mean;
                }
                const double size = std::sqrt((hessian.sums()[a * columns + a] + mean) *
                                              (hessian.sums()[b * columns + b] + mean));
                ASSERT_NEAR(sum, expected, 2e-5 * size) << i << " " << j;
            }
        }
        EXPECT_EQ(std::count(seen.begin(), seen.end(), true), static_cast<std::ptrdiff_t>(columns));
    }
    EXPECT_FALSE(factorise(Hessian(128), {}, pool->pool())) << "no row";
    std::vector<float> broken(128, std::numeric_limits<float>::infinity());
    EXPECT_FALSE(factorise(hessian_of(broken, 128, *pool), {}, pool->pool()));
}

// Upper triangular with the inverse of `h` = upperT upper.
Matrix inverse_factor(Matrix h, std::size_t k) {
    Matrix inverse(k * k);
    for (std::size_t i = 0; i < k; ++i)
        inverse[i * k + i] = 1;
    for (std::size_t i = 0; i < k; ++i) {  // Gauss and Jordan
        const double pivot = h[i * k + i];
        for (std::size_t j = 0; j < k; ++j) {
            h[i * k + j] /= pivot;
            inverse[i * k + j] /= pivot;
        }
        for (std::size_t r = 0; r < k; ++r) {
            const double factor = h[r * k + i];
            if (r == i || factor == 0) continue;
            for (std::size_t j = 0; j < k; ++j) {
                h[r * k + j] -= factor * h[i * k + j];
                inverse[r * k + j] -= factor * inverse[i * k + j];
            }
        }
    }
    Matrix upper(k * k);
    for (std::size_t i = 0; i < k; ++i) {
        for (std::size_t j = i; j < k; ++j) {
            double sum = inverse[i * k + j];
            for (std::size_t l = 0; l < i; ++l)
                sum -= upper[l * k + i] * upper[l * k + j];
            upper[i * k + j] = i == j ? std::sqrt(sum) : sum / upper[i * k + i];
        }
    }
    return upper;
}

// The published algorithm in double precision, with the scales given: a column at a time, its error
// taken off all later columns.
std::vector<double> published(const Matrix& upper, std::size_t k, std::vector<double> row,
                              const std::vector<double>& scales, std::size_t group) {
    std::vector<double> rounded(k);
    for (std::size_t j = 0; j < k; ++j) {
        const double scale = scales[j / group];
        rounded[j] = std::clamp(std::nearbyint(row[j] / scale), -8.0, 7.0) * scale;
        const double error = (row[j] - rounded[j]) / upper[j * k + j];
        for (std::size_t l = j; l < k; ++l)
            row[l] -= error * upper[j * k + l];
    }
    return rounded;
}

TEST(Gptq, RoundsLikeThePublishedAlgorithm) {
    std::mt19937_64 random(3);
    const auto pool = math(2);
    for (const std::size_t k : {128u, 256u, 384u}) {
        const std::size_t n = 37;
        const std::vector<float> rows = random_rows(random, 3 * k, k);
        const std::vector<float> weights = random_weights(random, n * k);
        const Hessian hessian = hessian_of(rows, k, *pool);
        const FactorOptions options{0.01, 128};
        const auto factor = factorise(hessian, options, pool->pool());
        ASSERT_TRUE(factor);
        Int4Matrix rounded(n, k);
        solve_w4a16(Rows<const float>(weights.data(), n, k), *factor, pool->pool(), rounded.words,
                    rounded.scales);
        const std::vector<float> values = rounded.values();
        Matrix damped(k * k);
        double mean = 0;
        for (std::size_t i = 0; i < k; ++i)
            mean += hessian.sums()[i * k + i] / static_cast<double>(k);
        for (std::size_t i = 0; i < k; ++i) {
            for (std::size_t j = 0; j < k; ++j) {
                damped[i * k + j] = hessian.sums()[factor->order[i] * k + factor->order[j]] +
                                    (i == j ? 0.01 * mean : 0.0);
            }
        }
        const Matrix upper = inverse_factor(damped, k);
        std::size_t same = 0;
        for (std::size_t row = 0; row < n; ++row) {
            std::vector<double> permuted(k), scales(k / 128);
            for (std::size_t i = 0; i < k; ++i)
                permuted[i] = weights[row * k + factor->order[i]];
            for (std::size_t group = 0; group < k / 128; ++group) {
                scales[group] = static_cast<float>(
                    rounded.scales[row * (k / 128) + factor->order[group * 128] / 128]);
            }
            const std::vector<double> expected = published(upper, k, permuted, scales, 128);
            bool equal = true;
            for (std::size_t i = 0; i < k; ++i) {
                const double scale = scales[i / 128];
                equal = equal &&
                        std::fabs(expected[i] - values[row * k + factor->order[i]]) < scale / 2;
            }
            same += equal ? 1 : 0;
        }
        // A value halfway between two codes may fall either way, and the rest of its row with it.
        EXPECT_GE(same, n - 3) << k;
    }
}

TEST(Gptq, LosesLessThanRoundingAndThanAnyOneScaleRule) {
    std::mt19937_64 random(4);
    const auto pool = math(2);
    for (int trial = 0; trial < 6; ++trial) {
        const std::size_t k = 128 * (1 + static_cast<std::size_t>(trial) % 3);
        const std::size_t n = 40;
        const std::vector<float> weights = random_weights(random, n * k);
        const std::vector<float> rows = random_rows(random, 2 * k + 100, k);
        const Hessian hessian = hessian_of(rows, k, *pool);
        const auto factor = factorise(hessian, {}, pool->pool());
        ASSERT_TRUE(factor);
        Int4Matrix nearest(n, k), calibrated(n, k), again(n, k);
        for (std::size_t row = 0; row < n; ++row) {
            round_to_w4a16(std::span(weights).subspan(row * k, k),
                           std::span(nearest.words).subspan(row * k / 8, k / 8),
                           std::span(nearest.scales).subspan(row * k / 128, k / 128));
        }
        const Rows<const float> matrix(weights.data(), n, k);
        solve_w4a16(matrix, *factor, pool->pool(), calibrated.words, calibrated.scales);
        const auto one = math(1);
        solve_w4a16(matrix, *factor, one->pool(), again.words, again.scales);
        EXPECT_EQ(calibrated.words, again.words);
        const double before = squared_error(hessian, weights, nearest.values(), *pool);
        const double after = squared_error(hessian, weights, calibrated.values(), *pool);
        EXPECT_LT(after, 0.7 * before);
        // The loss it counts is the loss there is: the direct sum over the rows.
        const std::vector<float> values = calibrated.values();
        double direct = 0;
        for (std::size_t row = 0; row < rows.size() / k; ++row) {
            for (std::size_t out = 0; out < n; ++out) {
                double off = 0;
                for (std::size_t i = 0; i < k; ++i) {
                    off += static_cast<double>(weights[out * k + i] - values[out * k + i]) *
                           rows[row * k + i];
                }
                direct += off * off;
            }
        }
        EXPECT_NEAR(after, direct, 1e-3 * direct);
    }
}

TEST(Gptq, Nvfp4LosesLessThanRounding) {
    std::mt19937_64 random(5);
    const auto pool = math(2);
    for (const std::size_t k : {64u, 160u, 256u}) {
        const std::size_t n = 33;
        const std::vector<float> weights = random_weights(random, n * k);
        const Hessian hessian = hessian_of(random_rows(random, 3 * k, k), k, *pool);
        const auto factor = factorise(hessian, {0.01, 16}, pool->pool());
        ASSERT_TRUE(factor);
        float largest = 0;
        for (const float weight : weights)
            largest = std::max(largest, std::fabs(weight));
        const float global = nvfp4_global_scale(largest);
        std::vector<std::uint8_t> codes(n * k / 2), solved_codes(n * k / 2);
        std::vector<Float8E4M3> scales(n * k / 16), solved_scales(n * k / 16);
        for (std::size_t row = 0; row < n; ++row) {
            round_to_nvfp4(std::span(weights).subspan(row * k, k), global,
                           std::span(codes).subspan(row * k / 2, k / 2),
                           std::span(scales).subspan(row * k / 16, k / 16));
        }
        solve_nvfp4(Rows<const float>(weights.data(), n, k), *factor, global, pool->pool(),
                    solved_codes, solved_scales);
        const auto values = [&](const auto& data, const auto& by) {
            return values_of({ops::WeightFormat::nvfp4, n, k, data.data(), by.data(), global});
        };
        const double before = squared_error(hessian, weights, values(codes, scales), *pool);
        const double after =
            squared_error(hessian, weights, values(solved_codes, solved_scales), *pool);
        EXPECT_LT(after, 0.7 * before) << k;
    }
}

TEST(Gptq, EveryScaleIsFiniteWhateverTheWeights) {
    std::mt19937_64 random(6);
    const auto pool = math(1);
    const std::size_t k = 128;
    const Hessian hessian = hessian_of(random_rows(random, 400, k), k, *pool);
    const auto factor = factorise(hessian, {}, pool->pool());
    const auto small_groups = factorise(hessian, {0.01, 16}, pool->pool());
    ASSERT_TRUE(factor && small_groups);
    const float sizes[] = {0.0f, 1e-45f, 1e-38f, 1e-20f, 1.0f, 1e20f, 3e38f};
    const std::size_t n = std::size(sizes);
    std::vector<float> weights(n * k);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    for (std::size_t i = 0; i < weights.size(); ++i)
        weights[i] = sizes[i / k] * uniform(random);
    Int4Matrix rounded(n, k);
    solve_w4a16(Rows<const float>(weights.data(), n, k), *factor, pool->pool(), rounded.words,
                rounded.scales);
    for (const BFloat16 scale : rounded.scales) {
        const auto value = static_cast<float>(scale);
        EXPECT_TRUE(std::isnormal(value) && value > 0);
    }
    EXPECT_EQ(rounded.words[0], 0x88888888u) << "zeros stay zeros";
    std::vector<std::uint8_t> codes(n * k / 2);
    std::vector<Float8E4M3> scales(n * k / 16);
    for (const float global : {1e-38f, 1e-4f, 1e30f}) {
        solve_nvfp4(Rows<const float>(weights.data(), n, k), *small_groups, global, pool->pool(),
                    codes, scales);
        for (const Float8E4M3 scale : scales)
            EXPECT_TRUE(scale.bits > 0 && scale.bits < 0x7f);
    }
}

TEST(QuantizeFormats, NearestValuesAreNearest) {
    const float e2m1[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    std::mt19937_64 random(7);
    std::uniform_real_distribution<float> uniform(-10.0f, 10.0f);
    for (int i = 0; i < 20000; ++i) {
        const float value = uniform(random);
        float best = 100;
        for (const float magnitude : e2m1) {
            for (const float candidate : {magnitude, -magnitude}) {
                if (std::fabs(candidate - value) < std::fabs(best - value)) best = candidate;
            }
        }
        const float rounded = nearest_e2m1(value);
        ASSERT_EQ(std::fabs(rounded - value), std::fabs(best - value)) << value;
        const unsigned code = code_e2m1(rounded);
        ASSERT_LT(code, 16u);
        ASSERT_EQ((code & 8u ? -1.0f : 1.0f) * e2m1[code & 7u], rounded);
        ASSERT_EQ(nearest_int4(value), std::clamp(std::nearbyint(value), -8.0f, 7.0f));
    }
    // Ties go to the even code.
    const std::pair<float, float> ties[] = {{0.25f, 0.0f}, {0.75f, 1.0f}, {1.25f, 1.0f},
                                            {1.75f, 2.0f}, {2.5f, 2.0f},  {3.5f, 4.0f},
                                            {5.0f, 4.0f}};
    for (const auto& [value, expected] : ties) {
        EXPECT_EQ(nearest_e2m1(value), expected);
        EXPECT_EQ(nearest_e2m1(-value), -expected);
    }
}

TEST(QuantizeFormats, Nvfp4KeepsToItsFormula) {
    std::mt19937_64 random(8);
    for (int trial = 0; trial < 200; ++trial) {
        const std::size_t k = 16 * (1 + random() % 12);
        std::vector<float> weights = random_weights(random, k);
        if (trial % 4 == 0) std::fill_n(weights.begin(), 16, 0.0f);
        float largest = 0;
        for (const float weight : weights)
            largest = std::max(largest, std::fabs(weight));
        const float global = nvfp4_global_scale(largest * (1.0f + static_cast<float>(trial % 3)));
        std::vector<std::uint8_t> codes(k / 2);
        std::vector<Float8E4M3> scales(k / 16);
        const RoundingError error = round_to_nvfp4(weights, global, codes, scales);
        const std::vector<float> values =
            values_of({ops::WeightFormat::nvfp4, 1, k, codes.data(), scales.data(), global});
        double squares = 0;
        for (std::size_t i = 0; i < k; ++i) {
            float most = 0;
            for (std::size_t j = i / 16 * 16; j < i / 16 * 16 + 16; ++j)
                most = std::max(most, std::fabs(weights[j]));
            const Float8E4M3 expected(most / (6.0f * global));
            ASSERT_EQ(scales[i / 16].bits, std::max<std::uint8_t>(expected.bits, 1));
            const float scale = static_cast<float>(scales[i / 16]) * global;
            // Steps of 2 at the upper end; FP8 may round the scale down by a sixteenth.
            ASSERT_LE(std::fabs(values[i] - weights[i]), scale * 1.0001f) << i;
            squares += std::pow(static_cast<double>(values[i]) - weights[i], 2);
        }
        EXPECT_NEAR(error.squared_error, squares, 1e-4 * squares + 1e-15);
    }
    EXPECT_EQ(nvfp4_global_scale(0.0f), 1.0f);
    EXPECT_EQ(nvfp4_global_scale(2688.0f), 1.0f);
}

}  // namespace
}  // namespace percheron::tools
