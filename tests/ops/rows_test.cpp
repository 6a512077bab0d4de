// Norms, products and activations of the oracle against what their formulas imply.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include <gtest/gtest.h>

#include "ops/random_rows.h"
#include "ops/reference/reference_primitives.h"

namespace percheron::tests {
namespace {

class RowOps : public testing::Test {
  protected:
    Generator random{3};
    ops::reference::ReferencePrimitives oracle;
};

TEST_F(RowOps, RmsNormLeavesRowsOfUnitPowerWhateverTheirScale) {
    for (const std::size_t n : {1, 2, 7, 384}) {
        Matrix in = Matrix::random(random, 5, n);
        for (std::size_t row = 0; row < 5; ++row) {
            const float scale = std::ldexp(1.0f, static_cast<int>(4 * row));
            for (std::size_t i = 0; i < n; ++i) {
                in.at(row, i) = (in.at(row, i) + 0.5f) * scale;
            }
        }
        const std::vector<float> ones(n, 1.0f);
        const std::vector<float> weight = Matrix::random(random, 1, n).values;
        Matrix unit(5, n), weighted(5, n);
        oracle.rms_norm({in.view(), ones.data(), 0.0f, unit.view()});
        oracle.rms_norm({in.view(), weight.data(), 0.0f, weighted.view()});
        for (std::size_t row = 0; row < 5; ++row) {
            double power = 0;
            for (std::size_t i = 0; i < n; ++i) {
                power += std::pow(unit.at(row, i), 2) / static_cast<double>(n);
                EXPECT_FLOAT_EQ(weighted.at(row, i), unit.at(row, i) * weight[i]);
                EXPECT_EQ(std::signbit(unit.at(row, i)), std::signbit(in.at(row, i)));
            }
            EXPECT_NEAR(power, 1.0, 1e-6);
        }
        oracle.rms_norm({in.view(), ones.data(), 0.0f, in.view()});
        EXPECT_EQ(in.values, unit.values) << "in place";
    }
    // eps is added to the mean square, inside the root.
    Matrix zero(1, 4), out(1, 4);
    zero.at(0, 0) = 2e-3f;
    const std::vector<float> ones(4, 1.0f);
    oracle.rms_norm({zero.view(), ones.data(), 3e-6f, out.view()});
    EXPECT_FLOAT_EQ(out.at(0, 0), 2e-3f / std::sqrt(1e-6f + 3e-6f));
}

TEST_F(RowOps, LayerNormCentresScalesAndShifts) {
    for (const std::size_t n : {2, 5, 128}) {
        Matrix in = Matrix::random(random, 3, n, 4.0f);
        for (float& value : in.values) {
            value += 100.0f;
        }
        const std::vector<float> weight(n, 2.0f), bias(n, -1.0f);
        Matrix out(3, n);
        oracle.layer_norm({in.view(), weight.data(), bias.data(), 0.0f, out.view()});
        for (std::size_t row = 0; row < 3; ++row) {
            double mean = 0, power = 0;
            for (std::size_t i = 0; i < n; ++i) {
                mean += out.at(row, i) / static_cast<double>(n);
            }
            for (std::size_t i = 0; i < n; ++i) {
                power += std::pow(out.at(row, i) - mean, 2) / static_cast<double>(n);
            }
            EXPECT_NEAR(mean, -1.0, 1e-5);
            EXPECT_NEAR(power, 4.0, 1e-4);
        }
    }
}

TEST_F(RowOps, GatedNormNormalisesEachHeadByItself) {
    constexpr std::size_t heads = 3, dim = 8;
    Matrix in = Matrix::random(random, 2, heads * dim), gate(2, heads * dim), out = in;
    const std::vector<float> weight = Matrix::random(random, 1, dim).values;
    // sigmoid(0) is a half; what happens in one head leaves the others alone.
    oracle.gated_norm({dim, in.view(), gate.view(), weight.data(), 0.0f, out.view()});
    Matrix changed = in, again(2, heads * dim);
    for (std::size_t i = 0; i < dim; ++i) {
        changed.at(0, dim + i) *= 3.0f;
    }
    oracle.gated_norm({dim, changed.view(), gate.view(), weight.data(), 0.0f, again.view()});
    for (std::size_t i = 0; i < out.values.size(); ++i) {
        EXPECT_NEAR(again.values[i], out.values[i], 1e-6) << i;
    }
    double power = 0;
    for (std::size_t i = 0; i < dim; ++i) {
        power += std::pow(out.at(1, i) / weight[i], 2) / dim;
    }
    EXPECT_NEAR(power, 0.25, 1e-6);
    gate.at(1, 0) = 100.0f;
    gate.at(1, 1) = -100.0f;
    oracle.gated_norm({dim, in.view(), gate.view(), weight.data(), 0.0f, again.view()});
    EXPECT_FLOAT_EQ(again.at(1, 0), 2.0f * out.at(1, 0));
    EXPECT_NEAR(again.at(1, 1), 0.0f, 1e-30);
}

TEST_F(RowOps, LinearIsTheProductOfTheDequantisedWeight) {
    for (const auto& [rows, n, k] :
         {std::tuple{1, 1, 1}, std::tuple{5, 7, 33}, std::tuple{2, 130, 129}}) {
        const Matrix weight = Matrix::random(random, n, k);
        Matrix in = Matrix::random(random, rows, k), out(rows, n);
        const ops::Linear op{weight.weight(), in.view(), out.view(), ops::Arithmetic::fp32};
        oracle.linear({&op, 1});
        for (int row = 0; row < rows; ++row) {
            for (int i = 0; i < n; ++i) {
                long double sum = 0;
                for (int j = 0; j < k; ++j) {
                    sum += static_cast<long double>(weight.at(i, j)) * in.at(row, j);
                }
                EXPECT_NEAR(out.at(row, i), static_cast<double>(sum), 1e-6 * k);
            }
        }
    }
}

TEST_F(RowOps, StandardArithmeticRoundsTheInputAndNothingElse) {
    const Matrix weight = Matrix::random(random, 9, 40);
    Matrix in = Matrix::random(random, 4, 40), rounded = in, standard(4, 9), fp32(4, 9);
    for (float& value : rounded.values) {
        value = rounded_to_bf16(value);
    }
    const ops::Linear ops[] = {
        {weight.weight(), in.view(), standard.view(), ops::Arithmetic::standard},
        {weight.weight(), rounded.view(), fp32.view(), ops::Arithmetic::fp32},
    };
    oracle.linear(ops);
    EXPECT_EQ(standard.values, fp32.values);
    const ops::Linear exact{weight.weight(), in.view(), fp32.view(), ops::Arithmetic::fp32};
    oracle.linear({&exact, 1});
    EXPECT_NE(standard.values, fp32.values);
}

TEST_F(RowOps, SwigluClampsTheGateFromAboveAndUpFromBothSides) {
    Matrix gate(1, 6), up(1, 6), out(1, 6);
    gate.values = {1.0f, 50.0f, -50.0f, 2.0f, 2.0f, 0.0f};
    up.values = {3.0f, 1.0f, 1.0f, 50.0f, -50.0f, 7.0f};
    oracle.swiglu({gate.view(), up.view(), 10.0f, out.view()});
    const auto silu = [](double x) { return x / (1.0 + std::exp(-x)); };
    EXPECT_FLOAT_EQ(out.values[0], static_cast<float>(3.0 * silu(1.0)));
    EXPECT_FLOAT_EQ(out.values[1], static_cast<float>(silu(10.0)));
    EXPECT_NEAR(out.values[2], 0.0f, 1e-19);  // not clamped to -10: silu(-10) is -4.5e-4
    EXPECT_FLOAT_EQ(out.values[3], static_cast<float>(10.0 * silu(2.0)));
    EXPECT_FLOAT_EQ(out.values[4], static_cast<float>(-10.0 * silu(2.0)));
    EXPECT_EQ(out.values[5], 0.0f);
}

TEST_F(RowOps, RouterChoosesByBiasedScoreAndWeighsByThePlainOne) {
    for (int trial = 0; trial < 50; ++trial) {
        const std::size_t experts = 1 + random() % 40;
        const std::size_t chosen = 1 + random() % experts;
        const Matrix weight = Matrix::random(random, experts, 6);
        const std::vector<float> bias = Matrix::random(random, 1, experts, 0.3f).values;
        Matrix in = Matrix::random(random, 3, 6), weights(3, chosen);
        std::vector<std::uint32_t> choice(3 * chosen);
        const bool normalise = trial % 2 == 0;
        oracle.router({weight.weight(), bias.data(), 2.5f, normalise, in.view(),
                       Rows<std::uint32_t>(choice.data(), 3, chosen), weights.view()});
        for (std::size_t row = 0; row < 3; ++row) {
            std::vector<double> score(experts);
            for (std::size_t e = 0; e < experts; ++e) {
                double logit = 0;
                for (std::size_t i = 0; i < 6; ++i) {
                    logit += double{weight.at(e, i)} * in.at(row, i);
                }
                score[e] = 1.0 / (1.0 + std::exp(-logit));
            }
            const std::uint32_t* const own = choice.data() + row * chosen;
            const std::set<std::uint32_t> distinct(own, own + chosen);
            ASSERT_EQ(distinct.size(), chosen);
            double worst_chosen = INFINITY, best_left = -INFINITY, sum = 0, total = 0;
            for (std::size_t e = 0; e < experts; ++e) {
                const double biased = score[e] + bias[e];
                if (distinct.count(static_cast<std::uint32_t>(e)) != 0) {
                    worst_chosen = std::min(worst_chosen, biased);
                    sum += score[e];
                } else {
                    best_left = std::max(best_left, biased);
                }
            }
            EXPECT_GE(worst_chosen, best_left - 1e-6);
            for (std::size_t j = 0; j < chosen; ++j) {
                total += weights.at(row, j);
                EXPECT_NEAR(weights.at(row, j), 2.5 * score[own[j]] / (normalise ? sum : 1.0),
                            1e-5);
            }
            if (normalise) {
                EXPECT_NEAR(total, 2.5, 1e-5);
            }
        }
    }
}

TEST_F(RowOps, RouterTiesGoToTheLowerExpert) {
    const Matrix weight(8, 2);  // zero: every score is a half
    const std::vector<float> bias = {0.1f, 0.2f, 0.1f, 0.2f, 0.1f, 0.2f, 0.1f, 0.1f};
    Matrix in(1, 2, 1.0f), weights(1, 5);
    std::vector<std::uint32_t> choice(5);
    oracle.router({weight.weight(), bias.data(), 1.0f, true, in.view(),
                   Rows<std::uint32_t>(choice.data(), 1, 5), weights.view()});
    EXPECT_EQ(choice, (std::vector<std::uint32_t>{1, 3, 5, 0, 2}));
}

TEST_F(RowOps, CombinedExpertsAreTheWeightedRowsAndTheSharedOne) {
    Matrix experts = Matrix::random(random, 6, 4), weights = Matrix::random(random, 3, 2);
    Matrix shared = Matrix::random(random, 3, 4), out = shared;
    std::vector<std::uint32_t> place = {5, 0, 2, 4, 1, 3};
    oracle.combine_experts({experts.view(), Rows<const std::uint32_t>(place.data(), 3, 2),
                            weights.view(), out.view(), out.view()});
    for (std::size_t row = 0; row < 3; ++row) {
        for (std::size_t i = 0; i < 4; ++i) {
            EXPECT_NEAR(out.at(row, i),
                        weights.at(row, 0) * experts.at(place[2 * row], i) +
                            weights.at(row, 1) * experts.at(place[2 * row + 1], i) +
                            shared.at(row, i),
                        1e-5);
        }
    }
}

}  // namespace
}  // namespace percheron::tests
