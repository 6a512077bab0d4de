#include "draft/mtp_proposer.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "core/logging.h"
#include "draft/draw.h"

namespace percheron::draft {
namespace {

// Of a sequence's rows, those that nothing is drafted from; a prompt's end on the grid its chunks
// begin on.
std::uint32_t rows_kept(ops::NumericClass numeric_class, const DraftSequence& sequence) {
    if (sequence.rows == 0 || sequence.most == 0) return sequence.rows;
    constexpr auto page = static_cast<std::uint32_t>(ops::page_tokens);
    const std::uint32_t before = sequence.rows - 1;
    return numeric_class == ops::NumericClass::prefill ? before / page * page : before;
}

}  // namespace

MtpProposer::MtpProposer(const model::Network& trunk, std::unique_ptr<model::MtpLayer> layer,
                         ops::LatentPages pages, std::uint32_t slots)
    : trunk_(trunk),
      layer_(std::move(layer)),
      pages_(pages),
      texts_(slots),
      sampler_(trunk.config().vocabulary) {}

void MtpProposer::begin_batch() {
    batch_sequences_.clear();
    batch_tokens_.clear();
    batch_overrides_.clear();
    logit_rows_.clear();
    digests_.clear();
    hidden_rows_.clear();
}

void MtpProposer::see(const DraftSequence& sequence) {
    SeenText& text = texts_[to_int(sequence.slot)];
    if (!text.begun) {
        text = {true, sequence.first, 0};  // what lies before is in the prefix cache's pages
    }
    assert(sequence.first >= text.end);
    text.left_out += sequence.first - text.end;
    text.end = sequence.first + sequence.rows;
}

void MtpProposer::add_rows(const DraftSequence& sequence, Position first, std::uint32_t count,
                           std::uint32_t first_hidden) {
    ops::SequenceRows rows;
    rows.first_row = static_cast<std::uint32_t>(batch_tokens_.size());
    rows.row_count = count;
    rows.first_position = first - texts_[to_int(sequence.slot)].left_out;
    rows.state_position = rows.first_position;
    rows.commit_rows = count;
    rows.slot = sequence.slot;
    rows.pages = sequence.pages;
    batch_sequences_.push_back(rows);
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::size_t next = std::size_t{first} + i + 1;
        const std::size_t known = sequence.tokens.size();
        const std::size_t draft = next - std::min(next, known);
        if (next < known) {
            batch_tokens_.push_back(sequence.tokens[next]);
        } else if (draft < sequence.drafts->size()) {
            batch_tokens_.push_back((*sequence.drafts)[draft]);
        } else {
            // The end of a text that is only kept for others: any token will do, or the layer's
            // latent would be missing there.
            batch_tokens_.push_back(sequence.tokens.back());
        }
        hidden_rows_.push_back(first_hidden + i);
    }
    for (const DraftSequence::Features& features : sequence.features) {
        if (features.position > first && features.position <= first + count) {
            batch_overrides_.push_back(
                {rows.first_row + features.position - first - 1, features.values});
        }
    }
}

ops::RowBatch MtpProposer::batch(ops::NumericClass numeric_class) const {
    ops::RowBatch batch;
    batch.numeric_class = numeric_class;
    batch.sequences = batch_sequences_;
    batch.tokens = batch_tokens_;
    batch.overrides = batch_overrides_;
    batch.logit_rows = logit_rows_;
    batch.digests = digests_;
    return batch;
}

Result<sampling::LogitRows> MtpProposer::run(ops::NumericClass numeric_class,
                                             ops::Activations hidden) {
    ops::DigestedRows* const digested = layer_->digested();
    if (digested != nullptr) {
        for (const Drafting& drafting : drafting_) {
            const DraftSequence& sequence = *drafting.sequence;
            const auto position =
                static_cast<Position>(sequence.tokens.size() + sequence.drafts->size());
            digests_.push_back(digest_for(sequence.drawing, position));
        }
    }
    PERCHERON_ASSIGN(const std::span<const float> logits,
                     layer_->forward(batch(numeric_class), hidden, hidden_rows_, pages_));
    return sampling::LogitRows(logits, trunk_.config().vocabulary, digested);
}

Status MtpProposer::keep(ops::NumericClass numeric_class,
                         std::span<const DraftSequence> sequences) {
    begin_batch();
    for (const DraftSequence& sequence : sequences) {
        const std::uint32_t kept = rows_kept(numeric_class, sequence);
        if (kept > 0) add_rows(sequence, sequence.first, kept, sequence.first_row);
    }
    if (batch_tokens_.empty()) return {};
    return layer_->keep(batch(numeric_class), trunk_.hidden(), hidden_rows_, pages_);
}

Status MtpProposer::propose(ops::NumericClass step_class, std::span<DraftSequence> sequences) {
    for (const DraftSequence& sequence : sequences) {
        if (sequence.rows > 0) see(sequence);
    }
    PERCHERON_TRY(keep(step_class, sequences));
    begin_batch();
    drafting_.clear();
    for (DraftSequence& sequence : sequences) {
        const std::uint32_t kept = rows_kept(step_class, sequence);
        if (kept == sequence.rows) continue;
        add_rows(sequence, sequence.first + kept, sequence.rows - kept, sequence.first_row + kept);
        const auto row = static_cast<std::uint32_t>(batch_tokens_.size() - 1);
        logit_rows_.push_back(row);
        drafting_.push_back({&sequence, row});
    }
    if (batch_tokens_.empty()) {
        return {};
    }
    PERCHERON_ASSIGN(sampling::LogitRows logits, run(step_class, trunk_.hidden()));
    draw(logits);
    while (!drafting_.empty()) {
        begin_batch();
        for (Drafting& drafting : drafting_) {
            DraftSequence& sequence = *drafting.sequence;
            const auto position =
                static_cast<Position>(sequence.tokens.size() + sequence.drafts->size() - 2);
            add_rows(sequence, position, 1, drafting.row);
            drafting.row = static_cast<std::uint32_t>(batch_tokens_.size() - 1);
            logit_rows_.push_back(drafting.row);
        }
        PERCHERON_ASSIGN(logits, run(ops::NumericClass::decode, layer_->hidden()));
        draw(logits);
    }
    return {};
}

void MtpProposer::draw(const sampling::LogitRows& logits) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < drafting_.size(); ++i) {
        DraftSequence& sequence = *drafting_[i].sequence;
        const Result<TokenId> token =
            draw_draft(sampler_, sequence.drawing, logits[i],
                       static_cast<Position>(sequence.tokens.size()), *sequence.drafts);
        if (!token.ok()) {
            if (!std::exchange(blamed_, true)) {
                log_warning("the MTP layer drafts nothing here: " + token.error().message());
            }
            continue;
        }
        sequence.drafts->push_back(*token);
        if (sequence.drafts->size() < sequence.most) {
            drafting_[kept++] = drafting_[i];
        }
    }
    drafting_.resize(kept);
}

}  // namespace percheron::draft
