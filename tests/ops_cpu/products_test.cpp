// Products straight from stored weights: against the oracle, and the same bits for any rows,
// threads and company.
#include <gtest/gtest.h>

#include "ops/fp4_inputs.h"
#include "ops/reference/reference_primitives.h"
#include "ops_cpu/random_data.h"

namespace percheron::ops {
namespace {

constexpr WeightFormat formats[] = {WeightFormat::bf16, WeightFormat::f32, WeightFormat::fp8_block,
                                    WeightFormat::w4a16, WeightFormat::nvfp4};
constexpr Arithmetic arithmetics[] = {Arithmetic::standard, Arithmetic::fp32};
constexpr NumericClass classes[] = {NumericClass::decode, NumericClass::prefill};

class Products : public testing::TestWithParam<std::string> {};

struct Shape {
    std::size_t n, k;
};

std::vector<Shape> shapes(Random& random) {
    std::vector<Shape> list = {{1, 1},    {4, 384},  {24, 1536}, {25, 129}, {131, 200},
                               {7, 4096}, {300, 64}, {3, 17},    {65, 512}};
    for (int i = 0; i < 6; ++i)
        list.push_back({random.between(1, 200), random.between(1, 700)});
    return list;
}

std::vector<float> product(CpuOps& cpu, const WeightMatrix& weight, std::vector<float>& x,
                           Arithmetic arithmetic,
                           NumericClass numeric_class = NumericClass::decode) {
    std::vector<float> y(x.size() / weight.k * weight.n, -1.0f);
    const Linear op{weight, rows_of(x, weight.k), rows_of(y, weight.n), arithmetic, numeric_class};
    cpu.ops.linear(std::span(&op, 1));
    return y;
}

// Bounded by the sum of magnitudes, not by the result: sums may cancel.
void expect_close(const WeightMatrix& weight, const std::vector<float>& x,
                  const std::vector<float>& y, const std::vector<float>& expected) {
    std::vector<float> row(weight.k);
    for (std::size_t n = 0; n < weight.n; ++n) {
        dequantise_row(weight, n, row.data());
        for (std::size_t r = 0; r < x.size() / weight.k; ++r) {
            double magnitude = 0;
            for (std::size_t i = 0; i < weight.k; ++i)
                magnitude += std::abs(row[i] * x[r * weight.k + i]);
            ASSERT_NEAR(y[r * weight.n + n], expected[r * weight.n + n], 2e-6 * magnitude + 1e-30)
                << name_of(weight.format) << " n " << weight.n << " k " << weight.k << " row " << r
                << " output " << n;
        }
    }
}

TEST_P(Products, AgreeWithTheOracle) {
    Random random(11);
    CpuOps cpu(GetParam());
    reference::ReferencePrimitives oracle;
    for (const WeightFormat format : formats) {
        for (Shape shape : shapes(random)) {
            shape.k = storable_width(format, shape.k);
            const StoredMatrix weight = random_matrix(random, format, shape.n, shape.k);
            for (const std::size_t rows : {std::size_t{1}, std::size_t{5}, std::size_t{19}}) {
                for (const Arithmetic arithmetic : arithmetics) {
                    std::vector<float> x = random.floats(rows * shape.k);
                    std::vector<float> expected(rows * shape.n);
                    const Linear op{weight.view, rows_of(x, shape.k), rows_of(expected, shape.n),
                                    arithmetic};
                    oracle.linear(std::span(&op, 1));
                    for (const NumericClass numeric_class : classes)
                        expect_close(weight.view, x,
                                     product(cpu, weight.view, x, arithmetic, numeric_class),
                                     expected);
                }
            }
        }
    }
}

TEST_P(Products, ARowHasTheSameBitsInAnyNumberOfRowsAndThreads) {
    Random random(12);
    CpuOps two(GetParam(), 2), one(GetParam(), 1);
    for (const WeightFormat format : formats) {
        for (const Shape base :
             {Shape{130, 384}, Shape{53, 391}, Shape{24, 1536}, Shape{300, 128}}) {
            const Shape shape{base.n, storable_width(format, base.k)};
            const StoredMatrix weight = random_matrix(random, format, shape.n, shape.k);
            constexpr std::size_t most = 255;
            std::vector<float> x = random.floats(most * shape.k);
            for (const Arithmetic arithmetic : arithmetics) {
                for (const NumericClass numeric_class : classes) {
                    const std::vector<float> all =
                        product(two, weight.view, x, arithmetic, numeric_class);
                    ASSERT_TRUE(
                        bits_equal(all, product(one, weight.view, x, arithmetic, numeric_class)));
                    for (const std::size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 64}) {
                        const std::size_t first = random.between(0, most - rows);
                        std::vector<float> part(
                            x.begin() + static_cast<std::ptrdiff_t>(first * shape.k),
                            x.begin() + static_cast<std::ptrdiff_t>((first + rows) * shape.k));
                        const std::vector<float> expected(
                            all.begin() + static_cast<std::ptrdiff_t>(first * shape.n),
                            all.begin() + static_cast<std::ptrdiff_t>((first + rows) * shape.n));
                        ASSERT_TRUE(bits_equal(
                            product(two, weight.view, part, arithmetic, numeric_class), expected))
                            << name_of(format) << " n " << shape.n << " k " << shape.k << " rows "
                            << rows << " prefill " << (numeric_class == NumericClass::prefill);
                    }
                }
            }
        }
    }
}

// Products whose inputs are rounded to FP4 first: those of rounded inputs, in any company, of rows
// that are chosen too.
TEST_P(Products, InputsOfFp4AreRoundedBefore) {
    Random random(23);
    CpuOps cpu(GetParam());
    reference::ReferencePrimitives oracle;
    constexpr std::size_t rows = 9, k = 256;
    const float input_scale = 0.021f;
    std::vector<float> x = random.floats(rows * k), rounded(rows * k);
    round_to_fp4(x, input_scale, rounded);
    for (const Arithmetic arithmetic : arithmetics) {
        for (const bool inverse : {false, true}) {
            StoredMatrix weight = random_matrix(random, WeightFormat::nvfp4, 70, k);
            const StoredMatrix other = random_matrix(random, WeightFormat::w4a16, 33, k);
            if (inverse) weight.view.global_inverse = 1 / weight.view.global_scale;
            // The definition: the codes times their scales, in full.
            std::vector<float> values = rounded;
            for (float& value : values)
                value *= input_scale;
            std::vector<float> expected(rows * 70), y(rows * 70, -1.0f), beside(rows * 33);
            const Linear plain{weight.view, rows_of(values, k), rows_of(expected, 70),
                               Arithmetic::fp32};
            oracle.linear({&plain, 1});
            WeightMatrix asked = weight.view;
            asked.input_scale = input_scale;
            const Linear set[] = {{other.view, rows_of(x, k), rows_of(beside, 33), arithmetic},
                                  {asked, rows_of(x, k), rows_of(y, 70), arithmetic}};
            cpu.ops.linear(set);
            expect_close(weight.view, values, y, expected);
            EXPECT_TRUE(bits_equal(beside, product(cpu, other.view, x, arithmetic)));

            const std::uint32_t chosen[] = {7, 0, 7};
            std::vector<float> some(3 * 70, -1.0f);
            Linear gathered{asked, rows_of(x, k), rows_of(some, 70), arithmetic};
            gathered.rows = chosen;
            cpu.ops.linear({&gathered, 1});
            for (std::size_t i = 0; i < 3; ++i) {
                const auto row = y.begin() + static_cast<std::ptrdiff_t>(chosen[i] * 70);
                EXPECT_TRUE(
                    std::equal(row, row + 70, some.begin() + static_cast<std::ptrdiff_t>(i * 70)));
            }
        }
    }
}

TEST_P(Products, ASetIsItsMembers) {
    Random random(13);
    CpuOps cpu(GetParam());
    std::vector<float> x = random.floats(3 * 256), z = random.floats(2 * 384);
    std::vector<StoredMatrix> weights;
    std::vector<std::vector<float>> together, alone;
    std::vector<Linear> ops;
    for (int i = 0; i < 10; ++i) {
        const bool first = random.between(0, 1) == 0;
        weights.push_back(random_matrix(random, formats[random.between(0, 4)],
                                        random.between(1, 90), first ? 256 : 384));
        together.emplace_back(weights.back().view.n * (first ? 3 : 2));
        alone.push_back(
            product(cpu, weights.back().view, first ? x : z, Arithmetic::standard, classes[i % 2]));
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
        const bool first = weights[i].view.k == 256;
        ops.push_back({weights[i].view, rows_of(first ? x : z, weights[i].view.k),
                       rows_of(together[i], weights[i].view.n), Arithmetic::standard,
                       classes[i % 2]});
    }
    cpu.ops.linear(ops);
    for (std::size_t i = 0; i < weights.size(); ++i)
        EXPECT_TRUE(bits_equal(together[i], alone[i])) << i;
}

TEST_P(Products, OfChosenRowsAreThoseOfTheirCopies) {
    Random random(15);
    CpuOps cpu(GetParam());
    reference::ReferencePrimitives oracle;
    for (const WeightFormat format : formats) {
        for (const NumericClass numeric_class : classes) {
            for (const std::size_t count : {1, 3, 40, 700}) {
                const std::size_t k = storable_width(format, random.between(100, 400));
                const StoredMatrix weight = random_matrix(random, format, 40, k);
                std::vector<float> x = random.floats(9 * k), copies;
                std::vector<std::uint32_t> chosen;
                for (std::size_t i = 0; i < count; ++i) {
                    chosen.push_back(static_cast<std::uint32_t>(random.between(0, 8)));
                    copies.insert(copies.end(), x.begin() + chosen.back() * k,
                                  x.begin() + (chosen.back() + 1) * k);
                }
                std::vector<float> y(count * 40), expected(count * 40);
                Linear op{weight.view, rows_of(x, k), rows_of(y, 40), Arithmetic::standard,
                          numeric_class};
                op.rows = chosen;
                cpu.ops.linear(std::span(&op, 1));
                ASSERT_TRUE(bits_equal(
                    y, product(cpu, weight.view, copies, Arithmetic::standard, numeric_class)));
                op.output = rows_of(expected, 40);
                oracle.linear(std::span(&op, 1));
                expect_close(weight.view, copies, y, expected);
            }
        }
    }
}

TEST_P(Products, WriteOnlyTheirColumnsOfAWiderMatrix) {
    Random random(14);
    CpuOps cpu(GetParam());
    const StoredMatrix weight = random_matrix(random, WeightFormat::bf16, 37, 100);
    std::vector<float> wide = random.floats(5 * 120);
    const Rows<const float> x = rows_of(wide, 120).column_slice(11, 100);
    for (const NumericClass numeric_class : classes) {
        std::vector<float> y(5 * 64, 7.0f);
        const Linear op{weight.view, x, rows_of(y, 64).column_slice(20, 37), Arithmetic::standard,
                        numeric_class};
        cpu.ops.linear(std::span(&op, 1));
        for (std::size_t r = 0; r < 5; ++r) {
            std::vector<float> row(x.row(r), x.row(r) + 100);
            const std::vector<float> expected =
                product(cpu, weight.view, row, Arithmetic::standard, numeric_class);
            for (std::size_t c = 0; c < 64; ++c)
                ASSERT_EQ(y[r * 64 + c], c < 20 || c >= 57 ? 7.0f : expected[c - 20]);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Levels, Products, testing::ValuesIn(levels()));

}  // namespace
}  // namespace percheron::ops
