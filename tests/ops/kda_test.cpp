// The convolution and the two forms of the KDA recurrence.
#include <algorithm>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "ops/random_rows.h"
#include "ops/reference/reference_primitives.h"

namespace percheron::tests {
namespace {

// One sequence's rows of a step.
struct OneSequence {
    ops::SequenceRows rows;
    std::vector<PageId> pages;
    std::vector<TokenId> tokens;
    ops::RowBatch batch;

    OneSequence(ops::NumericClass numeric_class, Position first, std::size_t count,
                Position state_position, std::size_t commit) {
        rows.first_position = first;
        rows.state_position = state_position;
        rows.row_count = static_cast<std::uint32_t>(count);
        rows.commit_rows = static_cast<std::uint32_t>(commit);
        tokens.assign(count, TokenId(0));
        batch.numeric_class = numeric_class;
        batch.sequences = {&rows, 1};
        batch.tokens = tokens;
    }
};

struct Tokens {  // what the recurrence reads, of `count` tokens
    Matrix query, key, value, decay, beta;
};

class Kda : public testing::Test {
  protected:
    static constexpr std::size_t heads = 2, dim = 12, width = heads * dim;
    static constexpr std::uint32_t ring = 24;

    Kda() : state_(heads * dim * dim, 0.0f), kept_(ring * ops::kda_kept_row(heads, dim), NAN) {
        slots_.state = state_.data();
        slots_.state_stride = state_.size();
        slots_.kept = kept_.data();
        slots_.kept_stride = kept_.size();
        slots_.ring = ring;
    }

    // Unit keys, log decays around `decay`, step sizes around `beta`; random where NaN.
    Tokens random_tokens(std::size_t count, float decay = NAN, float beta = NAN) {
        Tokens t{Matrix::random(random, count, width), Matrix::random(random, count, width),
                 Matrix::random(random, count, width), Matrix::random(random, count, width, 2.0f),
                 Matrix::random(random, count, heads, 2.0f)};
        const std::vector<float> a_log(heads, 0.3f), bias(width, -0.5f);
        oracle.kda_gates({heads, dim, a_log.data(), bias.data(), -5.0f, t.query.view(),
                          t.key.view(), t.decay.view(), t.beta.view()});
        if (!std::isnan(decay)) std::fill(t.decay.values.begin(), t.decay.values.end(), decay);
        if (!std::isnan(beta)) std::fill(t.beta.values.begin(), t.beta.values.end(), beta);
        return t;
    }

    // Rows [first, first + count) of `t`, whose row 0 is position `origin`.
    std::vector<float> run(Tokens& t, Position origin, Position first, std::size_t count,
                           ops::NumericClass numeric_class, Position state_position,
                           std::size_t commit) {
        const OneSequence step(numeric_class, first, count, state_position, commit);
        Matrix out(count, width);
        const std::size_t at = first - origin;
        const ops::KdaRecurrence op{heads,
                                    dim,
                                    t.query.view().slice(at, count),
                                    t.key.view().slice(at, count),
                                    t.value.view().slice(at, count),
                                    t.decay.view().slice(at, count),
                                    t.beta.view().slice(at, count),
                                    slots_,
                                    &step.batch,
                                    out.view()};
        if (numeric_class == ops::NumericClass::prefill) {
            oracle.kda_chunk(op);
        } else {
            oracle.kda_step(op);
        }
        return out.values;
    }

    void set_state(const std::vector<float>& state) {
        std::copy_n(state.data(), state.size(), state_.data());
    }

    Generator random{6};
    ops::reference::ReferencePrimitives oracle;
    std::vector<float> state_, kept_;
    ops::KdaSlots slots_;
};

void expect_close(const std::vector<float>& a, const std::vector<float>& b, double tolerance,
                  const std::string& what) {
    ASSERT_EQ(a.size(), b.size());
    double squares = 0, worst = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        squares += double{b[i]} * b[i];
        const double difference = std::fabs(double{a[i]} - b[i]);
        if (!(difference <= worst)) worst = difference;
    }
    EXPECT_LE(worst, tolerance * (std::sqrt(squares / static_cast<double>(b.size())) + 1e-3))
        << what;
}

// The formula once more, in double and without any tricks, from S = state.
std::vector<double> plain_recurrence(const Tokens& t, std::size_t count, std::vector<double>& state,
                                     std::size_t heads, std::size_t dim) {
    std::vector<double> out;
    for (std::size_t i = 0; i < count; ++i) {
        for (std::size_t h = 0; h < heads; ++h) {
            double* const s = state.data() + h * dim * dim;
            const auto at = [&](const Matrix& m, std::size_t c) -> double {
                return m.at(i, h * dim + c);
            };
            for (std::size_t c = 0; c < dim; ++c) {
                for (std::size_t v = 0; v < dim; ++v) {
                    s[c * dim + v] *= std::exp(at(t.decay, c));
                }
            }
            std::vector<double> delta(dim);
            for (std::size_t v = 0; v < dim; ++v) {
                double seen = 0;
                for (std::size_t c = 0; c < dim; ++c) {
                    seen += s[c * dim + v] * at(t.key, c);
                }
                delta[v] = t.beta.at(i, h) * (at(t.value, v) - seen);
            }
            for (std::size_t v = 0; v < dim; ++v) {
                double read = 0;
                for (std::size_t c = 0; c < dim; ++c) {
                    s[c * dim + v] += at(t.key, c) * delta[v];
                    read += s[c * dim + v] * at(t.query, c);
                }
                out.push_back(read);
            }
        }
    }
    return out;
}

TEST_F(Kda, BothFormsFollowTheRecurrenceAcrossChunkEdges) {
    for (const std::size_t count : {1, 2, 63, 64, 65, 128, 150}) {
        for (const bool from_state : {false, true}) {
            Tokens t = random_tokens(count);
            const Position first = from_state ? 64 : 0;
            const std::vector<float> entering = Matrix::random(random, 1, state_.size()).values;
            std::vector<double> plain_state(state_.size(), 0.0);
            if (from_state) plain_state.assign(entering.begin(), entering.end());
            const std::vector<double> plain = plain_recurrence(t, count, plain_state, heads, dim);
            const std::vector<float> expected(plain.begin(), plain.end());
            const std::vector<float> expected_state(plain_state.begin(), plain_state.end());
            const std::string what = std::to_string(count) + (from_state ? " from a state" : "");

            set_state(entering);
            expect_close(run(t, first, first, count, ops::NumericClass::prefill, first, count),
                         expected, 2e-6, "chunked, " + what);
            expect_close(state_, expected_state, 2e-6, "chunked state, " + what);
            set_state(entering);
            expect_close(run(t, first, first, count, ops::NumericClass::decode, first, count),
                         expected, 2e-6, "recurrent, " + what);
            expect_close(state_, expected_state, 2e-6, "recurrent state, " + what);
        }
    }
}

TEST_F(Kda, FormsAgreeAtExtremeGates) {
    for (const float decay : {-5.0f, -4.999f, -1e-6f, 0.0f}) {
        for (const float beta : {0.0f, 0.5f, 1.0f}) {
            Tokens t = random_tokens(130, decay, beta);
            const std::vector<float> entering = Matrix::random(random, 1, state_.size()).values;
            set_state(entering);
            const auto chunked = run(t, 64, 64, 130, ops::NumericClass::prefill, 64, 130);
            const std::vector<float> chunked_state = state_;
            set_state(entering);
            const auto recurrent = run(t, 64, 64, 130, ops::NumericClass::decode, 64, 130);
            const std::string what =
                "decay " + std::to_string(decay) + " beta " + std::to_string(beta);
            expect_close(chunked, recurrent, 5e-5, what);
            expect_close(chunked_state, state_, 5e-5, what + ", state");
        }
    }
    // Half the channels forget everything, half nothing.
    Tokens t = random_tokens(130);
    for (std::size_t i = 0; i < t.decay.values.size(); ++i) {
        t.decay.values[i] = i % 2 == 0 ? -5.0f : 0.0f;
    }
    const auto chunked = run(t, 0, 0, 130, ops::NumericClass::prefill, 0, 130);
    expect_close(chunked, run(t, 0, 0, 130, ops::NumericClass::decode, 0, 130), 1e-5, "mixed");
}

TEST_F(Kda, AnyCutOfThePrefillOnTheGridGivesTheSameBits) {
    Tokens t = random_tokens(200);
    const auto whole = run(t, 0, 0, 200, ops::NumericClass::prefill, 0, 200);
    const std::vector<float> state = state_;
    for (const std::vector<std::size_t>& cuts :
         {std::vector<std::size_t>{64, 64, 64, 8}, {128, 72}, {64, 136}, {192, 8}}) {
        std::vector<float> pieces;
        Position first = 0;
        for (const std::size_t count : cuts) {
            const auto part = run(t, 0, first, count, ops::NumericClass::prefill, first, count);
            pieces.insert(pieces.end(), part.begin(), part.end());
            first += static_cast<Position>(count);
        }
        EXPECT_EQ(pieces, whole);
        EXPECT_EQ(state_, state);
    }
}

// Every (kept, step, committed) split of the same tokens.
TEST_F(Kda, FoldingKeptRowsEqualsHavingCommittedThem) {
    constexpr Position origin = 5;
    constexpr std::size_t count = 8;
    Tokens t = random_tokens(count + 3);
    const std::vector<float> entering = Matrix::random(random, 1, state_.size()).values;
    set_state(entering);
    const auto expected = run(t, origin, origin, count, ops::NumericClass::decode, origin, count);
    const std::vector<float> expected_state = state_;
    for (std::size_t kept = 0; kept < count; ++kept) {
        for (std::size_t committed = 0; committed <= kept; ++committed) {
            set_state(entering);
            std::fill(kept_.begin(), kept_.end(), NAN);
            // Rows beyond `kept` are rejected: the next step computes those positions anew.
            auto outs =
                run(t, origin, origin, kept + 3, ops::NumericClass::decode, origin, committed);
            outs.resize(kept * width);
            const auto rest = run(t, origin, origin + static_cast<Position>(kept), count - kept,
                                  ops::NumericClass::decode,
                                  origin + static_cast<Position>(committed), count - kept);
            outs.insert(outs.end(), rest.begin(), rest.end());
            EXPECT_EQ(outs, expected) << kept << " " << committed;
            EXPECT_EQ(state_, expected_state) << kept << " " << committed;
        }
    }
}

TEST_F(Kda, UncommittedRowsLeaveTheState) {
    Tokens t = random_tokens(4);
    const std::vector<float> entering = Matrix::random(random, 1, state_.size()).values;
    set_state(entering);
    run(t, 9, 9, 4, ops::NumericClass::decode, 9, 0);
    EXPECT_EQ(state_, entering);
}

TEST_F(Kda, GatesNormaliseAndStayWithinBounds) {
    Tokens t = random_tokens(5);
    for (std::size_t row = 0; row < 5; ++row) {
        for (std::size_t h = 0; h < heads; ++h) {
            double query = 0, key = 0;
            for (std::size_t c = 0; c < dim; ++c) {
                query += std::pow(t.query.at(row, h * dim + c), 2);
                key += std::pow(t.key.at(row, h * dim + c), 2);
                EXPECT_LT(t.decay.at(row, h * dim + c), 0.0f);
                EXPECT_GT(t.decay.at(row, h * dim + c), -5.0f);
            }
            EXPECT_NEAR(key, 1.0, 1e-5);
            EXPECT_NEAR(query, 1.0 / dim, 1e-6);
            EXPECT_GT(t.beta.at(row, h), 0.0f);
            EXPECT_LT(t.beta.at(row, h), 1.0f);
        }
    }
    // The epsilon lies inside the root: a tiny vector shrinks instead of becoming a unit vector.
    Matrix tiny(1, 1, 1e-3f), other(1, 1, 1.0f), decay(1, 1, 2.0f), beta(1, 1);
    const float a_log = std::log(3.0f), bias = -1.0f;
    oracle.kda_gates(
        {1, 1, &a_log, &bias, -5.0f, other.view(), tiny.view(), decay.view(), beta.view()});
    EXPECT_NEAR(tiny.values[0], 1e-3 / std::sqrt(1e-6 + 1e-6), 1e-5);
    EXPECT_NEAR(decay.values[0], -5.0 / (1.0 + std::exp(-3.0)), 1e-5);
    EXPECT_EQ(beta.values[0], 0.5f);
}

TEST(ShortConv, AnyCutOfASequenceGivesTheSameRowsAndHistory) {
    constexpr std::size_t channels = 5, taps = 4, length = 21;
    Generator random(8);
    ops::reference::ReferencePrimitives oracle;
    Matrix in = Matrix::random(random, length, channels);
    const Matrix weight = Matrix::random(random, channels, taps);
    const auto run = [&](const std::vector<std::size_t>& cuts, std::uint32_t ring,
                         std::vector<float>& history) {
        history.assign(ring * channels, NAN);
        ops::KdaSlots slots;
        slots.conv = history.data();
        slots.conv_stride = history.size();
        slots.ring = ring;
        std::vector<float> all;
        Position first = 0;
        for (const std::size_t count : cuts) {
            const OneSequence step(ops::NumericClass::decode, first, count, first, count);
            Matrix out(count, channels);
            oracle.short_conv({in.view().slice(first, count), weight.values.data(), taps, slots,
                               &step.batch, out.view()});
            all.insert(all.end(), out.values.begin(), out.values.end());
            first += static_cast<Position>(count);
        }
        return all;
    };
    std::vector<float> history, other_history;
    const std::vector<float> whole = run({length}, 4, history);
    for (std::size_t t = 0; t < length; ++t) {
        for (std::size_t c = 0; c < channels; ++c) {
            double z = 0;
            for (std::size_t j = 0; j < taps; ++j) {
                if (t + j + 1 < taps) continue;
                z += double{weight.at(c, j)} * in.at(t + j + 1 - taps, c);
            }
            EXPECT_NEAR(whole[t * channels + c], z / (1.0 + std::exp(-z)), 1e-6);
        }
    }
    for (const std::vector<std::size_t>& cuts :
         {std::vector<std::size_t>(length, 1), {1, 2, 3, 4, 5, 6}, {20, 1}, {3, 18}}) {
        EXPECT_EQ(run(cuts, 4, other_history), whole);
        EXPECT_EQ(0, std::memcmp(history.data(), other_history.data(), 4 * history.size()));
        EXPECT_EQ(run(cuts, 9, other_history), whole);
    }
}

}  // namespace
}  // namespace percheron::tests
