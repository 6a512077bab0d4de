#include "draft/dflash2_proposer.h"

#include <algorithm>
#include <utility>

#include "core/logging.h"
#include "draft/draw.h"

namespace percheron::draft {

Dflash2Proposer::Dflash2Proposer(std::unique_ptr<model::Dflash2> drafter,
                                 std::unique_ptr<ContextCache> cache, std::size_t pass_rows)
    : drafter_(std::move(drafter)),
      cache_(std::move(cache)),
      pass_rows_(pass_rows),
      sampler_(drafter_->config().vocabulary),
      scores_(drafter_->config().vocabulary),
      allowed_((drafter_->config().vocabulary + 31) / 32) {}

Status Dflash2Proposer::propose(ops::NumericClass step_class, std::span<DraftSequence> sequences) {
    cache_->begin_step();
    PERCHERON_TRY(add_context(step_class, sequences));
    const std::size_t limit = drafter_->config().context_limit;
    blocks_.clear();
    newest_.clear();
    drafting_.clear();
    std::uint32_t pass = 0;
    for (DraftSequence& sequence : sequences) {
        if (sequence.most == 0) continue;
        const ops::DraftContext context = cache_->context(sequence.slot);
        const auto here = static_cast<Position>(sequence.tokens.size() - 1);
        const auto places = std::min<std::uint32_t>(
            sequence.most, static_cast<std::uint32_t>(drafter_->config().block) - 1);
        // Without context nothing sensible comes; beyond the drafter's limit nothing at all.
        if (context.end != here || context.begin == context.end || here + places >= limit) continue;
        if (pass + 1 + places > pass_rows_) {
            PERCHERON_TRY(draft());
            pass = 0;
        }
        blocks_.push_back({pass, 1 + places, here, context});
        newest_.push_back(sequence.tokens.back());
        drafting_.push_back(&sequence);
        pass += 1 + places;
    }
    return draft();
}

// The step's rows that stay, as far as blocks to come can see them.
Status Dflash2Proposer::add_context(ops::NumericClass step_class,
                                    std::span<DraftSequence> sequences) {
    rows_.clear();
    tap_rows_.clear();
    for (const DraftSequence& sequence : sequences) {
        if (sequence.rows == 0) continue;
        const Position end = sequence.first + sequence.rows;
        if (end > drafter_->config().context_limit) {
            cache_->clear(sequence.slot);
            continue;
        }
        const Position first = cache_->extend(sequence.slot, sequence.first, end);
        if (first == end) continue;
        ops::DraftRows rows;
        rows.first_row = static_cast<std::uint32_t>(tap_rows_.size());
        rows.row_count = end - first;
        rows.first_position = first;
        rows.context = cache_->context(sequence.slot);
        rows_.push_back(rows);
        for (Position position = first; position < end; ++position) {
            tap_rows_.push_back(sequence.first_row + (position - sequence.first));
        }
    }
    if (rows_.empty()) return {};
    return drafter_->add_context(step_class, rows_, tap_rows_, cache_->views());
}

Status Dflash2Proposer::draft() {
    if (blocks_.empty()) return {};
    PERCHERON_ASSIGN(const std::span<const float> logits,
                     drafter_->name(blocks_, newest_, cache_->views()));
    std::size_t place = 0;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
        const std::uint32_t places = blocks_[i].row_count - 1;
        walk(*drafting_[i], place, places, logits);
        place += places;
    }
    blocks_.clear();
    newest_.clear();
    drafting_.clear();
    return {};
}

// From the left: what a place's token is depends on the one before.
void Dflash2Proposer::walk(DraftSequence& sequence, std::size_t first_place, std::uint32_t places,
                           std::span<const float> logits) {
    const std::size_t vocabulary = drafter_->config().vocabulary;
    const auto first = static_cast<Position>(sequence.tokens.size());
    TokenId before = sequence.tokens.back();
    for (std::uint32_t i = 0; i < places; ++i) {
        const std::size_t place = first_place + i;
        Result<TokenId> token = [&] {
            if (!drafter_->selects()) {
                return draw_draft(sampler_, sequence.drawing,
                                  logits.subspan(place * vocabulary, vocabulary), first,
                                  *sequence.drafts);
            }
            const auto candidates = drafter_->candidates(place, before);
            for (const auto& candidate : candidates) {
                const auto id = static_cast<std::size_t>(to_int(candidate.id));
                scores_[id] = candidate.score;
                allowed_[id / 32] |= 1u << id % 32;
            }
            Result<TokenId> drawn =
                draw_draft(sampler_, sequence.drawing, scores_, first, *sequence.drafts, allowed_);
            for (const auto& candidate : candidates) {
                const auto id = static_cast<std::size_t>(to_int(candidate.id));
                scores_[id] = 0;
                allowed_[id / 32] = 0;
            }
            return drawn;
        }();
        if (!token.ok()) {
            // All candidates may be masked here; anything else is a fault of the drafter's.
            if (token.error().reason() == reasons::numerical_fault &&
                !std::exchange(blamed_, true)) {
                log_warning("the dflash2 drafter drafts nothing here: " + token.error().message());
            }
            return;
        }
        sequence.drafts->push_back(*token);
        before = *token;
    }
}

}  // namespace percheron::draft
