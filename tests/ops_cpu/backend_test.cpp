// The CPU backend's stages against the reference backend's, on mixtures of sequences, in every
// level and arithmetic; and the promise that neither company nor threads change a row.
#include <gtest/gtest.h>

#include "ops/cpu/cpu_backend.h"
#include "ops/reference/reference_backend.h"
#include "ops_cpu/random_batch.h"
#include "support/allocations.h"

namespace percheron::ops {
namespace {

using tests::allocated_bytes;
using tests::allocations;

constexpr std::size_t vocabulary = 50;

// One layer of each kind with random weights of mixed formats.
struct Layer {
    NetworkShape shape;
    std::vector<std::unique_ptr<StoredMatrix>> matrices;
    std::vector<std::unique_ptr<std::vector<float>>> vectors;
    std::vector<FeedForwardWeights> experts;
    WeightMatrix embedding, head;
    MhcWeights mhc;
    KdaWeights kda;
    SparseAttentionWeights sparse;
    FeedForwardWeights dense;
    ExpertsWeights moe;

    explicit Layer(Random& random) {
        shape.vocabulary = vocabulary;
        shape.hidden = 256;
        shape.kda_heads = 2;
        shape.kda_dim = 128;
        shape.attention_heads = 3;
        shape.query_rank = 128;
        shape.latent = 128;
        shape.query_key_dim = 64;
        shape.value_dim = 128;
        shape.index_heads = 2;
        shape.index_dim = 64;
        shape.index_topk = 32;
        shape.experts = 8;
        shape.experts_per_token = 3;
        shape.router_scale = 2.5f;
        shape.dense_intermediate = 384;
        shape.expert_intermediate = 128;
        shape.shared_intermediate = 128;
        const std::size_t D = shape.hidden, S = shape.streams;
        const std::size_t width = shape.kda_heads * shape.kda_dim;
        const auto matrix = [&](std::size_t n, std::size_t k, WeightFormat format) {
            matrices.push_back(std::make_unique<StoredMatrix>(random_matrix(random, format, n, k)));
            return matrices.back()->view;
        };
        const auto any = [&](std::size_t n, std::size_t k) {
            constexpr WeightFormat formats[] = {WeightFormat::bf16, WeightFormat::fp8_block,
                                                WeightFormat::w4a16};
            return matrix(n, k, formats[random.between(0, 2)]);
        };
        const auto vector = [&](std::size_t count, float deviation = 1.0f) {
            vectors.push_back(
                std::make_unique<std::vector<float>>(random.floats(count, deviation)));
            return vectors.back()->data();
        };
        const auto feed_forward = [&](std::size_t intermediate) {
            return FeedForwardWeights{any(intermediate, D), any(intermediate, D),
                                      any(D, intermediate)};
        };
        embedding = matrix(vocabulary, D, WeightFormat::fp8_block);
        head = any(vocabulary, D);
        mhc = {matrix((2 + S) * S, S * D, WeightFormat::bf16), vector((2 + S) * S), vector(3),
               vector(D)};
        kda = {any(width, D),
               any(width, D),
               any(width, D),
               any(shape.kda_dim, D),
               any(shape.kda_dim, D),
               any(width, shape.kda_dim),
               any(width, shape.kda_dim),
               matrix(shape.kda_heads, D, WeightFormat::bf16),
               vector(3 * width * shape.kda_conv, 0.5f),
               vector(shape.kda_heads, 0.3f),
               vector(width),
               vector(shape.kda_dim),
               any(D, width)};
        sparse.q_a = any(shape.query_rank, D);
        sparse.q_a_norm = vector(shape.query_rank);
        sparse.q_b = any(shape.attention_heads * shape.query_key_dim, shape.query_rank);
        sparse.kv_a = any(shape.latent, D);
        sparse.kv_a_norm = vector(shape.latent);
        sparse.kv_b =
            any(shape.attention_heads * (shape.query_key_dim + shape.value_dim), shape.latent);
        sparse.out = any(D, shape.attention_heads * shape.value_dim);
        sparse.index_q = any(shape.index_heads * shape.index_dim, shape.query_rank);
        sparse.index_k = any(shape.index_dim, D);
        sparse.index_k_norm = vector(shape.index_dim);
        sparse.index_k_bias = vector(shape.index_dim);
        sparse.index_gate = any(shape.index_dim, D);
        sparse.index_head_weights = any(shape.index_heads, D);
        sparse.index_ape = vector(shape.index_pool * shape.index_dim);
        dense = feed_forward(shape.dense_intermediate);
        for (std::size_t e = 0; e < shape.experts; ++e)
            experts.push_back(feed_forward(shape.expert_intermediate));
        moe = {any(shape.experts, D), vector(shape.experts, 0.1f), experts,
               feed_forward(shape.shared_intermediate)};
    }
};

struct Outputs {
    std::vector<float> streams, normed, post, comb, tap, final_normed;
    std::vector<float> kda, sparse, dense, moe, logits;
};

struct StepInputs {
    std::vector<float> x, y, streams;
    StepInputs(Random& random, const NetworkShape& shape, std::size_t rows)
        : x(random.floats(rows * shape.hidden)),
          y(random.floats(rows * shape.hidden)),
          streams(random.floats(rows * shape.hidden * shape.streams)) {}
};

Outputs run(Backend& backend, const Layer& layer, const RowBatch& batch, const StepInputs& inputs,
            KdaMemory& kda, LatentMemory& latents) {
    const NetworkShape& shape = layer.shape;
    const std::size_t rows = batch.rows(), D = shape.hidden, S = shape.streams;
    EXPECT_TRUE(backend.prepare(shape, 512, 512).ok());
    StepInputs in = inputs;
    Outputs out;
    const auto view = [&](std::vector<float>& values, std::size_t columns) {
        if (values.empty()) values.resize(rows * columns);
        return Activations{values.data(), DType::f32, rows, columns};
    };
    const Activations x = view(in.x, D);
    const Status status = backend.run(batch, [&] {
        // Three turns: one that only starts, one that updates, taps and starts, one that ends.
        MhcTurn turn;
        turn.streams = view(in.streams, S * D);
        turn.gates = {view(out.post, S), view(out.comb, S * S)};
        turn.next = &layer.mhc;
        turn.normed = view(out.normed, D);
        backend.mhc_turn(turn, batch);
        const Activations y = view(in.y, D), tap = view(out.tap, D);
        turn.output = &y;
        turn.tap = &tap;
        backend.mhc_turn(turn, batch);
        MhcTurn last;
        last.streams = turn.streams;
        last.gates = turn.gates;
        last.output = &y;
        last.final_norm = layer.mhc.norm;
        last.normed = view(out.final_normed, D);
        backend.mhc_turn(last, batch);
        out.streams = in.streams;

        backend.kda_mixer(layer.kda, kda.view, batch, x, view(out.kda, D));
        backend.sparse_mixer(layer.sparse, latents.view, batch, x, view(out.sparse, D));
        backend.dense_ffn(layer.dense, batch, x, view(out.dense, D));
        backend.moe_ffn(layer.moe, batch, x, view(out.moe, D));
        out.logits.resize(batch.logit_rows.size() * vocabulary);
        backend.head(layer.head, batch, x,
                     {out.logits.data(), DType::f32, batch.logit_rows.size(), vocabulary});
    });
    EXPECT_TRUE(status.ok());
    return out;
}

struct Setting {
    std::string level;
    Arithmetic arithmetic;
    NumericClass numeric_class;
};

class CpuBackendTest : public testing::TestWithParam<Setting> {
  protected:
    CpuBackendTest() : random(31), layer(random) {}

    std::unique_ptr<Backend> backend(std::size_t threads) const {
        return make_cpu_backend({threads, GetParam().arithmetic, GetParam().level}).value();
    }
    LatentMemory latent_memory(std::size_t slots, std::size_t pages) {
        const bool exact = GetParam().arithmetic == Arithmetic::fp32;
        return LatentMemory(random, slots, pages, layer.shape.latent, layer.shape.index_dim,
                            layer.shape.index_pool, exact ? DType::f32 : DType::bf16,
                            exact ? DType::f32 : DType::bf16);
    }

    Random random;
    Layer layer;
};

TEST_P(CpuBackendTest, StagesAgreeWithTheReference) {
    const auto cpu = backend(2);
    const auto reference = reference::make_reference_backend(GetParam().arithmetic);
    // A last bit of an input may become a bf16 step of it before a product.
    const double tolerance = GetParam().arithmetic == Arithmetic::fp32 ? 1e-4 : 4e-2;
    for (int round = 0; round < 2; ++round) {
        // With `index_topk` tokens or fewer all are attended to: near ties cannot change the
        // choice.
        const auto batch = random_batch(random, GetParam().numeric_class, 3, 0, vocabulary,
                                        layer.shape.index_topk);
        const StepInputs inputs(random, layer.shape, batch->view.rows());
        KdaMemory kda(random, 3, layer.shape.kda_heads, layer.shape.kda_dim), other_kda(kda);
        LatentMemory latents = latent_memory(3, batch->page_count), other_latents(latents);
        const Outputs mine = run(*cpu, layer, batch->view, inputs, kda, latents);
        const Outputs theirs =
            run(*reference, layer, batch->view, inputs, other_kda, other_latents);
        EXPECT_TRUE(close(mine.streams, theirs.streams, 1e-4));
        EXPECT_TRUE(close(mine.normed, theirs.normed, 1e-4));
        EXPECT_TRUE(close(mine.post, theirs.post, 1e-4));
        EXPECT_TRUE(close(mine.comb, theirs.comb, 1e-4));
        EXPECT_TRUE(close(mine.tap, theirs.tap, 1e-4));
        EXPECT_TRUE(close(mine.final_normed, theirs.final_normed, 1e-4));
        EXPECT_TRUE(close(mine.kda, theirs.kda, tolerance));
        EXPECT_TRUE(close(mine.sparse, theirs.sparse, tolerance));
        EXPECT_TRUE(close(mine.dense, theirs.dense, tolerance));
        EXPECT_TRUE(close(mine.moe, theirs.moe, tolerance));
        EXPECT_TRUE(close(mine.logits, theirs.logits, 1e-4));
        EXPECT_TRUE(close(kda.state, other_kda.state, tolerance));
        EXPECT_TRUE(close(kda.conv, other_kda.conv, 1e-4));
    }
}

std::vector<float> rows_from(const std::vector<float>& values, std::size_t all_rows,
                             std::size_t first, std::size_t count) {
    const std::size_t columns = values.size() / all_rows;
    return {values.begin() + static_cast<std::ptrdiff_t>(first * columns),
            values.begin() + static_cast<std::ptrdiff_t>((first + count) * columns)};
}

TEST_P(CpuBackendTest, ASequenceAloneHasTheBitsItHasInCompany) {
    const auto two = backend(2), one = backend(1);
    for (int round = 0; round < 3; ++round) {
        const std::size_t sequences = random.between(2, 6);
        const auto batch =
            random_batch(random, GetParam().numeric_class, sequences, 400, vocabulary);
        const std::size_t rows = batch->view.rows();
        const StepInputs inputs(random, layer.shape, rows);
        const KdaMemory kda(random, sequences, layer.shape.kda_heads, layer.shape.kda_dim);
        const LatentMemory latents = latent_memory(sequences, batch->page_count);
        KdaMemory kda_two(kda), kda_one(kda);
        LatentMemory latents_two(latents), latents_one(latents);
        const Outputs together = run(*two, layer, batch->view, inputs, kda_two, latents_two);
        const Outputs single = run(*one, layer, batch->view, inputs, kda_one, latents_one);
        const auto parts = [](const Outputs& o) {
            return std::vector<const std::vector<float>*>{
                &o.streams, &o.normed, &o.post,  &o.comb, &o.final_normed,
                &o.kda,     &o.sparse, &o.dense, &o.moe,  &o.logits};
        };
        for (std::size_t i = 0; i < parts(together).size(); ++i)
            EXPECT_TRUE(bits_equal(*parts(together)[i], *parts(single)[i])) << "part " << i;
        EXPECT_TRUE(bits_equal(kda_two.state, kda_one.state));
        EXPECT_TRUE(bits_equal(kda_two.kept, kda_one.kept));
        EXPECT_EQ(latents_two.latents, latents_one.latents);
        EXPECT_EQ(latents_two.pooled, latents_one.pooled);

        KdaMemory kda_alone(kda);
        LatentMemory latents_alone(latents);
        for (std::size_t i = 0; i < sequences; ++i) {
            RandomBatch alone;
            alone.sequences = {batch->sequences[i]};
            const std::size_t first = alone.sequences[0].first_row;
            const std::size_t count = alone.sequences[0].row_count;
            alone.sequences[0].first_row = 0;
            alone.pages = {batch->pages[i]};
            alone.tokens.assign(batch->tokens.begin() + static_cast<std::ptrdiff_t>(first),
                                batch->tokens.begin() + static_cast<std::ptrdiff_t>(first + count));
            alone.logit_rows.resize(count);
            std::iota(alone.logit_rows.begin(), alone.logit_rows.end(), 0u);
            alone.finish(GetParam().numeric_class);
            StepInputs own = inputs;
            own.x = rows_from(inputs.x, rows, first, count);
            own.y = rows_from(inputs.y, rows, first, count);
            own.streams = rows_from(inputs.streams, rows, first, count);
            const Outputs result = run(*two, layer, alone.view, own, kda_alone, latents_alone);
            for (std::size_t part = 0; part < parts(result).size(); ++part)
                EXPECT_TRUE(bits_equal(*parts(result)[part],
                                       rows_from(*parts(together)[part], rows, first, count)))
                    << "part " << part << " sequence " << i;
        }
        EXPECT_TRUE(bits_equal(kda_alone.state, kda_two.state));
        EXPECT_EQ(latents_alone.latents, latents_two.latents);
        EXPECT_EQ(latents_alone.pooled, latents_two.pooled);
    }
}

class CpuPrefillTest : public CpuBackendTest {};

// A prompt in chunks on the grid of 64 leaves the state, caches and outputs of one pass.
TEST_P(CpuPrefillTest, AnyChunkingOnTheGridGivesTheSameBits) {
    const auto cpu = backend(2);
    constexpr std::size_t rows = 300;
    const StepInputs inputs(random, layer.shape, rows);
    std::vector<PageId> pages;
    for (std::uint32_t page = 0; page < 5; ++page)
        pages.push_back(PageId{4 - page});
    const KdaMemory kda(random, 1, layer.shape.kda_heads, layer.shape.kda_dim);
    const LatentMemory latents = latent_memory(1, 5);
    const auto feed = [&](const std::vector<std::size_t>& chunks, KdaMemory& k, LatentMemory& l) {
        Outputs all;
        std::size_t first = 0;
        for (const std::size_t count : chunks) {
            RandomBatch batch;
            batch.sequences.push_back({0,
                                       static_cast<std::uint32_t>(count),
                                       static_cast<Position>(first),
                                       static_cast<Position>(first),
                                       static_cast<std::uint32_t>(count),
                                       RequestSlot{0},
                                       {}});
            batch.pages = {pages};
            batch.tokens.resize(count);
            batch.finish(NumericClass::prefill);
            StepInputs own = inputs;
            own.x = rows_from(inputs.x, rows, first, count);
            own.y = rows_from(inputs.y, rows, first, count);
            own.streams = rows_from(inputs.streams, rows, first, count);
            const Outputs part = run(*cpu, layer, batch.view, own, k, l);
            all.kda.insert(all.kda.end(), part.kda.begin(), part.kda.end());
            all.sparse.insert(all.sparse.end(), part.sparse.begin(), part.sparse.end());
            all.moe.insert(all.moe.end(), part.moe.begin(), part.moe.end());
            first += count;
        }
        return all;
    };
    KdaMemory whole_kda(kda);
    LatentMemory whole_latents(latents);
    const Outputs whole = feed({rows}, whole_kda, whole_latents);
    for (const std::vector<std::size_t>& chunks :
         {std::vector<std::size_t>{64, 128, 64, 44}, {256, 44}, {64, 236}}) {
        KdaMemory k(kda);
        LatentMemory l(latents);
        const Outputs cut = feed(chunks, k, l);
        EXPECT_TRUE(bits_equal(cut.kda, whole.kda));
        EXPECT_TRUE(bits_equal(cut.sparse, whole.sparse));
        EXPECT_TRUE(bits_equal(cut.moe, whole.moe));
        EXPECT_TRUE(bits_equal(k.state, whole_kda.state));
        EXPECT_EQ(l.latents, whole_latents.latents);
        EXPECT_EQ(l.pooled, whole_latents.pooled);
    }
}

TEST(Allocations, AreCounted) {
    const std::size_t count = allocations, bytes = allocated_bytes;
    const std::vector<char> memory(1000);
    EXPECT_EQ(allocations - count, 1u);
    EXPECT_EQ(allocated_bytes - bytes, memory.size());
}

// Scratch is what working_bytes() said, from prepare() on, whatever the step.
TEST_P(CpuBackendTest, AStepAllocatesNothing) {
    const auto cpu = backend(2);
    const std::size_t most = 160;
    const std::size_t before = allocated_bytes;
    ASSERT_TRUE(cpu->prepare(layer.shape, most, most).ok());
    const std::size_t reserved = allocated_bytes - before;
    EXPECT_NEAR(static_cast<double>(reserved),
                static_cast<double>(cpu->working_bytes(layer.shape, most, most)), 256 * 1024);
    for (const std::size_t sequences : {1, 4, 2}) {
        auto batch =
            random_batch(random, GetParam().numeric_class, sequences, 400, vocabulary, most / 4);
        const std::size_t rows = batch->view.rows(), D = layer.shape.hidden;
        KdaMemory kda(random, sequences, layer.shape.kda_heads, layer.shape.kda_dim);
        LatentMemory latents = latent_memory(sequences, batch->page_count);
        std::vector<float> x = random.floats(rows * D), y(rows * D), logits(rows * vocabulary);
        const Activations in{x.data(), DType::f32, rows, D}, out{y.data(), DType::f32, rows, D};
        const auto stages = [&] {
            cpu->kda_mixer(layer.kda, kda.view, batch->view, in, out);
            cpu->sparse_mixer(layer.sparse, latents.view, batch->view, in, out);
            cpu->dense_ffn(layer.dense, batch->view, in, out);
            cpu->moe_ffn(layer.moe, batch->view, in, out);
            cpu->head(layer.head, batch->view, in, {logits.data(), DType::f32, rows, vocabulary});
        };
        // The ranking of pools grows with the longest context so far, once.
        cpu->sparse_mixer(layer.sparse, latents.view, batch->view, in, out);
        const std::size_t count = allocations;
        stages();
        EXPECT_EQ(allocations - count, 0u) << sequences << " sequences, " << rows << " rows";
    }
}

TEST_P(CpuBackendTest, EmbedsTokensAndOverrides) {
    const auto cpu = backend(2);
    ASSERT_TRUE(cpu->prepare(layer.shape, 16, 1).ok());
    const std::vector<TokenId> tokens = {TokenId{3}, TokenId{49}, TokenId{0}};
    const std::vector<float> features = random.floats(layer.shape.hidden);
    const EmbeddingOverride replaced{1, features.data()};
    RowBatch batch;
    batch.tokens = tokens;
    batch.overrides = std::span(&replaced, 1);
    std::vector<float> streams(3 * 4 * layer.shape.hidden), expected(layer.shape.hidden);
    cpu->embed(layer.embedding, batch, {streams.data(), DType::f32, 3, 4 * layer.shape.hidden});
    for (std::size_t row = 0; row < 3; ++row) {
        dequantise_row(layer.embedding, static_cast<std::size_t>(to_int(tokens[row])),
                       expected.data());
        for (std::size_t stream = 0; stream < 4; ++stream)
            EXPECT_TRUE(bits_equal(rows_from(streams, 12, row * 4 + stream, 1),
                                   row == 1 ? features : expected));
    }
}

std::vector<Setting> settings(std::vector<NumericClass> classes) {
    std::vector<Setting> all;
    for (const std::string& level : levels())
        for (const Arithmetic arithmetic : {Arithmetic::standard, Arithmetic::fp32})
            for (const NumericClass numeric_class : classes)
                all.push_back({level, arithmetic, numeric_class});
    return all;
}

std::string name_of_setting(const testing::TestParamInfo<Setting>& info) {
    return info.param.level + (info.param.arithmetic == Arithmetic::fp32 ? "_fp32" : "_standard") +
           (info.param.numeric_class == NumericClass::prefill ? "_prefill" : "_decode");
}

INSTANTIATE_TEST_SUITE_P(Settings, CpuBackendTest,
                         testing::ValuesIn(settings({NumericClass::decode, NumericClass::prefill})),
                         name_of_setting);
INSTANTIATE_TEST_SUITE_P(Settings, CpuPrefillTest,
                         testing::ValuesIn(settings({NumericClass::prefill})), name_of_setting);

}  // namespace
}  // namespace percheron::ops
