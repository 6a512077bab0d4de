// Rows that the MTP layer was not shown are left out of its text: what it keeps and names behind a
// gap is what it would have for a text in which those rows never stood.
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "cache/cache_store.h"
#include "draft/mtp_proposer.h"
#include "draft/verification.h"
#include "model/mtp_layer.h"
#include "ops/cpu/cpu_backend.h"
#include "support/random_model.h"

namespace percheron::draft {
namespace {

constexpr std::uint32_t pages = 4;
constexpr std::uint32_t depth = 3;

class MtpGap : public testing::Test {
  protected:
    struct Layer {
        std::unique_ptr<cache::CacheStore> store;
        std::unique_ptr<MtpProposer> proposer;
    };

    MtpGap() {
        config_.mtp_layers = 1;
        config_.index_pool = 4;
        backend_ = ops::make_cpu_backend({2, ops::Arithmetic::standard, ""}).value();
        options_.max_rows = 256;
        trunk_ = model::Network::load(config_, weights_, *backend_, options_).value();
        for (std::uint32_t page = 0; page < pages; ++page)
            pages_.push_back(PageId(page));
    }

    Layer layer() {
        Layer made;
        const auto shape =
            cache::CacheShape::of(config_, DType::bf16, uncommitted_rows(depth), true);
        made.store = cache::CacheStore::create(shape, pages, 1, *backend_).value();
        made.store->clear_slot(RequestSlot(0));
        made.proposer = std::make_unique<MtpProposer>(
            *trunk_, model::MtpLayer::load(*trunk_, weights_, *backend_, options_).value(),
            made.store->views().latent.back(), 1);
        made.proposer->begin(RequestSlot(0));
        return made;
    }

    // The trunk over positions [first, first + count).
    void compute(cache::CacheStore& store, Position first, std::uint32_t count,
                 ops::NumericClass numeric_class) {
        ops::SequenceRows rows;
        rows.row_count = rows.commit_rows = count;
        rows.first_position = rows.state_position = first;
        rows.pages = pages_;
        ops::RowBatch batch;
        batch.numeric_class = numeric_class;
        batch.sequences = {&rows, 1};
        batch.tokens = std::span(tokens_).subspan(first, count);
        ASSERT_TRUE(trunk_->forward(batch, store.views()).ok());
    }

    // Shows rows [first, first + rows) of `text` and asks for `most` drafts.
    std::vector<TokenId> show(Layer& layer, std::span<const TokenId> text, Position first,
                              std::uint32_t rows, std::uint32_t most,
                              ops::NumericClass numeric_class) {
        std::vector<TokenId> drafts;
        SamplingParameters greedy;
        greedy.temperature = 0;
        DraftSequence seen;
        seen.tokens = text;
        seen.pages = pages_;
        seen.drawing.parameters = &greedy;
        seen.first = first;
        seen.rows = rows;
        seen.most = most;
        seen.drafts = &drafts;
        EXPECT_TRUE(layer.proposer->propose(numeric_class, {&seen, 1}).ok());
        return drafts;
    }

    // Latents and pooled keys of the layer's text of `end` rows.
    std::vector<std::byte> kept(const Layer& layer, Position end) const {
        const ops::LatentPages& all = layer.store->views().latent.back();
        const std::size_t latent = config_.latent * size_of(all.latent_dtype);
        const std::size_t key = config_.index_dim * size_of(all.pooled_dtype);
        std::vector<std::byte> bytes;
        for (Position p = 0; p < end; ++p) {
            const auto* const row = static_cast<const std::byte*>(all.latents) +
                                    p / 64 * all.latent_page_bytes + p % 64 * latent;
            bytes.insert(bytes.end(), row, row + latent);
        }
        for (Position p = 0; p + 4 <= end; p += 4) {
            const auto* const row = static_cast<const std::byte*>(all.pooled) +
                                    p / 64 * all.pooled_page_bytes + p % 64 / 4 * key;
            bytes.insert(bytes.end(), row, row + key);
        }
        return bytes;
    }

    model::ModelConfig config_ = tests::small_config();
    tests::RandomWeights weights_{12};
    model::NetworkOptions options_;
    std::unique_ptr<ops::Backend> backend_;
    std::unique_ptr<model::Network> trunk_;
    std::vector<PageId> pages_;
    std::vector<TokenId> tokens_;
};

TEST_F(MtpGap, LeavesNoTraceInTheLayersText) {
    std::mt19937 random(3);
    for (int trial = 0; trial < 12; ++trial) {
        tokens_ = tests::random_tokens(200, config_.vocabulary, 100 + trial);
        Layer with_gaps = layer(), whole = layer();
        auto trunk_store =
            cache::CacheStore::create(cache::CacheShape::of(config_, DType::bf16, 0, true), pages,
                                      1, *backend_)
                .value();
        trunk_store->clear_slot(RequestSlot(0));
        const auto prompt = static_cast<Position>(1 + random() % 70);
        compute(*trunk_store, 0, prompt, ops::NumericClass::prefill);
        show(with_gaps, std::span(tokens_).first(prompt + 1), 0, prompt, 0,
             ops::NumericClass::prefill);
        show(whole, std::span(tokens_).first(prompt + 1), 0, prompt, 0, ops::NumericClass::prefill);
        // The text that `whole` has seen, and how much shorter it is.
        std::vector<TokenId> text(tokens_.begin(), tokens_.begin() + prompt);
        std::uint32_t gaps = 0;
        for (Position at = prompt; at + 8 < tokens_.size() && at < prompt + 60;) {
            const auto rows = static_cast<std::uint32_t>(1 + random() % 4);
            compute(*trunk_store, at, rows, ops::NumericClass::decode);
            if (random() % 3 == 0) {
                ++gaps;
                at += rows;
                continue;
            }
            const auto most = static_cast<std::uint32_t>(random() % (depth + 1));
            text.insert(text.end(), tokens_.begin() + at, tokens_.begin() + at + rows);
            std::vector<TokenId> seen = text;
            seen.push_back(tokens_[at + rows]);
            const auto end = static_cast<Position>(text.size());
            const auto decode = ops::NumericClass::decode;
            const std::vector<TokenId> drafts =
                show(with_gaps, std::span(tokens_).first(at + rows + 1), at, rows, most, decode);
            ASSERT_EQ(drafts.size(), most);
            ASSERT_EQ(show(whole, seen, end - rows, rows, most, decode), drafts);
            ASSERT_EQ(kept(with_gaps, end), kept(whole, end));
            at += rows;
        }
        EXPECT_GT(gaps, 0u);
    }
}

}  // namespace
}  // namespace percheron::draft
