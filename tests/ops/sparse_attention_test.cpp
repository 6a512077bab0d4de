// The pooled indexer and latent attention of the oracle.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "ops/random_rows.h"
#include "ops/reference/reference_primitives.h"

namespace percheron::tests {
namespace {

constexpr std::size_t dim = 6, heads = 3, pool = 4, latent = 10;

// Pages in fp32 for one sequence, scattered.
class Caches {
  public:
    explicit Caches(std::size_t positions)
        : latents_(memory(positions) * 64 * latent, NAN),
          pooled_(memory(positions) * 64 / pool * dim, NAN),
          tails_(ring * 2 * dim, NAN) {
        for (std::size_t page = memory(positions); page > 0; --page) {
            page_ids.push_back(PageId(static_cast<std::uint32_t>(page - 1)));
        }
        views.latents = latents_.data();
        views.latent_dtype = views.pooled_dtype = DType::f32;
        views.latent_page_bytes = 64 * latent * sizeof(float);
        views.pooled = pooled_.data();
        views.pooled_page_bytes = 64 / pool * dim * sizeof(float);
        views.tails = tails_.data();
        views.tail_stride = tails_.size();
        views.tail_ring = ring;
    }
    static constexpr std::uint32_t ring = 11;

    float* pooled(std::size_t index) {
        const std::size_t page = static_cast<std::size_t>(to_int(page_ids[index * pool / 64]));
        return pooled_.data() + page * 64 / pool * dim + index * pool % 64 / pool * dim;
    }
    const std::vector<float>& pooled_memory() const { return pooled_; }

    ops::LatentPages views;
    std::vector<PageId> page_ids;

  private:
    static std::size_t memory(std::size_t positions) { return (positions + 63) / 64; }
    std::vector<float> latents_, pooled_, tails_;
};

struct Step {
    Step(const Caches& caches, Position first, std::size_t count) {
        rows.first_position = rows.state_position = first;
        rows.row_count = rows.commit_rows = static_cast<std::uint32_t>(count);
        rows.pages = caches.page_ids;
        tokens.assign(count, TokenId(0));
        batch.sequences = {&rows, 1};
        batch.tokens = tokens;
    }
    ops::SequenceRows rows;
    std::vector<TokenId> tokens;
    ops::RowBatch batch;
};

class SparseAttention : public testing::Test {
  protected:
    // Pools of all positions, computed in steps of the given sizes.
    void index(Caches& caches, Matrix& key, Matrix& gate, const Matrix& ape,
               const std::vector<std::size_t>& cuts) {
        Position first = 0;
        for (const std::size_t count : cuts) {
            const Step step(caches, first, count);
            oracle.index_pool({pool, key.view().slice(first, count),
                               gate.view().slice(first, count), ape.values.data(), caches.views,
                               &step.batch});
            first += static_cast<Position>(count);
        }
    }

    // The selection of one query at position t.
    std::vector<std::uint32_t> select(Caches& caches, Position t, Matrix& query, Matrix& weight,
                                      std::size_t topk) {
        const Step step(caches, t, 1);
        std::vector<std::uint32_t> positions(topk + pool - 1), counts(1);
        oracle.select_tokens({heads, dim, pool, topk, query.view(), weight.view(), caches.views,
                              &step.batch, ops::Arithmetic::fp32,
                              Rows<std::uint32_t>(positions.data(), 1, positions.size()), counts});
        positions.resize(counts[0]);
        return positions;
    }

    double score(Caches& caches, std::size_t index, const Matrix& query, const Matrix& weight) {
        double total = 0;
        for (std::size_t h = 0; h < heads; ++h) {
            double dot = 0;
            for (std::size_t c = 0; c < dim; ++c) {
                dot += double{query.at(0, h * dim + c)} * caches.pooled(index)[c];
            }
            total += weight.at(0, h) / std::sqrt(double{heads}) *
                     std::max(0.0, dot / std::sqrt(double{dim}));
        }
        return total;
    }

    Generator random{9};
    ops::reference::ReferencePrimitives oracle;
};

TEST_F(SparseAttention, PoolsAreWeightedMeansAndDoNotDependOnTheCut) {
    constexpr std::size_t length = 135;
    Matrix key = Matrix::random(random, length, dim), gate = Matrix::random(random, length, dim);
    const Matrix ape = Matrix::random(random, pool, dim);
    Caches whole(length);
    index(whole, key, gate, ape, {length});
    for (std::size_t p = 0; p < length / pool; ++p) {
        for (std::size_t c = 0; c < dim; ++c) {
            double sum = 0, weighted = 0;
            for (std::size_t j = 0; j < pool; ++j) {
                const double e = std::exp(double{gate.at(p * pool + j, c)} + ape.at(j, c));
                sum += e;
                weighted += e * key.at(p * pool + j, c);
            }
            EXPECT_NEAR(whole.pooled(p)[c], weighted / sum, 1e-6);
        }
    }
    for (const std::vector<std::size_t>& cuts :
         {std::vector<std::size_t>(length, 1), {64, 71}, {2, 3, 5, 7, 1, 1, 1, 115}}) {
        Caches cut(length);
        index(cut, key, gate, ape, cuts);
        EXPECT_EQ(0, std::memcmp(cut.pooled_memory().data(), whole.pooled_memory().data(),
                                 4 * whole.pooled_memory().size()));
    }
    // Beyond the last complete pool nothing was written.
    EXPECT_TRUE(std::isnan(whole.pooled(length / pool)[0]));
}

TEST_F(SparseAttention, EverythingIsSelectedUntilTheFirstTokenThatCanDropSomething) {
    constexpr std::size_t topk = 16;
    Matrix key = Matrix::random(random, 40, dim), gate(40, dim);
    Caches caches(40);
    index(caches, key, gate, Matrix(pool, dim), {40});
    Matrix query = Matrix::random(random, 1, heads * dim),
           weight = Matrix::random(random, 1, heads);
    for (Position t = 0; t < 40; ++t) {
        const auto positions = select(caches, t, query, weight, topk);
        const std::size_t visible = t + 1;
        if (visible < topk + pool) {
            std::vector<std::uint32_t> everything(visible);
            std::iota(everything.begin(), everything.end(), 0u);
            EXPECT_EQ(positions, everything) << t;
        } else {
            EXPECT_EQ(positions.size(), topk + visible % pool) << t;
        }
    }
}

TEST_F(SparseAttention, TheBestPoolsAndTheTailAreSelectedInOrder) {
    for (int trial = 0; trial < 60; ++trial) {
        const std::size_t length = 1 + random() % 200, topk = pool * (1 + random() % 12);
        Matrix key = Matrix::random(random, length, dim),
               gate = Matrix::random(random, length, dim);
        Caches caches(length);
        index(caches, key, gate, Matrix::random(random, pool, dim), {length});
        Matrix query = Matrix::random(random, 1, heads * dim);
        Matrix weight = Matrix::random(random, 1, heads);
        const auto t = static_cast<Position>(length - 1);
        const auto positions = select(caches, t, query, weight, topk);
        ASSERT_TRUE(std::is_sorted(positions.begin(), positions.end()));
        const std::set<std::uint32_t> chosen(positions.begin(), positions.end());
        ASSERT_EQ(chosen.size(), positions.size());
        const std::size_t candidates = length / pool;
        double worst_chosen = INFINITY, best_left = -INFINITY;
        std::size_t pools = 0;
        for (std::size_t p = 0; p < candidates; ++p) {
            const auto first = static_cast<std::uint32_t>(p * pool);
            const bool taken = chosen.count(first) != 0;
            for (std::uint32_t j = 1; j < pool; ++j) {
                EXPECT_EQ(chosen.count(first + j) != 0, taken) << "a pool is taken whole";
            }
            const double s = score(caches, p, query, weight);
            pools += taken ? 1 : 0;
            (taken ? worst_chosen : best_left) =
                taken ? std::min(worst_chosen, s) : std::max(best_left, s);
        }
        EXPECT_EQ(pools, std::min(candidates, topk / pool));
        EXPECT_GE(worst_chosen, best_left - 1e-7);
        for (std::size_t p = candidates * pool; p < length; ++p) {
            EXPECT_TRUE(chosen.count(static_cast<std::uint32_t>(p)) != 0) << "the tail";
        }
    }
}

// The query's own token may complete the best pool.
TEST_F(SparseAttention, AQueryCanSelectThePoolItCompletes) {
    constexpr std::size_t topk = 4;
    Matrix key(24, dim), gate(24, dim);
    for (std::size_t t = 0; t < 24; ++t) {
        key.at(t, 0) = static_cast<float>(t / pool);
    }
    Caches caches(24);
    index(caches, key, gate, Matrix(pool, dim), {24});
    Matrix query(1, heads * dim), weight(1, heads, 1.0f);
    for (std::size_t h = 0; h < heads; ++h) {
        query.at(0, h * dim) = 1.0f;
    }
    EXPECT_EQ(select(caches, 23, query, weight, topk),
              (std::vector<std::uint32_t>{20, 21, 22, 23}));
    EXPECT_EQ(select(caches, 22, query, weight, topk),
              (std::vector<std::uint32_t>{16, 17, 18, 19, 20, 21, 22}));
}

TEST_F(SparseAttention, TiesGoToTheLowerPool) {
    Matrix key(40, dim, 1.0f), gate(40, dim);
    Caches caches(40);
    index(caches, key, gate, Matrix(pool, dim), {40});
    Matrix negative(1, heads * dim, -1.0f), weight(1, heads, 1.0f);  // every score is 0
    EXPECT_EQ(select(caches, 39, negative, weight, 8),
              (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(SparseAttention, AbsorbedAttentionIsTheExpandedOne) {
    constexpr std::size_t keys = 7, values = 5;
    const ops::LatentHeads shape{heads, keys, values, latent};
    for (const std::size_t length : {1, 3, 255, 256, 257, 600}) {
        Caches caches(length);
        Matrix latents = Matrix::random(random, length, latent);
        const Step store(caches, 0, length);
        oracle.store_latents({latents.view(), caches.views, &store.batch});
        const Matrix kv_b = Matrix::random(random, heads * (keys + values), latent);
        Matrix query = Matrix::random(random, 1, heads * keys);
        std::vector<std::uint32_t> positions;
        for (std::uint32_t p = 0; p < length; ++p) {
            if (length < 4 || p % 5 != 2) positions.push_back(p);
        }
        const std::vector<std::uint32_t> counts = {static_cast<std::uint32_t>(positions.size())};

        const Step step(caches, static_cast<Position>(length - 1), 1);
        Matrix absorbed(1, heads * latent), read(1, heads * latent), out(1, heads * values);
        oracle.absorb_queries(
            {shape, kv_b.weight(), query.view(), ops::Arithmetic::fp32, absorbed.view()});
        oracle.latent_attention({shape, absorbed.view(),
                                 Rows<const std::uint32_t>(positions.data(), 1, positions.size()),
                                 counts, caches.views, &step.batch, ops::Arithmetic::fp32,
                                 read.view()});
        oracle.expand_values(
            {shape, kv_b.weight(), read.view(), ops::Arithmetic::fp32, out.view()});

        for (std::size_t h = 0; h < heads; ++h) {
            std::vector<double> weights;
            double sum = 0;
            for (const std::uint32_t p : positions) {
                double dot = 0;
                for (std::size_t d = 0; d < keys; ++d) {
                    double k = 0;
                    for (std::size_t i = 0; i < latent; ++i) {
                        k += double{kv_b.at(h * (keys + values) + d, i)} * latents.at(p, i);
                    }
                    dot += k * query.at(0, h * keys + d);
                }
                weights.push_back(std::exp(dot / std::sqrt(double{keys})));
                sum += weights.back();
            }
            for (std::size_t d = 0; d < values; ++d) {
                double expected = 0;
                for (std::size_t s = 0; s < positions.size(); ++s) {
                    double v = 0;
                    for (std::size_t i = 0; i < latent; ++i) {
                        v += double{kv_b.at(h * (keys + values) + keys + d, i)} *
                             latents.at(positions[s], i);
                    }
                    expected += weights[s] / sum * v;
                }
                EXPECT_NEAR(out.at(0, h * values + d), expected, 1e-4) << length;
            }
        }
    }
}

// Scores far beyond exp()'s range.
TEST_F(SparseAttention, LargeScoresDoNotOverflow) {
    const ops::LatentHeads shape{1, 1, 1, latent};
    Caches caches(300);
    Matrix latents(300, latent, 1.0f);
    for (std::size_t t = 0; t < 300; ++t) {
        latents.at(t, 0) = static_cast<float>(t);
    }
    const Step store(caches, 0, 300);
    oracle.store_latents({latents.view(), caches.views, &store.batch});
    Matrix absorbed(1, latent), read(1, latent);
    absorbed.at(0, 0) = 1000.0f;
    std::vector<std::uint32_t> positions(300);
    std::iota(positions.begin(), positions.end(), 0u);
    const std::vector<std::uint32_t> counts = {300};
    const Step step(caches, 299, 1);
    oracle.latent_attention({shape, absorbed.view(),
                             Rows<const std::uint32_t>(positions.data(), 1, 300), counts,
                             caches.views, &step.batch, ops::Arithmetic::fp32, read.view()});
    EXPECT_FLOAT_EQ(read.at(0, 0), 299.0f);
    EXPECT_FLOAT_EQ(read.at(0, 1), 1.0f);
}

TEST_F(SparseAttention, StandardArithmeticRoundsWhatEntersAProduct) {
    const ops::LatentHeads shape{heads, 7, 5, latent};
    const Matrix kv_b = Matrix::random(random, heads * 12, latent);
    Matrix query = Matrix::random(random, 2, heads * 7), rounded = query;
    for (float& value : rounded.values) {
        value = rounded_to_bf16(value);
    }
    Matrix standard(2, heads * latent), fp32(2, heads * latent);
    oracle.absorb_queries(
        {shape, kv_b.weight(), query.view(), ops::Arithmetic::standard, standard.view()});
    oracle.absorb_queries(
        {shape, kv_b.weight(), rounded.view(), ops::Arithmetic::fp32, fp32.view()});
    EXPECT_EQ(standard.values, fp32.values);
    EXPECT_NE(query.values, rounded.values);
}

}  // namespace
}  // namespace percheron::tests
