// What the MTP layer promises whatever its weights: chunks and neighbours do not show, rejected
// rows leave no trace, a missing tensor is named.
#include "model/mtp_layer.h"

#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "ops/cpu/cpu_backend.h"
#include "ops/reference/reference_backend.h"
#include "support/host_caches.h"
#include "support/random_model.h"

namespace percheron::tests {
namespace {

class MtpLayerTest : public testing::TestWithParam<DType> {  // of the caches
  protected:
    MtpLayerTest() {
        config_.mtp_layers = 1;
        ops::CpuBackendOptions options;
        options.threads = 2;
        options.arithmetic =
            GetParam() == DType::f32 ? ops::Arithmetic::fp32 : ops::Arithmetic::standard;
        backend_ = ops::make_cpu_backend(options).value();
        network_options_.max_rows = 256;
        network_options_.max_logit_rows = 256;
        trunk_ = model::Network::load(config_, weights_, *backend_, network_options_).value();
        layer_ = model::MtpLayer::load(*trunk_, weights_, *backend_, network_options_).value();
        std::mt19937_64 random(3);
        std::normal_distribution<float> normal;
        hidden_.resize(200 * config_.hidden);
        for (float& value : hidden_) {
            value = normal(random);
        }
        tokens_ = random_tokens(200, config_.vocabulary, 4);
        for (std::uint32_t page = 0; page < 4; ++page) {
            pages_.push_back(PageId(3 - page));
        }
    }

    HostCaches caches() const {
        HostCacheOptions options;
        options.slots = 2;
        options.tail_ring = 12;
        options.kv_dtype = GetParam();
        return HostCaches(config_, options);
    }

    // Hands rows [first, first + count) of the sequence in `slot` to `use`, as the layer takes
    // them.
    template <class Use>
    void with_rows(std::size_t first, std::size_t count, ops::NumericClass numeric_class,
                   std::uint32_t slot, std::span<const TokenId> tokens, Use use) {
        ops::SequenceRows sequence;
        sequence.row_count = sequence.commit_rows = static_cast<std::uint32_t>(count);
        sequence.first_position = sequence.state_position = static_cast<Position>(first);
        sequence.slot = RequestSlot(slot);
        sequence.pages = pages_;
        std::vector<std::uint32_t> all(count);
        std::iota(all.begin(), all.end(), 0u);
        ops::RowBatch batch;
        batch.numeric_class = numeric_class;
        batch.sequences = {&sequence, 1};
        batch.tokens = tokens.empty() ? std::span(tokens_).subspan(first, count) : tokens;
        use(batch,
            ops::Activations{hidden_.data() + first * config_.hidden, DType::f32, count,
                             config_.hidden},
            all);
    }

    std::vector<float> rows(const HostCaches& caches, std::size_t first, std::size_t count,
                            ops::NumericClass numeric_class, std::uint32_t slot = 0,
                            std::span<const TokenId> tokens = {}) {
        std::vector<float> all_logits;
        with_rows(first, count, numeric_class, slot, tokens,
                  [&](ops::RowBatch batch, const ops::Activations& hidden,
                      std::span<const std::uint32_t> all) {
                      batch.logit_rows = all;
                      const auto logits =
                          layer_->forward(batch, hidden, all, caches.views().latent.back());
                      ASSERT_TRUE(logits.ok()) << logits.error().message();
                      all_logits.assign(logits->begin(), logits->end());
                  });
        return all_logits;
    }

    void keep(const HostCaches& caches, std::size_t first, std::size_t count,
              ops::NumericClass numeric_class) {
        with_rows(first, count, numeric_class, 0, {},
                  [&](const ops::RowBatch& batch, const ops::Activations& hidden,
                      std::span<const std::uint32_t> all) {
                      const Status kept =
                          layer_->keep(batch, hidden, all, caches.views().latent.back());
                      EXPECT_TRUE(kept.ok()) << kept.error().message();
                  });
    }

    static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
        return a.size() == b.size() &&
               std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    }

    model::ModelConfig config_ = small_config();
    RandomWeights weights_{9};
    model::NetworkOptions network_options_;
    std::unique_ptr<ops::Backend> backend_;
    std::unique_ptr<model::Network> trunk_;
    std::unique_ptr<model::MtpLayer> layer_;
    std::vector<float> hidden_;
    std::vector<TokenId> tokens_;
    std::vector<PageId> pages_;
};

TEST_P(MtpLayerTest, PrefillInAnyChunkingLeavesTheSameBits) {
    for (const std::size_t length : {1, 63, 64, 65, 150, 200}) {
        const HostCaches whole = caches();
        const auto expected = rows(whole, 0, length, ops::NumericClass::prefill);
        for (const std::size_t chunk : {64, 128}) {
            const HostCaches own = caches();
            std::vector<float> all;
            for (std::size_t first = 0; first < length; first += chunk) {
                const auto part =
                    rows(own, first, std::min(chunk, length - first), ops::NumericClass::prefill);
                all.insert(all.end(), part.begin(), part.end());
            }
            EXPECT_TRUE(same_bits(all, expected)) << length << " by " << chunk;
            EXPECT_EQ(own.memory().back(), whole.memory().back());
        }
    }
}

TEST_P(MtpLayerTest, RowsThatAreOnlyKeptLeaveWhatComputedOnesLeave) {
    std::mt19937_64 random(21);
    for (int trial = 0; trial < 12; ++trial) {
        const HostCaches computed = caches(), kept = caches();
        std::vector<float> expected, given;
        for (std::size_t at = 0; at < 180;) {
            const bool is_prompt = at < 140;
            const auto step = is_prompt ? ops::NumericClass::prefill : ops::NumericClass::decode;
            const std::size_t count =
                std::min<std::size_t>(is_prompt ? 64 * (1 + random() % 2) : 1 + random() % 8,
                                      (is_prompt ? 140 : 180) - at);
            std::size_t before = random() % (count + 1);
            if (is_prompt && before < count) before = before / 64 * 64;
            expected = rows(computed, at, count, step);
            if (before > 0) keep(kept, at, before, step);
            if (before < count) {
                given = rows(kept, at + before, count - before, step);
                expected.erase(expected.begin(), expected.end() - given.size());
                EXPECT_TRUE(same_bits(given, expected)) << at;
            }
            at += count;
        }
        EXPECT_EQ(kept.memory().back(), computed.memory().back());
    }
}

TEST_P(MtpLayerTest, RejectedRowsLeaveNoTrace) {
    const HostCaches straight = caches(), drafted = caches();
    constexpr std::size_t prompt = 70, replies = 60;
    for (const HostCaches* each : {&straight, &drafted}) {
        rows(*each, 0, prompt, ops::NumericClass::prefill);
    }
    std::mt19937_64 random(8);
    std::size_t at = prompt;
    while (at < prompt + replies) {
        // A round whose later rows were drafted wrong, then the true rows over them.
        const std::size_t round = 1 + random() % 8;
        std::vector<TokenId> wrong = random_tokens(round, config_.vocabulary, random());
        rows(drafted, at, round, ops::NumericClass::decode, 0, wrong);
        const std::size_t kept = 1 + random() % round;
        const auto expected = rows(straight, at, kept, ops::NumericClass::decode);
        EXPECT_TRUE(same_bits(rows(drafted, at, kept, ops::NumericClass::decode), expected)) << at;
        at += kept;
    }
}

TEST_P(MtpLayerTest, TheFirstEmbeddingDoesNotMatter) {
    const HostCaches one = caches(), other = caches();
    std::vector<TokenId> tokens(tokens_.begin(), tokens_.begin() + 30);
    const auto expected = rows(one, 0, 30, ops::NumericClass::prefill, 0, tokens);
    tokens[0] = TokenId((to_int(tokens[0]) + 1) % static_cast<int>(config_.vocabulary));
    EXPECT_TRUE(same_bits(rows(other, 0, 30, ops::NumericClass::prefill, 1, tokens), expected));
    tokens[1] = TokenId((to_int(tokens[1]) + 1) % static_cast<int>(config_.vocabulary));
    EXPECT_FALSE(same_bits(rows(other, 0, 30, ops::NumericClass::prefill, 1, tokens), expected));
}

TEST_P(MtpLayerTest, NamesTheTensorThatIsMissingAndTheRowsThatDoNotFit) {
    const std::string at = "model.language_model.layers.5.";
    for (const char* name : {"eh_proj", "shared_head.norm.weight", "mlp.experts.3.up_proj"}) {
        RandomWeights lacking(1, at + name);
        const auto layer = model::MtpLayer::load(*trunk_, lacking, *backend_, network_options_);
        ASSERT_FALSE(layer.ok()) << name;
        EXPECT_NE(layer.error().message().find(name), std::string::npos);
    }
    const HostCaches own = caches();
    ops::SequenceRows sequence;
    sequence.row_count = sequence.commit_rows = 4;
    sequence.pages = pages_;
    ops::RowBatch batch;
    batch.sequences = {&sequence, 1};
    batch.tokens = std::span(tokens_).first(4);
    const ops::Activations short_by_one{hidden_.data(), DType::f32, 3, config_.hidden};
    const std::vector<std::uint32_t> four = {0, 1, 2, 3}, three = {0, 1, 2};
    EXPECT_FALSE(layer_->forward(batch, short_by_one, four, own.views().latent.back()).ok());
    EXPECT_FALSE(layer_->forward(batch, short_by_one, three, own.views().latent.back()).ok());
    EXPECT_FALSE(layer_->keep(batch, short_by_one, four, own.views().latent.back()).ok());
}

INSTANTIATE_TEST_SUITE_P(Every, MtpLayerTest,
                         testing::Values(DType::bf16, DType::f8_e4m3, DType::f32),
                         [](const auto& info) {
                             return info.param == DType::f32    ? "fp32"
                                    : info.param == DType::bf16 ? "standard"
                                                                : "standard_fp8";
                         });

}  // namespace
}  // namespace percheron::tests
