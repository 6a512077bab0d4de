// Drafts from the model's own MTP layer.
//
// The layer keeps latents of its own for every position, so it is shown every row that stays: row t
// with the trunk's hidden row of t and the token at t + 1.  Of the newest alone the output is read:
// it names the first draft, the others are only kept.  Each further draft costs one more row of the
// layer, which goes on from its own hidden row and the draft before.  Those rows lie at positions
// the true ones are written to later. Drafts are drawn with the sequence's own parameters and the
// noise of their positions.
//
// Generated rows that it was not shown are left out of the layer's text: nothing in the layer knows
// of positions but the order, so what comes after a gap is written right behind what came before.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "percheron/types.h"

#include "core/status.h"
#include "draft/proposer.h"
#include "model/mtp_layer.h"
#include "model/network.h"
#include "ops/batch.h"
#include "sampling/sampler.h"

namespace percheron::draft {

class MtpProposer final : public Proposer {
  public:
    // `pages` are the layer's own.  Trunk and pages outlive the proposer; it looks at the trunk's
    // latest hidden rows.
    MtpProposer(const model::Network& trunk, std::unique_ptr<model::MtpLayer> layer,
                ops::LatentPages pages, std::uint32_t slots);

    std::string_view name() const override { return "mtp"; }
    bool takes_time() const override { return true; }
    bool bridges_gaps() const override { return true; }
    void begin(RequestSlot slot) override { texts_[to_int(slot)] = {}; }
    Status propose(ops::NumericClass step_class, std::span<DraftSequence> sequences) override;

  private:
    // A sequence whose draft goes on, and its row of the layer's latest batch.
    struct Drafting {
        DraftSequence* sequence = nullptr;
        std::uint32_t row = 0;
    };

    // What the layer has seen of a slot's sequence.
    struct SeenText {
        bool begun = false;
        Position end = 0;       // of the sequence, where the next row is expected
        Position left_out = 0;  // rows before it
    };

    void begin_batch();
    void see(const DraftSequence& sequence);
    void add_rows(const DraftSequence& sequence, Position first, std::uint32_t count,
                  std::uint32_t first_hidden);
    ops::RowBatch batch(ops::NumericClass numeric_class) const;
    // The rows that no draft begins from.
    Status keep(ops::NumericClass numeric_class, std::span<const DraftSequence> sequences);
    // Logits for everybody's next draft.
    Result<sampling::LogitRows> run(ops::NumericClass numeric_class, ops::Activations hidden);
    // Draws a draft of each from its row of logits; those that want no more leave the list.
    void draw(const sampling::LogitRows& logits);

    const model::Network& trunk_;
    std::unique_ptr<model::MtpLayer> layer_;
    ops::LatentPages pages_;
    std::vector<SeenText> texts_;  // by slot
    sampling::Sampler sampler_;
    bool blamed_ = false;  // broken logits have been logged

    // Kept for their memory.
    std::vector<ops::SequenceRows> batch_sequences_;
    std::vector<TokenId> batch_tokens_;
    std::vector<ops::EmbeddingOverride> batch_overrides_;
    std::vector<std::uint32_t> logit_rows_;
    std::vector<ops::DigestRequest> digests_;
    std::vector<std::uint32_t> hidden_rows_;
    std::vector<Drafting> drafting_;
};

}  // namespace percheron::draft
