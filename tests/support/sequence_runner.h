// One sequence driven through a network step by step, for tests and golden comparisons.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "core/status.h"
#include "model/network.h"
#include "support/host_caches.h"

namespace percheron::tests {

class SequenceRunner {
  public:
    SequenceRunner(model::Network& network, const model::CacheViews& caches, RequestSlot slot,
                   std::vector<PageId> pages)
        : network_(network), caches_(caches), slot_(slot), pages_(std::move(pages)) {}

    Position length() const { return length_; }

    // The slot holds the state of `position` tokens, the pages all of theirs: go on from there.
    void resume_at(Position position) { length_ = state_ = position; }

    // Called after every step with the step's row count, while the network still holds its rows.
    std::function<void(std::size_t rows)> after_step;
    std::span<const ops::EmbeddingOverride> overrides;  // rows counted from the prompt's start

    // The whole prompt in prefill class, `chunk` positions a step (a multiple of 64).  Returns
    // logits of every position [T][vocabulary].
    Result<std::vector<float>> prefill(std::span<const TokenId> ids, std::size_t chunk) {
        std::vector<float> all;
        for (std::size_t done = 0; done < ids.size(); done += chunk) {
            const std::size_t count = std::min(chunk, ids.size() - done);
            ops::SequenceRows rows = next_rows(count);
            rows.commit_rows = rows.row_count;
            PERCHERON_ASSIGN(const auto logits,
                             step(ops::NumericClass::prefill, rows, ids.subspan(done, count)));
            all.insert(all.end(), logits.begin(), logits.end());
        }
        return all;
    }

    // Rows in decode class, all committed.  Returns logits of every row.
    Result<std::vector<float>> decode(std::span<const TokenId> ids) {
        ops::SequenceRows rows = next_rows(ids.size());
        rows.commit_rows = rows.row_count;
        PERCHERON_ASSIGN(const auto logits, step(ops::NumericClass::decode, rows, ids));
        return std::vector<float>(logits.begin(), logits.end());
    }

    // Rows in decode class of which none is committed, and `accepted` are kept: the next step
    // starts behind them.
    Result<std::vector<float>> verify(std::span<const TokenId> ids, std::size_t accepted) {
        const Position first = length_;
        ops::SequenceRows rows = next_rows(ids.size());
        PERCHERON_ASSIGN(const auto logits, step(ops::NumericClass::decode, rows, ids));
        length_ = first + static_cast<Position>(accepted);
        return std::vector<float>(logits.begin(), logits.end());
    }

  private:
    ops::SequenceRows next_rows(std::size_t count) const {
        ops::SequenceRows rows;
        rows.row_count = static_cast<std::uint32_t>(count);
        rows.first_position = length_;
        rows.state_position = state_;
        rows.slot = slot_;
        rows.pages = pages_;
        return rows;
    }

    Result<std::span<const float>> step(ops::NumericClass numeric_class,
                                        const ops::SequenceRows& rows,
                                        std::span<const TokenId> ids) {
        std::vector<std::uint32_t> logit_rows(ids.size());
        for (std::size_t i = 0; i < ids.size(); ++i) {
            logit_rows[i] = static_cast<std::uint32_t>(i);
        }
        std::vector<ops::EmbeddingOverride> own;
        for (ops::EmbeddingOverride replacement : overrides) {
            if (replacement.row < length_ || replacement.row >= length_ + ids.size()) continue;
            replacement.row -= length_;
            own.push_back(replacement);
        }
        ops::RowBatch batch;
        batch.numeric_class = numeric_class;
        batch.sequences = {&rows, 1};
        batch.tokens = ids;
        batch.overrides = own;
        batch.logit_rows = logit_rows;
        PERCHERON_ASSIGN(const auto logits, network_.forward(batch, caches_));
        if (after_step) after_step(ids.size());
        length_ += rows.row_count;
        state_ = rows.first_position + rows.commit_rows;
        return logits;
    }

    model::Network& network_;
    const model::CacheViews& caches_;
    RequestSlot slot_;
    std::vector<PageId> pages_;
    Position length_ = 0;
    Position state_ = 0;
};

}  // namespace percheron::tests
