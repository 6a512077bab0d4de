// Hyper-connections of the oracle: gates in their ranges, a doubly stochastic mix, and the
// direction of C.
#include <cmath>

#include <gtest/gtest.h>

#include "ops/random_rows.h"
#include "ops/reference/reference_primitives.h"

namespace percheron::tests {
namespace {

constexpr std::size_t streams = 4;
constexpr std::size_t gates = (2 + streams) * streams;

struct Gates {
    Matrix pre, post, comb;
    explicit Gates(std::size_t rows)
        : pre(rows, streams), post(rows, streams), comb(rows, streams * streams) {}
};

class Mhc : public testing::Test {
  protected:
    Gates compute(Matrix& state, const Matrix& fn, const std::vector<float>& base,
                  const std::vector<float>& scale, std::size_t iterations = 20) {
        Gates out(state.rows());
        oracle.mhc_gates({streams, iterations, 1e-5f, 1e-6f, fn.weight(), base.data(), scale.data(),
                          state.view(), out.pre.view(), out.post.view(), out.comb.view()});
        return out;
    }

    Generator random{4};
    ops::reference::ReferencePrimitives oracle;
};

TEST_F(Mhc, GatesStayInTheirRangesAndTheMixIsDoublyStochastic) {
    for (const std::size_t hidden : {1, 3, 64}) {
        Matrix state = Matrix::random(random, 6, streams * hidden, 3.0f);
        const Matrix fn = Matrix::random(random, gates, streams * hidden,
                                         0.5f / std::sqrt(static_cast<float>(4 * hidden)));
        const Gates g = compute(state, fn, Matrix::random(random, 1, gates).values, {1, 1, 0.5f});
        for (std::size_t row = 0; row < 6; ++row) {
            for (std::size_t i = 0; i < streams; ++i) {
                EXPECT_GT(g.pre.at(row, i), 0.0f);
                EXPECT_LE(g.pre.at(row, i), 1.0f + 2e-6f);
                EXPECT_GE(g.post.at(row, i), 0.0f);
                EXPECT_LE(g.post.at(row, i), 2.0f);
                double from = 0, into = 0;
                for (std::size_t j = 0; j < streams; ++j) {
                    from += g.comb.at(row, i * streams + j);
                    into += g.comb.at(row, j * streams + i);
                }
                EXPECT_NEAR(from, 1.0, 2e-2);  // rows as far as the iterations got
                EXPECT_NEAR(into, 1.0, 1e-5);  // columns were divided last
            }
        }
    }
}

TEST_F(Mhc, GatesDoNotFeelTheScaleOfTheStreams) {
    Matrix state = Matrix::random(random, 1, streams * 16), louder = state;
    for (float& value : louder.values) {
        value *= 1024.0f;
    }
    const Matrix fn = Matrix::random(random, gates, streams * 16);
    const std::vector<float> base(gates, 0.1f), scale = {1.0f, 1.5f, 0.7f};
    const Gates a = compute(state, fn, base, scale), b = compute(louder, fn, base, scale);
    for (std::size_t i = 0; i < streams * streams; ++i) {
        EXPECT_NEAR(a.comb.values[i], b.comb.values[i], 1e-4);
    }
    for (std::size_t i = 0; i < streams; ++i) {
        EXPECT_NEAR(a.pre.values[i], b.pre.values[i], 1e-4);
        EXPECT_NEAR(a.post.values[i], b.post.values[i], 1e-4);
    }
}

// With fn = 0 the gates are the bases': each of the three groups where the contract puts it.
TEST_F(Mhc, BasesAndScalesReachTheirOwnGates) {
    Matrix state = Matrix::random(random, 1, streams * 2);
    const Matrix fn(gates, streams * 2);
    std::vector<float> base(gates, 0.0f);
    for (std::size_t i = 0; i < streams; ++i) {
        base[i] = static_cast<float>(i) - 1.0f;
        base[streams + i] = 2.0f - static_cast<float>(i);
    }
    base[2 * streams + 1 * streams + 2] = 3.0f;  // source 1, destination 2
    const Gates g = compute(state, fn, base, {1, 1, 1}, 1);
    for (std::size_t i = 0; i < streams; ++i) {
        EXPECT_NEAR(g.pre.at(0, i), 1.0 / (1.0 + std::exp(-base[i])) + 1e-6, 1e-7);
        EXPECT_NEAR(g.post.at(0, i), 2.0 / (1.0 + std::exp(-base[streams + i])), 1e-6);
    }
    // One softmax over destinations, then columns divided by their sums over sources.
    const double sharp = std::exp(3.0) / (std::exp(3.0) + 3.0), flat = 0.25;
    EXPECT_NEAR(g.comb.at(0, 1 * streams + 2), sharp / (sharp + 3 * flat), 1e-5);
    EXPECT_NEAR(g.comb.at(0, 0 * streams + 2), flat / (sharp + 3 * flat), 1e-5);
    EXPECT_GT(g.comb.at(0, 1 * streams + 2), 1.5f * g.comb.at(0, 2 * streams + 1));
}

TEST_F(Mhc, UpdateMovesStreamsFromSourceToDestination) {
    constexpr std::size_t hidden = 5;
    Matrix state = Matrix::random(random, 2, streams * hidden), before = state;
    Matrix y = Matrix::random(random, 2, hidden), post = Matrix::random(random, 2, streams);
    Matrix comb = Matrix::random(random, 2, streams * streams);
    oracle.mhc_update({streams, y.view(), post.view(), comb.view(), state.view()});
    for (std::size_t row = 0; row < 2; ++row) {
        for (std::size_t j = 0; j < streams; ++j) {
            for (std::size_t i = 0; i < hidden; ++i) {
                double expected = double{post.at(row, j)} * y.at(row, i);
                for (std::size_t a = 0; a < streams; ++a) {
                    expected +=
                        double{comb.at(row, a * streams + j)} * before.at(row, a * hidden + i);
                }
                EXPECT_NEAR(state.at(row, j * hidden + i), expected, 1e-5);
            }
        }
    }
    // Only stream 1 flows, and only into stream 3.
    Matrix one(1, streams * streams), zero_post(1, streams);
    one.at(0, 1 * streams + 3) = 1.0f;
    Matrix flow = Matrix::random(random, 1, streams * hidden), source = flow;
    oracle.mhc_update(
        {streams, Matrix(1, hidden).view(), zero_post.view(), one.view(), flow.view()});
    for (std::size_t i = 0; i < hidden; ++i) {
        EXPECT_EQ(flow.at(0, 3 * hidden + i), source.at(0, 1 * hidden + i));
        EXPECT_EQ(flow.at(0, 0 * hidden + i), 0.0f);
    }
}

TEST_F(Mhc, CollapseWeighsOrAveragesTheStreams) {
    constexpr std::size_t hidden = 3;
    Matrix state = Matrix::random(random, 2, streams * hidden), out(2, hidden), normed(2, hidden);
    oracle.mhc_collapse({streams, state.view(), {}, nullptr, 1e-5f, out.view()});
    for (std::size_t i = 0; i < hidden; ++i) {
        double mean = 0;
        for (std::size_t s = 0; s < streams; ++s) {
            mean += state.at(1, s * hidden + i) / 4.0;
        }
        EXPECT_NEAR(out.at(1, i), mean, 1e-6);
    }
    Matrix pre(2, streams);
    pre.at(0, 2) = pre.at(1, 2) = 1.0f;
    const std::vector<float> norm = {1.0f, 2.0f, 3.0f};
    oracle.mhc_collapse({streams, state.view(), pre.view(), nullptr, 1e-5f, out.view()});
    oracle.mhc_collapse({streams, state.view(), pre.view(), norm.data(), 1e-5f, normed.view()});
    Matrix expected(2, hidden);
    oracle.rms_norm({out.view(), norm.data(), 1e-5f, expected.view()});
    EXPECT_EQ(normed.values, expected.values);
    for (std::size_t i = 0; i < hidden; ++i) {
        EXPECT_EQ(out.at(0, i), state.at(0, 2 * hidden + i));
    }
}

}  // namespace
}  // namespace percheron::tests
