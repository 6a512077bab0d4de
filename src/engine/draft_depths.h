// `--draft auto`: who drafts for whom and how deep, decided while running.
//
// Chances are learned by sequence, proposer and strength; times by rows of a step and by sequences
// of a pass (draft/step_costs.h); each step's depths are then those that give the whole batch the
// most tokens a second (draft/depth_policy.h), down to none.  A draft that is not expected to pay
// but may, for all that has been seen, is tried from an allowance (draft/ledger.h), so that texts
// that change are noticed; now and then a step of a long run of drafted ones goes without, and one
// whose likely copies are cut short takes them whole, so that the times compared stay fresh.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "draft/depth_policy.h"
#include "draft/ledger.h"
#include "draft/proposer.h"
#include "draft/step_costs.h"
#include "draft/verification.h"
#include "engine/sequence.h"

namespace percheron::engine {

class DraftDepths {
  public:
    using Proposers = std::vector<std::unique_ptr<draft::Proposer>>;

    // `proposers` outlive this.
    DraftDepths(const Proposers& proposers, const draft::StepShape& shape);

    // The sequence got its slot.
    void begin(Sequence& sequence);
    // A round of the sequence's is over.
    void learn(Sequence& sequence, std::uint32_t drafted, const draft::Verdict& verdict);
    // Times measured at the start.
    void probed_step(std::uint32_t rows, std::uint32_t sequences, double seconds) {
        step_costs_.probe(rows, seconds, sequences);
    }
    // Of a step of one row: what each further sequence adds to a step of as many rows.
    void probed_sequence(double share) { step_costs_.set_sequence_share(share); }
    void probed_passes(std::uint32_t proposer, std::uint32_t sequences, std::uint32_t passes,
                       double seconds) {
        pass_costs_[proposer].probe(sequences, seconds / passes);
    }
    // A decode step that gave `tokens` to `sequences`: `seconds` until its logits were there, and
    // `drawing` until the tokens were drawn and taken.
    void saw_step(std::uint32_t rows, std::uint32_t sequences, std::uint32_t tokens, double seconds,
                  double drawing);
    // A proposer named `drafts` for `sequences` in `passes`, drawing included.
    void saw_passes(std::uint32_t proposer, std::uint32_t sequences, std::uint32_t passes,
                    std::uint32_t drafts, double seconds);

    // A sequence that may have drafts in the next step.
    struct Candidate {
        Sequence* sequence = nullptr;
        std::uint32_t copies = 0;  // named already, by the sequence's drafting.proposer
        std::uint32_t most = 0;    // drafts that anybody may name

        // The answer: so many of the copies, or so many drafts of the timed proposer.
        std::uint32_t copied = 0;
        std::uint32_t timed = 0;
    };
    // Fills the answers; the timed proposer they speak of, or none.
    static constexpr std::uint32_t nobody = 0xffffffffu;
    std::uint32_t choose(std::span<Candidate> candidates);

    const draft::StepCosts& step_costs() const { return step_costs_; }

  private:
    draft::Offer offer_of(const Sequence& sequence, std::uint32_t proposer, std::uint32_t strength,
                          std::uint32_t most) const;
    static std::array<double, 3> hopes_of(const Sequence& sequence, std::uint32_t proposer,
                                          std::uint32_t strength);
    draft::RoundCosts costs_of(std::uint32_t timed) const;
    double plain_seconds(double sequences) const;
    void list(std::span<const Candidate> candidates, std::uint32_t timed);
    void explore(std::span<Candidate> candidates, std::uint32_t timed);
    void deepen(std::span<Candidate> candidates);
    void settle(std::span<Candidate> candidates, std::uint32_t timed);

    const Proposers& proposers_;
    draft::StepCosts step_costs_;
    std::vector<draft::StepCosts> pass_costs_;  // by proposer; of those that take time
    std::vector<draft::Account> accounts_;      // by proposer
    draft::Allowance allowance_;
    draft::DepthPolicy policy_;
    std::vector<draft::Beliefs> beliefs_;  // what new sequences start with, by kind

    double draw_seconds_ = 0;        // of a token, by the latest steps
    double pass_seconds_ = 0;        // since the latest step
    std::uint32_t drafters_ = 0;     // of the step under way, a bit each
    std::uint32_t drafted_run_ = 0;  // steps in a row with drafts
    std::uint32_t plain_steps_ = 0;  // without, since times changed
    std::uint32_t shallow_run_ = 0;  // steps whose copies were cut short, since the latest deep one
    std::uint32_t deep_steps_ = 0;   // since times changed
    std::uint32_t passed_ = nobody;  // whose passes the latest step had
    double gain_ = 1;                // of the latest choice over none, as expected
    double seconds_a_token_ = 0;     // of a step without drafts

    std::vector<draft::Choice> choices_, best_choices_;
};

}  // namespace percheron::engine
