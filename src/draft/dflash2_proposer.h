// Drafts from a DFlash2 drafter (model/dflash2.h): one pass names all of a round's.
//
// The drafter's context is fed with every row that stays, from what the trunk's step left in its
// taps; the block's own rows are kept nowhere, so a rejected draft leaves nothing to be undone.
// Drafts are drawn with the sequence's own parameters and the noise of their positions, from S of
// the drafter's candidates, or from all of U where it has none.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "percheron/types.h"

#include "core/status.h"
#include "draft/context_cache.h"
#include "draft/proposer.h"
#include "model/dflash2.h"
#include "ops/block_drafting.h"
#include "sampling/sampler.h"

namespace percheron::draft {

class Dflash2Proposer final : public Proposer {
  public:
    // `pass_rows` as the drafter's Dflash2Options::block_rows.
    Dflash2Proposer(std::unique_ptr<model::Dflash2> drafter, std::unique_ptr<ContextCache> cache,
                    std::size_t pass_rows);

    std::string_view name() const override { return "dflash2"; }
    bool takes_time() const override { return true; }
    bool one_pass() const override { return true; }
    void begin(RequestSlot slot) override { cache_->clear(slot); }
    void resume(RequestSlot slot, Position position, CheckpointId checkpoint) override {
        cache_->restore(slot, position, checkpoint);
    }
    void save(RequestSlot slot, Position position, CheckpointId checkpoint) override {
        cache_->save(slot, position, checkpoint);
    }
    void forget(CheckpointId checkpoint) override { cache_->forget(checkpoint); }
    void end(RequestSlot slot) override { cache_->clear(slot); }
    Status propose(ops::NumericClass step_class, std::span<DraftSequence> sequences) override;

    const ContextCache& cache() const { return *cache_; }

  private:
    Status add_context(ops::NumericClass step_class, std::span<DraftSequence> sequences);
    // A pass over blocks_ and the drafts of whom they belong to.
    Status draft();
    void walk(DraftSequence& sequence, std::size_t first_place, std::uint32_t places,
              std::span<const float> logits);

    std::unique_ptr<model::Dflash2> drafter_;
    std::unique_ptr<ContextCache> cache_;
    std::size_t pass_rows_;
    sampling::Sampler sampler_;
    bool blamed_ = false;  // broken logits have been logged

    // Kept for their memory.
    std::vector<ops::DraftRows> rows_;
    std::vector<std::uint32_t> tap_rows_;
    std::vector<ops::DraftRows> blocks_;
    std::vector<TokenId> newest_;
    std::vector<DraftSequence*> drafting_;
    std::vector<float> scores_;           // [vocabulary], zero but for candidates in hand
    std::vector<std::uint32_t> allowed_;  // their bits
};

}  // namespace percheron::draft
