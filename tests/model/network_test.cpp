// What a network promises whatever its weights: rows do not feel their neighbours, chunks do not
// show, rejected rows leave no trace.
#include "model/network.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "ops/cpu/cpu_backend.h"
#include "ops/reference/reference_backend.h"
#include "support/host_caches.h"
#include "support/random_model.h"
#include "support/sequence_runner.h"

namespace percheron::tests {
namespace {

using Logits = std::vector<float>;

std::vector<PageId> pages_of(std::initializer_list<std::uint32_t> numbers) {
    std::vector<PageId> pages;
    for (const std::uint32_t number : numbers) {
        pages.push_back(PageId(number));
    }
    return pages;
}

// Bits, not values: a NaN equals itself, -0 differs from 0.
bool same_bits(std::span<const float> a, std::span<const float> b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

struct Computer {
    const char* backend;
    ops::Arithmetic arithmetic;
    DType kv_dtype;
};

std::unique_ptr<ops::Backend> backend_of(const Computer& computer) {
    if (computer.backend == std::string("reference")) {
        return ops::reference::make_reference_backend(computer.arithmetic);
    }
    ops::CpuBackendOptions options;
    options.threads = 2;
    options.arithmetic = computer.arithmetic;
    return ops::make_cpu_backend(options).value();
}

class NetworkTest : public testing::TestWithParam<Computer> {
  protected:
    NetworkTest() : config_(small_config()), weights_(7), backend_(backend_of(GetParam())) {
        model::NetworkOptions options;
        options.max_rows = 512;
        options.max_logit_rows = 512;
        network_ = model::Network::load(config_, weights_, *backend_, options).value();
    }

    HostCaches make_caches(HostCacheOptions options = {}) const {
        options.kv_dtype = GetParam().kv_dtype;
        return HostCaches(config_, options);
    }
    std::vector<TokenId> tokens(std::size_t count, std::uint64_t seed) const {
        return random_tokens(count, config_.vocabulary, seed);
    }
    std::span<const float> row(const Logits& logits, std::size_t index) const {
        return std::span<const float>(logits).subspan(index * config_.vocabulary,
                                                      config_.vocabulary);
    }

    // All rows by one prefill, from clean caches.
    Logits prefill_alone(std::span<const TokenId> ids) {
        const HostCaches caches = make_caches();
        SequenceRunner runner(*network_, caches.views(), RequestSlot(0), pages_of({0, 1, 2, 3}));
        return runner.prefill(ids, 512).value();
    }

    model::ModelConfig config_;
    RandomWeights weights_;
    std::unique_ptr<ops::Backend> backend_;
    std::unique_ptr<model::Network> network_;
};

INSTANTIATE_TEST_SUITE_P(
    Every, NetworkTest,
    testing::Values(Computer{"reference", ops::Arithmetic::standard, DType::bf16},
                    Computer{"reference", ops::Arithmetic::standard, DType::f8_e4m3},
                    Computer{"reference", ops::Arithmetic::fp32, DType::f32},
                    Computer{"cpu", ops::Arithmetic::standard, DType::bf16},
                    Computer{"cpu", ops::Arithmetic::standard, DType::f8_e4m3},
                    Computer{"cpu", ops::Arithmetic::fp32, DType::f32}),
    [](const auto& info) {
        return std::string(info.param.backend) +
               (info.param.arithmetic == ops::Arithmetic::fp32 ? "_fp32" : "_standard") +
               (info.param.kv_dtype == DType::f8_e4m3 ? "_fp8" : "");
    });

TEST_P(NetworkTest, PrefillInAnyChunkingLeavesTheSameBits) {
    for (const std::size_t length : {1, 2, 63, 64, 65, 127, 128, 131, 250}) {
        const std::vector<TokenId> ids = tokens(length, length);
        const HostCaches whole_caches = make_caches();
        SequenceRunner whole(*network_, whole_caches.views(), RequestSlot(1),
                             pages_of({3, 1, 0, 2}));
        const Logits expected = whole.prefill(ids, 512).value();
        for (const std::size_t chunk : {64, 128, 192}) {
            const HostCaches caches = make_caches();
            SequenceRunner runner(*network_, caches.views(), RequestSlot(1),
                                  pages_of({3, 1, 0, 2}));
            const Logits logits = runner.prefill(ids, chunk).value();
            EXPECT_TRUE(same_bits(logits, expected)) << length << " by " << chunk;
            EXPECT_EQ(caches.memory(), whole_caches.memory()) << length << " by " << chunk;
        }
    }
}

TEST_P(NetworkTest, PagesAndSlotsAreOnlyPlaces) {
    const std::vector<TokenId> ids = tokens(150, 1);
    const std::vector<TokenId> more = tokens(9, 2);
    std::vector<Logits> results;
    const HostCaches caches = make_caches();
    for (const auto& [slot, pages] :
         {std::pair{0u, pages_of({0, 1, 2})}, std::pair{3u, pages_of({41, 7, 20})},
          // Used before: what a sequence left in its slot and pages does not matter.
          std::pair{3u, pages_of({2, 41, 0})}}) {
        SequenceRunner runner(*network_, caches.views(), RequestSlot(slot), pages);
        Logits logits = runner.prefill(ids, 128).value();
        const Logits decoded = runner.decode(more).value();
        logits.insert(logits.end(), decoded.begin(), decoded.end());
        results.push_back(std::move(logits));
    }
    EXPECT_TRUE(same_bits(results[0], results[1]));
    EXPECT_TRUE(same_bits(results[0], results[2]));
}

TEST_P(NetworkTest, SequencesOfAStepEqualThemselvesAlone) {
    const std::vector<std::size_t> lengths = {1, 70, 64, 19, 130};
    std::vector<std::vector<TokenId>> prompts;
    std::vector<TokenId> all;
    std::vector<ops::SequenceRows> sequences;
    std::vector<std::vector<PageId>> pages;
    HostCacheOptions options;
    options.slots = 5;
    const HostCaches caches = make_caches(options);
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        prompts.push_back(tokens(lengths[i], 100 + i));
        const auto base = static_cast<std::uint32_t>(3 * i);
        pages.push_back(pages_of({base, base + 1, base + 2}));
        ops::SequenceRows rows;
        rows.first_row = static_cast<std::uint32_t>(all.size());
        rows.row_count = rows.commit_rows = static_cast<std::uint32_t>(lengths[i]);
        rows.slot = RequestSlot(static_cast<std::uint32_t>(i));
        rows.pages = pages.back();
        sequences.push_back(rows);
        all.insert(all.end(), prompts[i].begin(), prompts[i].end());
    }
    std::vector<std::uint32_t> logit_rows(all.size());
    std::iota(logit_rows.begin(), logit_rows.end(), 0u);
    ops::RowBatch batch;
    batch.numeric_class = ops::NumericClass::prefill;
    batch.sequences = sequences;
    batch.tokens = all;
    batch.logit_rows = logit_rows;
    const auto together = network_->forward(batch, caches.views());
    ASSERT_TRUE(together.ok()) << together.error().message();
    const Logits prefilled(together->begin(), together->end());
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        const Logits alone = prefill_alone(prompts[i]);
        const auto own = std::span<const float>(prefilled).subspan(
            sequences[i].first_row * config_.vocabulary, alone.size());
        EXPECT_TRUE(same_bits(own, alone)) << "prefill of sequence " << i;
    }

    // Then decode, every sequence with another number of rows.
    const std::vector<std::uint32_t> counts = {3, 1, 5, 2, 1};
    std::vector<std::vector<TokenId>> replies;
    all.clear();
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        replies.push_back(tokens(counts[i], 200 + i));
        sequences[i].first_row = static_cast<std::uint32_t>(all.size());
        sequences[i].row_count = sequences[i].commit_rows = counts[i];
        sequences[i].first_position = sequences[i].state_position =
            static_cast<Position>(lengths[i]);
        all.insert(all.end(), replies[i].begin(), replies[i].end());
    }
    logit_rows.resize(all.size());
    batch.numeric_class = ops::NumericClass::decode;
    batch.tokens = all;
    batch.logit_rows = logit_rows;
    const auto decoded = network_->forward(batch, caches.views());
    ASSERT_TRUE(decoded.ok()) << decoded.error().message();
    const Logits rows_together(decoded->begin(), decoded->end());
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        const HostCaches own_caches = make_caches();
        SequenceRunner runner(*network_, own_caches.views(), RequestSlot(2), pages_of({5, 6, 7}));
        ASSERT_TRUE(runner.prefill(prompts[i], 64).ok());
        for (std::uint32_t r = 0; r < counts[i]; ++r) {
            const Logits one = runner.decode({&replies[i][r], 1}).value();
            EXPECT_TRUE(same_bits(row(rows_together, sequences[i].first_row + r), one))
                << "decode row " << r << " of sequence " << i;
        }
    }
}

// Rounds of random size with random acceptance against plain decoding of the accepted tokens.
TEST_P(NetworkTest, RejectedRowsLeaveNoTrace) {
    std::mt19937_64 random(5);
    for (int trial = 0; trial < 12; ++trial) {
        const std::size_t prompt_length = 1 + random() % 90;
        constexpr std::size_t rounds = 9;
        constexpr std::size_t most_rows = 6;
        HostCacheOptions options;
        options.ring = 3 + 2 * most_rows;
        options.tail_ring = 4 + most_rows;
        const HostCaches caches = make_caches(options);
        const HostCaches serial_caches = make_caches(options);
        SequenceRunner drafted(*network_, caches.views(), RequestSlot(0), pages_of({0, 1, 2}));
        SequenceRunner serial(*network_, serial_caches.views(), RequestSlot(0),
                              pages_of({0, 1, 2}));
        const std::vector<TokenId> prompt = tokens(prompt_length, random());
        if (trial % 3 != 0) {  // else the whole sequence is generated
            ASSERT_TRUE(drafted.prefill(prompt, 64).ok());
            ASSERT_TRUE(serial.prefill(prompt, 64).ok());
        }
        std::size_t rejected = 0;
        for (std::size_t round = 0; round < rounds; ++round) {
            const std::size_t count = 1 + random() % most_rows;
            const std::size_t accepted = 1 + random() % count;
            rejected += count - accepted;
            const std::vector<TokenId> rows = tokens(count, random());
            const Logits verified = drafted.verify(rows, accepted).value();
            for (std::size_t r = 0; r < accepted; ++r) {
                const Logits one = serial.decode({&rows[r], 1}).value();
                ASSERT_TRUE(same_bits(row(verified, r), one))
                    << "trial " << trial << " round " << round << " row " << r;
            }
        }
        EXPECT_GT(rejected, 0u);
        // One committed token folds what was kept: the states meet bit for bit.
        const std::vector<TokenId> last = tokens(1, random());
        const Logits one = drafted.decode(last).value();
        EXPECT_TRUE(same_bits(one, serial.decode(last).value()));
        for (std::size_t layer = 0; layer < caches.views().kda.size(); ++layer) {
            const std::size_t floats = caches.views().kda[layer].state_stride;
            EXPECT_TRUE(same_bits({caches.views().kda[layer].state, floats},
                                  {serial_caches.views().kda[layer].state, floats}))
                << "KDA layer " << layer;
        }
    }
}

// A round may commit its first rows and keep the rest.
TEST_P(NetworkTest, AnyCommittedPrefixOfAStepGivesTheSameRows) {
    const std::vector<TokenId> ids = tokens(7, 31);
    const std::vector<TokenId> after = tokens(2, 32);
    HostCacheOptions options;
    options.ring = 3 + 9;
    options.tail_ring = 4 + 7;
    Logits expected;
    for (std::uint32_t commit = 0; commit <= 7; ++commit) {
        const HostCaches caches = make_caches(options);
        const std::vector<PageId> pages = pages_of({0});
        const auto forward = [&](Position first, Position state, std::span<const TokenId> rows,
                                 std::uint32_t commit_rows) {
            ops::SequenceRows sequence;
            sequence.row_count = static_cast<std::uint32_t>(rows.size());
            sequence.first_position = first;
            sequence.state_position = state;
            sequence.commit_rows = commit_rows;
            sequence.pages = pages;
            const std::vector<std::uint32_t> logit_rows = {0, 1};
            ops::RowBatch batch;
            batch.sequences = {&sequence, 1};
            batch.tokens = rows;
            batch.logit_rows = logit_rows;
            const auto logits = network_->forward(batch, caches.views());
            return Logits(logits.value().begin(), logits.value().end());
        };
        forward(0, 0, ids, commit);
        const Logits logits = forward(7, commit, after, 2);
        if (commit == 0) expected = logits;
        EXPECT_TRUE(same_bits(logits, expected)) << commit;
    }
}

TEST_P(NetworkTest, DecodingEqualsPrefillUpToRounding) {
    const double tolerance = GetParam().arithmetic == ops::Arithmetic::fp32 ? 1e-4 : 0.15;
    for (const std::size_t length : {1, 16, 17, 18, 19, 20, 21, 64, 65, 100}) {
        const std::vector<TokenId> ids = tokens(length, 40 + length);
        const Logits prefilled = prefill_alone(ids);
        const HostCaches caches = make_caches();
        SequenceRunner runner(*network_, caches.views(), RequestSlot(0), pages_of({0, 1}));
        const Logits decoded = runner.decode(ids).value();
        double squares = 0;
        for (std::size_t i = 0; i < decoded.size(); ++i) {
            squares += std::pow(decoded[i] - prefilled[i], 2);
        }
        // Unit-gain weights: logits are of order one.
        EXPECT_LT(std::sqrt(squares / static_cast<double>(decoded.size())), tolerance) << length;
    }
}

TEST_P(NetworkTest, TapsShowTheLayersAndTheirMeanIsNormedLast) {
    ASSERT_TRUE(network_->set_taps({4, 0}).ok());
    const std::vector<TokenId> ids = tokens(5, 3);
    prefill_alone(ids);
    const std::size_t hidden = config_.hidden;
    std::vector<float> last(5 * hidden), first(5 * hidden), normed(5 * hidden), norm(hidden);
    backend_->read(network_->tap(0), last.data());
    backend_->read(network_->tap(1), first.data());
    backend_->read(network_->hidden(), normed.data());
    EXPECT_FALSE(same_bits(first, last));
    ASSERT_TRUE(weights_.vector("model.language_model.norm.weight", norm).ok());
    for (std::size_t r = 0; r < 5; ++r) {
        double squares = 0;
        for (std::size_t i = 0; i < hidden; ++i) {
            squares += std::pow(last[r * hidden + i], 2);
        }
        const double scale =
            1.0 / std::sqrt(squares / static_cast<double>(hidden) + config_.rms_norm_eps);
        for (std::size_t i = 0; i < hidden; ++i) {
            EXPECT_NEAR(normed[r * hidden + i], last[r * hidden + i] * scale * norm[i], 1e-5);
        }
    }
    EXPECT_FALSE(network_->set_taps({5}).ok());
}

TEST_P(NetworkTest, AnOverriddenEmbeddingReplacesTheTokens) {
    std::vector<TokenId> ids = tokens(70, 8);
    const Logits expected = prefill_alone(ids);
    std::vector<float> features(config_.hidden);
    const auto table =
        weights_.matrix("model.language_model.embed_tokens", config_.vocabulary, config_.hidden);
    ops::dequantise_row(*table, static_cast<std::size_t>(to_int(ids[66])), features.data());
    ids[66] = static_cast<TokenId>((to_int(ids[66]) + 1) % 61);
    EXPECT_FALSE(same_bits(prefill_alone(ids), expected));
    const ops::EmbeddingOverride replacement{66, features.data()};
    const HostCaches caches = make_caches();
    SequenceRunner runner(*network_, caches.views(), RequestSlot(0), pages_of({0, 1}));
    runner.overrides = {&replacement, 1};
    EXPECT_TRUE(same_bits(runner.prefill(ids, 64).value(), expected));
}

// A picture's rows over chunk edges: placeholders anywhere in the prompt, in any chunking.
TEST_P(NetworkTest, PicturesInAnyChunkingLeaveTheSameBits) {
    std::mt19937_64 random(17);
    for (int round = 0; round < 6; ++round) {
        const std::size_t length = 100 + random() % 150;
        const std::vector<TokenId> ids = tokens(length, 40 + static_cast<std::uint64_t>(round));
        const std::size_t first = round == 0 ? 0 : random() % (length - 60);
        const std::size_t count = 1 + random() % 60;
        std::vector<float> features(count * config_.hidden);
        std::normal_distribution<float> normal;
        for (float& value : features) {
            value = normal(random);
        }
        std::vector<ops::EmbeddingOverride> rows;
        for (std::size_t i = 0; i < count; ++i) {
            rows.push_back(
                {static_cast<std::uint32_t>(first + i), features.data() + i * config_.hidden});
        }
        Logits expected;
        for (const std::size_t chunk : {512, 64, 128}) {
            const HostCaches caches = make_caches();
            SequenceRunner runner(*network_, caches.views(), RequestSlot(1),
                                  pages_of({3, 1, 0, 2}));
            runner.overrides = rows;
            const Logits logits = runner.prefill(ids, chunk).value();
            if (expected.empty()) {
                expected = logits;
                EXPECT_FALSE(same_bits(expected, prefill_alone(ids)));
            }
            EXPECT_TRUE(same_bits(logits, expected)) << first << " + " << count << " by " << chunk;
        }
    }
}

TEST_P(NetworkTest, OnlyWantedRowsGetLogits) {
    const std::vector<TokenId> ids = tokens(20, 9);
    const Logits all = prefill_alone(ids);
    const HostCaches caches = make_caches();
    const std::vector<PageId> pages = pages_of({0});
    ops::SequenceRows sequence;
    sequence.row_count = sequence.commit_rows = 20;
    sequence.pages = pages;
    const std::vector<std::uint32_t> wanted = {3, 19};
    ops::RowBatch batch;
    batch.numeric_class = ops::NumericClass::prefill;
    batch.sequences = {&sequence, 1};
    batch.tokens = ids;
    batch.logit_rows = wanted;
    const auto some = network_->forward(batch, caches.views());
    ASSERT_EQ(some.value().size(), 2 * config_.vocabulary);
    EXPECT_TRUE(same_bits(some.value().first(config_.vocabulary), row(all, 3)));
    EXPECT_TRUE(same_bits(some.value().last(config_.vocabulary), row(all, 19)));
    batch.logit_rows = {};
    EXPECT_EQ(network_->forward(batch, caches.views()).value().size(), 0u);
}

TEST_P(NetworkTest, MalformedBatchesAreRefused) {
    const HostCaches caches = make_caches();
    const std::vector<PageId> pages = pages_of({0, 1});
    const std::vector<TokenId> ids = tokens(4, 1);
    const auto refused = [&](auto change) {
        ops::SequenceRows sequence;
        sequence.row_count = sequence.commit_rows = 4;
        sequence.pages = pages;
        std::vector<TokenId> own = ids;
        std::vector<std::uint32_t> logit_rows = {1, 3};
        ops::RowBatch batch;
        batch.numeric_class = ops::NumericClass::prefill;
        change(batch, sequence, own, logit_rows);
        batch.sequences = {&sequence, 1};
        batch.tokens = own;
        batch.logit_rows = logit_rows;
        return !network_->forward(batch, caches.views()).ok();
    };
    using Batch = ops::RowBatch;
    using Sequence = ops::SequenceRows;
    using Ids = std::vector<TokenId>;
    using Wanted = std::vector<std::uint32_t>;
    EXPECT_FALSE(refused([](Batch&, Sequence&, Ids&, Wanted&) {}));
    EXPECT_TRUE(refused([](Batch&, Sequence&, Ids& own, Wanted&) { own[2] = TokenId(61); }));
    EXPECT_TRUE(refused([](Batch&, Sequence&, Ids& own, Wanted&) { own[2] = TokenId(-1); }));
    EXPECT_TRUE(refused([](Batch&, Sequence&, Ids& own, Wanted&) { own.pop_back(); }));
    EXPECT_TRUE(refused([](Batch&, Sequence& s, Ids&, Wanted&) { s.first_row = 1; }));
    EXPECT_TRUE(refused([](Batch&, Sequence& s, Ids&, Wanted&) { s.commit_rows = 3; }));
    EXPECT_TRUE(refused([](Batch&, Sequence& s, Ids&, Wanted&) { s.first_position = 1; }));
    EXPECT_TRUE(refused(
        [](Batch&, Sequence& s, Ids&, Wanted&) { s.first_position = s.state_position = 32; }));
    EXPECT_TRUE(refused(
        [](Batch&, Sequence& s, Ids&, Wanted&) { s.first_position = s.state_position = 128; }));
    EXPECT_TRUE(refused([](Batch& b, Sequence& s, Ids&, Wanted&) {
        b.numeric_class = ops::NumericClass::decode;
        s.state_position = 1;
    }));
    EXPECT_TRUE(refused([](Batch&, Sequence&, Ids&, Wanted& wanted) { wanted = {3, 1}; }));
    EXPECT_TRUE(refused([](Batch&, Sequence&, Ids&, Wanted& wanted) { wanted = {4}; }));
}

TEST(NetworkLoading, NamesTheTensorThatIsMissing) {
    for (const char* name :
         {"lm_head", "model.language_model.layers.2.self_attn.f_a_proj",
          "model.language_model.layers.1.self_attn.indexer.index_kpool_compress_gate",
          "model.language_model.layers.4.mlp.experts.3.down_proj",
          "model.language_model.layers.0.hc_ffn_scale", "model.language_model.norm.weight"}) {
        const auto backend = ops::reference::make_reference_backend(ops::Arithmetic::fp32);
        RandomWeights weights(1, name);
        const auto network = model::Network::load(small_config(), weights, *backend, {});
        ASSERT_FALSE(network.ok()) << name;
        EXPECT_NE(network.error().message().find(name), std::string::npos);
    }
}

}  // namespace
}  // namespace percheron::tests
