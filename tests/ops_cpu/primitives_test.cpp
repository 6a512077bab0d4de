// Every primitive of the CPU against the oracle, over random shapes and mixtures, on every level.
#include <set>

#include <gtest/gtest.h>

#include "ops/reference/reference_primitives.h"
#include "ops_cpu/random_batch.h"

namespace percheron::ops {
namespace {

class CpuPrimitivesTest : public testing::TestWithParam<std::string> {
  protected:
    CpuPrimitivesTest() : random(21), cpu(GetParam()), one(GetParam(), 1) {}
    Random random;
    CpuOps cpu, one;
    reference::ReferencePrimitives oracle;
};

struct NormShape {
    std::size_t rows, columns;
};

std::vector<NormShape> norm_shapes(Random& random) {
    std::vector<NormShape> shapes = {{1, 1}, {1, 384}, {3, 17}, {70, 512}, {2, 4096}};
    for (int i = 0; i < 5; ++i)
        shapes.push_back({random.between(1, 40), random.between(1, 300)});
    return shapes;
}

TEST_P(CpuPrimitivesTest, Norms) {
    for (const NormShape& shape : norm_shapes(random)) {
        std::vector<float> in = random.floats(shape.rows * shape.columns, 3.0f);
        const std::vector<float> weight = random.floats(shape.columns), bias = weight;
        std::vector<float> out(in.size()), expected(in.size());
        RmsNorm rms{rows_of(in, shape.columns), weight.data(), 1e-5f, rows_of(out, shape.columns)};
        cpu.ops.rms_norm(rms);
        rms.output = rows_of(expected, shape.columns);
        oracle.rms_norm(rms);
        EXPECT_TRUE(close(out, expected, 1e-5)) << shape.columns;

        // A single column has no variance: 0 / sqrt(eps) times rounding is not worth comparing.
        if (shape.columns < 2) continue;
        LayerNorm layer{rows_of(in, shape.columns), weight.data(), bias.data(), 1e-6f,
                        rows_of(out, shape.columns)};
        cpu.ops.layer_norm(layer);
        layer.output = rows_of(expected, shape.columns);
        oracle.layer_norm(layer);
        EXPECT_TRUE(close(out, expected, 2e-5)) << shape.columns;
    }
}

TEST_P(CpuPrimitivesTest, SwigluClampsAndGates) {
    for (const NormShape& shape : norm_shapes(random)) {
        std::vector<float> gate = random.floats(shape.rows * shape.columns, 8.0f);
        std::vector<float> up = random.floats(shape.rows * shape.columns, 8.0f);
        gate[0] = 100;
        up[0] = -100;
        std::vector<float> out(gate.size()), expected(gate.size());
        Swiglu op{rows_of(gate, shape.columns), rows_of(up, shape.columns), 10.0f,
                  rows_of(out, shape.columns)};
        cpu.ops.swiglu(op);
        op.output = rows_of(expected, shape.columns);
        oracle.swiglu(op);
        EXPECT_TRUE(close(out, expected, 1e-5));
        EXPECT_NEAR(out[0], -100.0f, 0.01f);
    }
}

TEST_P(CpuPrimitivesTest, RouterChoosesAndWeighs) {
    for (int round = 0; round < 8; ++round) {
        const std::size_t experts = random.between(2, 300), k = random.between(8, 200);
        const std::size_t chosen = random.between(1, std::min<std::size_t>(8, experts));
        const std::size_t rows = random.between(1, 20);
        const StoredMatrix weight = random_matrix(random, WeightFormat::bf16, experts, k);
        const std::vector<float> bias = random.floats(experts, 0.1f);
        std::vector<float> in = random.floats(rows * k);
        std::vector<std::uint32_t> choice(rows * chosen), expected_choice(choice.size());
        std::vector<float> weights(rows * chosen), expected(weights.size());
        Router op{weight.view,
                  bias.data(),
                  2.5f,
                  round % 2 == 0,
                  rows_of(in, k),
                  Rows<std::uint32_t>(choice.data(), rows, chosen),
                  rows_of(weights, chosen)};
        cpu.ops.router(op);
        op.experts.data = expected_choice.data();
        op.weights = rows_of(expected, chosen);
        oracle.router(op);
        EXPECT_EQ(choice, expected_choice);
        EXPECT_TRUE(close(weights, expected, 1e-5));
    }
}

TEST_P(CpuPrimitivesTest, RouterGivesTiesToTheLowerExpert) {
    const std::size_t experts = 40, k = 16;
    std::vector<float> zeros(experts * k, 0.0f), in(k, 1.0f), bias(experts, 0.0f), weights(4);
    bias[30] = 1.0f;
    const WeightMatrix weight{WeightFormat::f32, experts, k, zeros.data(), nullptr, 1.0f};
    std::vector<std::uint32_t> choice(4);
    cpu.ops.router({weight, bias.data(), 1.0f, true, rows_of(in, k),
                    Rows<std::uint32_t>(choice.data(), 1, 4), rows_of(weights, 4)});
    EXPECT_EQ(choice, (std::vector<std::uint32_t>{30, 0, 1, 2}));
}

TEST_P(CpuPrimitivesTest, CombineExperts) {
    for (const NormShape& shape : norm_shapes(random)) {
        const std::size_t chosen = random.between(1, 8);
        std::vector<float> experts = random.floats(shape.rows * chosen * shape.columns);
        std::vector<float> shared = random.floats(shape.rows * shape.columns);
        std::vector<float> weights = random.floats(shape.rows * chosen);
        std::vector<std::uint32_t> place(shape.rows * chosen);
        std::iota(place.rbegin(), place.rend(), 0u);
        std::vector<float> out = shared, expected(shared.size());
        CombineExperts op{rows_of(experts, shape.columns),
                          Rows<const std::uint32_t>(place.data(), shape.rows, chosen),
                          rows_of(weights, chosen), rows_of(shared, shape.columns),
                          rows_of(expected, shape.columns)};
        oracle.combine_experts(op);
        op.output = rows_of(out, shape.columns);
        op.shared = op.output;  // in place
        cpu.ops.combine_experts(op);
        EXPECT_TRUE(close(out, expected, 1e-5));
    }
}

TEST_P(CpuPrimitivesTest, HyperConnections) {
    for (const std::size_t streams : {4, 4, 2, 3}) {
        for (const std::size_t hidden : {64, 384, 50}) {
            const std::size_t rows = random.between(1, 30), width = (2 + streams) * streams;
            std::vector<float> state = random.floats(rows * streams * hidden);
            std::vector<float> y = random.floats(rows * hidden);
            const StoredMatrix fn =
                random_matrix(random, WeightFormat::bf16, width, streams * hidden);
            const std::vector<float> base = random.floats(width), scale = random.floats(3),
                                     norm = random.floats(hidden);
            const auto run = [&](Primitives& ops, std::vector<float> x) {
                std::vector<float> pre(rows * streams), post(rows * streams);
                std::vector<float> comb(rows * streams * streams), out(rows * hidden);
                const Rows<float> X = rows_of(x, streams * hidden);
                ops.mhc_gates({streams, 20, 1e-5f, 1e-6f, fn.view, base.data(), scale.data(), X,
                               rows_of(pre, streams), rows_of(post, streams),
                               rows_of(comb, streams * streams)});
                ops.mhc_update({streams, rows_of(y, hidden), rows_of(post, streams),
                                rows_of(comb, streams * streams), X});
                ops.mhc_collapse(
                    {streams, X, rows_of(pre, streams), norm.data(), 1e-5f, rows_of(out, hidden)});
                std::vector<float> mean(rows * hidden);
                ops.mhc_collapse({streams, X, {}, nullptr, 1e-5f, rows_of(mean, hidden)});
                for (auto* part : {&pre, &post, &comb, &out, &mean})
                    x.insert(x.end(), part->begin(), part->end());
                return x;
            };
            const std::vector<float> result = run(cpu.ops, state);
            EXPECT_TRUE(close(result, run(oracle, state), 2e-5)) << streams << " x " << hidden;
            EXPECT_TRUE(bits_equal(result, run(one.ops, state)));
            // A row alone.
            std::vector<float> first(state.begin(),
                                     state.begin() + static_cast<std::ptrdiff_t>(streams * hidden));
            std::vector<float> gates(streams), post(streams), comb(streams * streams);
            cpu.ops.mhc_gates({streams, 20, 1e-5f, 1e-6f, fn.view, base.data(), scale.data(),
                               rows_of(first, streams * hidden), rows_of(gates, streams),
                               rows_of(post, streams), rows_of(comb, streams * streams)});
            const std::vector<float> there(
                result.begin() + static_cast<std::ptrdiff_t>(rows * streams * hidden),
                result.begin() + static_cast<std::ptrdiff_t>(rows * streams * hidden + streams));
            EXPECT_TRUE(bits_equal(gates, there));
        }
    }
}

// The whole KDA front and recurrence on a mixture, with the caches they leave behind.
struct KdaCase {
    std::size_t heads, dim;
    std::vector<float> raw, conv_weight, decay, beta, a_log, dt_bias, gate, norm;

    KdaCase(Random& random, std::size_t heads, std::size_t dim, std::size_t rows)
        : heads(heads),
          dim(dim),
          raw(random.floats(rows * 3 * heads * dim)),
          conv_weight(random.floats(3 * heads * dim * 4, 0.5f)),
          decay(random.floats(rows * heads * dim, 2.0f)),
          beta(random.floats(rows * heads, 2.0f)),
          a_log(random.floats(heads, 0.5f)),
          dt_bias(random.floats(heads * dim)),
          gate(random.floats(rows * heads * dim)),
          norm(random.floats(dim)) {}

    std::vector<float> run(Primitives& ops, const RowBatch& batch, KdaMemory& memory) const {
        const std::size_t width = heads * dim, rows = batch.rows();
        std::vector<float> in = raw, convolved(rows * 3 * width), g = decay, b = beta;
        std::vector<float> out(rows * width), z = gate;
        ops.short_conv({rows_of(in, 3 * width), conv_weight.data(), 4, memory.view, &batch,
                        rows_of(convolved, 3 * width)});
        const Rows<float> all = rows_of(convolved, 3 * width);
        ops.kda_gates({heads, dim, a_log.data(), dt_bias.data(), -5.0f, all.column_slice(0, width),
                       all.column_slice(width, width), rows_of(g, width), rows_of(b, heads)});
        const KdaRecurrence op{heads,
                               dim,
                               all.column_slice(0, width),
                               all.column_slice(width, width),
                               all.column_slice(2 * width, width),
                               rows_of(g, width),
                               rows_of(b, heads),
                               memory.view,
                               &batch,
                               rows_of(out, width)};
        if (batch.numeric_class == NumericClass::prefill)
            ops.kda_chunk(op);
        else
            ops.kda_step(op);
        ops.gated_norm(
            {dim, rows_of(out, width), rows_of(z, width), norm.data(), 1e-5f, rows_of(z, width)});
        out.insert(out.end(), z.begin(), z.end());
        return out;
    }
};

TEST_P(CpuPrimitivesTest, KdaOnAMixtureOfSequences) {
    for (const NumericClass numeric_class : {NumericClass::decode, NumericClass::prefill}) {
        for (const auto& [heads, dim] :
             {std::pair<std::size_t, std::size_t>{4, 128}, {3, 32}, {2, 44}, {1, 128}}) {
            for (int round = 0; round < 4; ++round) {
                const std::size_t sequences = random.between(1, 5);
                const auto batch = random_batch(random, numeric_class, sequences, 200);
                const KdaCase kda(random, heads, dim, batch->view.rows());
                KdaMemory mine(random, sequences, heads, dim), theirs(mine), single(mine);
                const std::vector<float> out = kda.run(cpu.ops, batch->view, mine);
                EXPECT_TRUE(close(out, kda.run(oracle, batch->view, theirs), 3e-5)) << dim;
                EXPECT_TRUE(close(mine.state, theirs.state, 3e-5)) << dim;
                EXPECT_TRUE(close(mine.conv, theirs.conv, 0)) << dim;
                EXPECT_TRUE(close(mine.kept, theirs.kept, 1e-5)) << dim;
                EXPECT_TRUE(bits_equal(out, kda.run(one.ops, batch->view, single)));
                EXPECT_TRUE(bits_equal(mine.state, single.state));
            }
        }
    }
}

// Rows kept and folded in later leave the bits that rows committed at once leave.
TEST_P(CpuPrimitivesTest, FoldingKeptRowsIsCommittingThem) {
    const std::size_t heads = 2, dim = 128, width = heads * dim, rows = 12;
    const KdaCase kda(random, heads, dim, rows);
    KdaMemory at_once(random, 1, heads, dim), kept(at_once);
    const auto run = [&](KdaMemory& memory, std::size_t first, std::size_t count,
                         std::size_t state_position, std::size_t commit) {
        RandomBatch batch;
        batch.sequences.push_back({0,
                                   static_cast<std::uint32_t>(count),
                                   static_cast<Position>(first),
                                   static_cast<Position>(state_position),
                                   static_cast<std::uint32_t>(commit),
                                   RequestSlot{0},
                                   {}});
        batch.pages.emplace_back();
        batch.tokens.resize(count);
        batch.finish(NumericClass::decode);
        KdaCase part = kda;
        const auto cut = [&](std::vector<float>& values, std::size_t columns) {
            values = std::vector<float>(
                values.begin() + static_cast<std::ptrdiff_t>((first - 3) * columns),
                values.begin() + static_cast<std::ptrdiff_t>((first - 3 + count) * columns));
        };
        cut(part.raw, 3 * width);
        cut(part.decay, width);
        cut(part.beta, heads);
        cut(part.gate, width);
        return part.run(cpu.ops, batch.view, memory);
    };
    // Positions 3..14; the rings hold what stands before.
    std::vector<float> expected;
    for (std::size_t p = 3; p < 15; ++p)
        expected = run(at_once, p, 1, p, 1);
    // 4 rows tried and dropped, tried again, 3 of them and so on: only the last try of a position
    // counts, because it overwrites the ring.
    run(kept, 3, 4, 3, 0);
    run(kept, 6, 3, 3, 0);
    run(kept, 8, 2, 6, 0);
    run(kept, 10, 2, 8, 1);
    run(kept, 11, 3, 11, 0);
    const std::vector<float> last = run(kept, 14, 1, 11, 1);
    EXPECT_TRUE(bits_equal(last, expected));
    EXPECT_TRUE(bits_equal(kept.state, at_once.state));
}

struct SparseCase {
    std::size_t heads, query_key_dim, value_dim, latent, index_heads, index_dim, pool, topk;
    StoredMatrix kv_b;
    std::vector<float> latents, query, index_key, index_gate, ape, index_query, head_weight;
    Arithmetic arithmetic;

    SparseCase(Random& random, std::size_t rows, WeightFormat format, Arithmetic arithmetic,
               bool odd)
        : heads(odd ? 3 : 4),
          query_key_dim(odd ? 40 : 128),
          value_dim(odd ? 24 : 128),
          latent(odd && format != WeightFormat::w4a16 ? 72 : 256),
          index_heads(odd ? 3 : 4),
          index_dim(odd ? 50 : 128),
          pool(4),
          topk(odd ? 24 : 64),
          kv_b(random_matrix(random, format, heads * (query_key_dim + value_dim), latent)),
          latents(random.floats(rows * latent)),
          query(random.floats(rows * heads * query_key_dim, 3.0f)),
          index_key(random.floats(rows * index_dim)),
          index_gate(random.floats(rows * index_dim)),
          ape(random.floats(pool * index_dim)),
          index_query(random.floats(rows * index_heads * index_dim)),
          head_weight(random.floats(rows * index_heads)),
          arithmetic(arithmetic) {}

    struct Result {
        std::vector<std::vector<std::uint32_t>> positions;
        std::vector<float> absorbed, read, values;
    };

    // `choice`: the selection to attend to, or nullptr for one's own.
    Result run(Primitives& ops, const RowBatch& batch, LatentMemory& memory,
               const Result* choice = nullptr) {
        ops.store_latents({rows_of(latents, latent), memory.view, &batch});
        ops.index_pool({pool, rows_of(index_key, index_dim), rows_of(index_gate, index_dim),
                        ape.data(), memory.view, &batch});
        return read(ops, batch, memory, choice);
    }

    // What is read of caches that hold the rows already.
    Result read(Primitives& ops, const RowBatch& batch, LatentMemory& memory,
                const Result* choice = nullptr) {
        const std::size_t rows = batch.rows();
        Result result;
        std::vector<std::uint32_t> positions(rows * (topk + pool - 1)), counts(rows);
        const Rows<std::uint32_t> selected(positions.data(), rows, topk + pool - 1);
        ops.select_tokens(
            {index_heads, index_dim, pool, topk, rows_of(index_query, index_heads * index_dim),
             rows_of(head_weight, index_heads), memory.view, &batch, arithmetic, selected, counts});
        for (std::size_t row = 0; row < rows; ++row)
            result.positions.emplace_back(selected.row(row), selected.row(row) + counts[row]);
        if (choice != nullptr) {
            for (std::size_t row = 0; row < rows; ++row) {
                counts[row] = static_cast<std::uint32_t>(choice->positions[row].size());
                std::copy(choice->positions[row].begin(), choice->positions[row].end(),
                          selected.row(row));
            }
        }
        const LatentHeads shape{heads, query_key_dim, value_dim, latent};
        result.absorbed.resize(rows * heads * latent);
        result.read.resize(rows * heads * latent);
        result.values.resize(rows * heads * value_dim);
        ops.absorb_queries({shape, kv_b.view, rows_of(query, heads * query_key_dim), arithmetic,
                            rows_of(result.absorbed, heads * latent), batch.numeric_class});
        ops.latent_attention({shape, rows_of(result.absorbed, heads * latent), selected, counts,
                              memory.view, &batch, arithmetic,
                              rows_of(result.read, heads * latent)});
        ops.expand_values({shape, kv_b.view, rows_of(result.read, heads * latent), arithmetic,
                           rows_of(result.values, heads * value_dim), batch.numeric_class});
        return result;
    }
};

TEST_P(CpuPrimitivesTest, SparseAttentionOnAMixtureOfSequences) {
    struct Caches {
        DType latents, pooled;
        Arithmetic arithmetic;
    };
    std::size_t dropped = 0, same_choice = 0, choices = 0;
    for (const Caches& dtypes : {Caches{DType::bf16, DType::bf16, Arithmetic::standard},
                                 Caches{DType::f8_e4m3, DType::f8_e4m3, Arithmetic::standard},
                                 Caches{DType::f32, DType::f32, Arithmetic::fp32}}) {
        for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8_block,
                                          WeightFormat::w4a16, WeightFormat::f32}) {
            for (const NumericClass numeric_class : {NumericClass::decode, NumericClass::prefill}) {
                for (const bool odd : {false, true}) {
                    const std::size_t sequences = random.between(1, 3);
                    const auto batch = random_batch(random, numeric_class, sequences, 300);
                    SparseCase sparse(random, batch->view.rows(), format, dtypes.arithmetic, odd);
                    LatentMemory mine(random, sequences, batch->page_count, sparse.latent,
                                      sparse.index_dim, sparse.pool, dtypes.latents, dtypes.pooled);
                    LatentMemory theirs(mine), single(mine);
                    const auto expected = sparse.run(oracle, batch->view, theirs);
                    const auto own = sparse.run(cpu.ops, batch->view, single);
                    const auto result = sparse.run(cpu.ops, batch->view, mine, &expected);
                    EXPECT_EQ(mine.latents, theirs.latents);
                    const auto pooled = [&](const LatentMemory& memory) {
                        return LatentMemory::widened(memory.pooled, dtypes.pooled, 64 / sparse.pool,
                                                     sparse.index_dim);
                    };
                    // A last bit of a code is an eighth.
                    EXPECT_TRUE(close(pooled(mine), pooled(theirs),
                                      dtypes.pooled == DType::bf16      ? 2e-2
                                      : dtypes.pooled == DType::f8_e4m3 ? 0.15
                                                                        : 1e-5));
                    EXPECT_EQ(mine.tails, theirs.tails);
                    // What enters a product is rounded to bf16, so a last bit may become 2^-8.
                    const double tolerance =
                        dtypes.arithmetic == Arithmetic::standard ? 3e-2 : 1e-4;
                    EXPECT_TRUE(close(result.absorbed, expected.absorbed, 1e-5));
                    EXPECT_TRUE(close(result.read, expected.read, tolerance));
                    EXPECT_TRUE(close(result.values, expected.values, tolerance));
                    for (std::size_t row = 0; row < expected.positions.size(); ++row) {
                        ++choices;
                        same_choice += own.positions[row] == expected.positions[row];
                        EXPECT_EQ(own.positions[row].size(), expected.positions[row].size());
                        dropped += expected.positions[row].size() < 64;
                    }
                    LatentMemory again(single);
                    const auto with_one = sparse.run(one.ops, batch->view, again);
                    const auto with_two = sparse.run(cpu.ops, batch->view, again);
                    EXPECT_EQ(with_one.positions, with_two.positions);
                    EXPECT_TRUE(bits_equal(with_one.values, with_two.values));
                }
            }
        }
    }
    EXPECT_GT(dropped, 0u);
    // Pools whose scores differ by less than rounding may be chosen differently.
    EXPECT_GT(same_choice * 100, choices * 98) << same_choice << " of " << choices;
}

// fp8 caches are read as the numbers they stand for, bit for bit: rows of any size, from codes and
// scales in place, give what the same numbers in fp32 give.
TEST_P(CpuPrimitivesTest, Fp8CachesAreReadAsTheirNumbers) {
    std::size_t dropped = 0;
    for (const bool odd : {false, true}) {
        for (int trial = 0; trial < 8; ++trial) {
            const std::size_t sequences = random.between(1, 3);
            const auto batch = random_batch(random, NumericClass::decode, sequences, 300);
            SparseCase sparse(random, batch->view.rows(), WeightFormat::bf16, Arithmetic::standard,
                              odd);
            for (std::size_t row = 0; row < batch->view.rows(); ++row) {
                const float size = std::exp2(static_cast<float>(random.between(0, 16)) - 8.0f);
                for (std::size_t i = 0; i < sparse.latent; ++i)
                    sparse.latents[row * sparse.latent + i] *= size;
            }
            LatentMemory caches(random, sequences, batch->page_count, sparse.latent,
                                sparse.index_dim, sparse.pool, DType::f8_e4m3, DType::f8_e4m3);
            const auto stored = sparse.run(cpu.ops, batch->view, caches);
            LatentMemory floats = caches.in_floats(sparse.latent, sparse.index_dim, sparse.pool);
            const auto read = sparse.read(cpu.ops, batch->view, floats);
            EXPECT_EQ(stored.positions, read.positions);
            EXPECT_TRUE(bits_equal(stored.read, read.read));
            EXPECT_TRUE(bits_equal(stored.values, read.values));
            for (const auto& positions : stored.positions)
                dropped += positions.size() <= positions.back();
        }
    }
    EXPECT_GT(dropped, 50u);
}

// Equal scores: the lower pools, and of those all below the threshold's index.
TEST_P(CpuPrimitivesTest, SelectionGivesTiesToTheLowerPool) {
    const std::size_t dim = 128, pool = 4, topk = 16;
    RandomBatch batch;
    batch.sequences.push_back({0, 1, 126, 126, 1, RequestSlot{0}, {}});
    batch.pages.push_back({PageId{0}, PageId{1}});
    batch.tokens.resize(1);
    batch.finish(NumericClass::decode);
    LatentMemory memory(random, 1, 2, 8, dim, pool, DType::bf16, DType::f32);
    std::fill(memory.pooled.begin(), memory.pooled.end(), std::uint8_t{0});
    auto* keys = reinterpret_cast<float*>(memory.pooled.data());
    std::vector<float> query(dim, 0.0f), weight(1, 1.0f);
    query[0] = 1;
    keys[20 * dim] = 2;  // clear winners
    keys[7 * dim] = 1;
    keys[3 * dim] = -1;  // relu makes it equal to all others
    std::vector<std::uint32_t> positions(topk + pool - 1), counts(1);
    cpu.ops.select_tokens({1, dim, pool, topk, rows_of(query, dim), rows_of(weight, 1), memory.view,
                           &batch.view, Arithmetic::standard,
                           Rows<std::uint32_t>(positions.data(), 1, positions.size()), counts});
    positions.resize(counts[0]);
    EXPECT_EQ(positions, (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 28, 29, 30, 31, 80, 81,
                                                     82, 83, 124, 125, 126}));
}

// More selected tokens than one split, against the oracle's joined splits.
TEST_P(CpuPrimitivesTest, AttentionOverSeveralSplits) {
    const std::size_t latent = 128, heads = 4, count = 700;
    RandomBatch batch;
    batch.sequences.push_back({0, 1, 799, 799, 1, RequestSlot{0}, {}});
    batch.pages.emplace_back();
    for (std::uint32_t page = 0; page < 13; ++page)
        batch.pages.back().push_back(PageId{12 - page});
    batch.tokens.resize(1);
    batch.finish(NumericClass::decode);
    LatentMemory memory(random, 1, 13, latent, 8, 4, DType::bf16, DType::bf16);
    std::vector<float> absorbed = random.floats(heads * latent, 2.0f);
    std::vector<std::uint32_t> positions(count), counts = {count};
    std::iota(positions.begin(), positions.end(), 60u);
    std::vector<float> read(heads * latent), expected(heads * latent);
    LatentAttention op{{heads, 64, 64, latent},
                       rows_of(absorbed, heads * latent),
                       Rows<const std::uint32_t>(positions.data(), 1, count),
                       counts,
                       memory.view,
                       &batch.view,
                       Arithmetic::standard,
                       rows_of(read, heads * latent)};
    cpu.ops.latent_attention(op);
    op.read = rows_of(expected, heads * latent);
    oracle.latent_attention(op);
    EXPECT_TRUE(close(read, expected, 1e-4));
}

INSTANTIATE_TEST_SUITE_P(Levels, CpuPrimitivesTest, testing::ValuesIn(levels()));

}  // namespace
}  // namespace percheron::ops
