#include "engine/draft_depths.h"

#include <algorithm>

namespace percheron::engine {
namespace {

using draft::Belief;
using draft::Proposer;

// What a sequence starts with of what others have shown, as so many tries, and never so little that
// nothing is tried.
constexpr double tries_of_others = 4;
constexpr double least_hope = 0.4;
// For so many steps without a draft a proposer that bridges no gaps is kept up to date.
constexpr std::uint32_t patience = 16;
// Of so many drafted steps in a row one is left without; more often while few were.
constexpr std::uint32_t steps_between_plain = 48;
constexpr std::uint32_t steps_between_first_plain = 12;
constexpr std::uint32_t plain_steps_to_know = 24;
// A sequence waits so many steps before something is tried on it.
constexpr std::uint32_t steps_between_tries = 4;
// Of a step of one row, before a pass has been measured.
constexpr double guessed_share_of_a_pass = 0.15;

}  // namespace

DraftDepths::DraftDepths(const Proposers& proposers, const draft::StepShape& shape)
    : proposers_(proposers),
      step_costs_(shape),
      pass_costs_(proposers.size(), draft::StepCosts(shape)),
      accounts_(proposers.size()) {
    for (const auto& proposer : proposers) {
        // What goes on as it did for two tokens mostly goes on.
        const draft::Beliefs copies = {Belief(0.6, 10), Belief(0.8, 10), Belief(0.9, 10)};
        const draft::Beliefs timed = {Belief(0.7, 10), Belief(0.6, 10), Belief(0.6, 10)};
        beliefs_.insert(beliefs_.end(), Proposer::strengths,
                        proposer->takes_time() ? timed : copies);
    }
}

void DraftDepths::begin(Sequence& sequence) {
    Drafting& drafting = sequence.drafting;
    drafting.beliefs.clear();
    for (const draft::Beliefs& others : beliefs_) {
        const auto hope = [](const Belief& belief) {
            return Belief(std::max(belief.chance(), least_hope), tries_of_others);
        };
        drafting.beliefs.push_back({hope(others[0]), hope(others[1]), hope(others[2])});
    }
    drafting.undrafted = 0;
    drafting.missed = 0;
    drafting.tried = false;
}

void DraftDepths::learn(Sequence& sequence, std::uint32_t drafted, const draft::Verdict& verdict) {
    Drafting& drafting = sequence.drafting;
    const std::size_t kind = drafting.proposer * Proposer::strengths + drafting.strength;
    // The first that does not hold is a try too, unless the sequence ended before it was looked at.
    const bool failed = verdict.accepted < drafted && !verdict.ended;
    for (std::uint32_t i = 0; i < verdict.accepted + (failed ? 1 : 0); ++i) {
        const bool holds = i < verdict.accepted;
        drafting.beliefs[kind][std::min(i, 2u)].see(holds);
        beliefs_[kind][std::min(i, 2u)].see(holds);
    }
    if (drafting.tried) {
        allowance_.earn(verdict.accepted * seconds_a_token_);
        drafting.tried = false;
    }
}

void DraftDepths::saw_step(std::uint32_t rows, std::uint32_t sequences, std::uint32_t tokens,
                           double seconds) {
    observe_step(rows, seconds);
    const double took = seconds + pass_seconds_;
    plain_steps_ += rows == sequences ? 1 : 0;
    allowance_.grow(took);
    seconds_a_token_ = step_costs_.seconds(sequences) / sequences;
    for (std::uint32_t proposer = 0; proposer < accounts_.size(); ++proposer) {
        if ((drafters_ >> proposer & 1u) == 0) {
            accounts_[proposer].pass_by();
        } else if (drafters_ == 1u << proposer) {
            accounts_[proposer].round(took, tokens * seconds_a_token_);
        }
    }
    pass_seconds_ = 0;
}

void DraftDepths::saw_passes(std::uint32_t proposer, std::uint32_t sequences, std::uint32_t passes,
                             double seconds) {
    observe_passes(proposer, sequences, passes, seconds);
    pass_seconds_ += seconds;
}

draft::Offer DraftDepths::offer_of(const Sequence& sequence, std::uint32_t proposer,
                                   std::uint32_t strength, std::uint32_t most) const {
    const draft::Beliefs& beliefs =
        sequence.drafting.beliefs[proposer * Proposer::strengths + strength];
    return {{beliefs[0].chance(), beliefs[1].chance(), beliefs[2].chance()}, most};
}

void DraftDepths::list(std::span<const Candidate> candidates, std::uint32_t timed) {
    choices_.clear();
    for (const Candidate& candidate : candidates) {
        const Drafting& drafting = candidate.sequence->drafting;
        draft::Choice choice;
        if (candidate.copies > 0 && !accounts_[drafting.proposer].resting()) {
            choice.copy = offer_of(*candidate.sequence, drafting.proposer, drafting.strength,
                                   candidate.copies);
        }
        if (timed != nobody && !(drafting.missed >> timed & 1u)) {
            choice.timed = offer_of(*candidate.sequence, timed, 0, candidate.most);
        }
        choices_.push_back(choice);
    }
}

std::uint32_t DraftDepths::choose(std::span<Candidate> candidates) {
    if (candidates.empty() || !step_costs_.known()) {
        return nobody;
    }
    if (drafted_run_ >=
        (plain_steps_ < plain_steps_to_know ? steps_between_first_plain : steps_between_plain)) {
        settle(candidates, nobody);
        return nobody;
    }
    std::uint32_t best = nobody;
    double best_rate = 0;
    const bool drafting = drafted_run_ > 0;
    bool asked = false;
    for (std::uint32_t proposer = 0; proposer < proposers_.size(); ++proposer) {
        if (!proposers_[proposer]->takes_time() || accounts_[proposer].resting()) {
            continue;
        }
        if (!pass_costs_[proposer].known()) {
            pass_costs_[proposer].observe(1, guessed_share_of_a_pass * step_costs_.seconds(1));
        }
        list(candidates, proposer);
        const draft::RoundCosts costs{&step_costs_, &pass_costs_[proposer],
                                      proposers_[proposer]->one_pass()};
        const double rate = policy_.choose(choices_, costs, drafting, passed_ == proposer);
        if (!asked || rate > best_rate) {
            best_rate = rate;
            best = proposer;
            best_choices_ = choices_;
        }
        asked = true;
    }
    if (!asked) {
        list(candidates, nobody);
        policy_.choose(choices_, {&step_costs_, nullptr, false}, drafting, false);
        best_choices_ = choices_;
    }
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        const draft::Choice& choice = best_choices_[i];
        (choice.use_timed ? candidates[i].timed : candidates[i].copied) = choice.depth;
    }
    explore(candidates, best);
    settle(candidates, best);
    return best;
}

// One draft that is not expected to pay, for who has gone without the longest.
void DraftDepths::explore(std::span<Candidate> candidates, std::uint32_t& timed) {
    Candidate* longest = nullptr;
    std::uint32_t drafts = 0;
    bool passes = false;
    for (Candidate& candidate : candidates) {
        drafts += candidate.copied + candidate.timed;
        passes |= candidate.timed > 0;
        const bool idle = candidate.copied + candidate.timed == 0 &&
                          candidate.sequence->drafting.undrafted >= steps_between_tries;
        if (idle && (longest == nullptr || candidate.sequence->drafting.undrafted >
                                               longest->sequence->drafting.undrafted)) {
            longest = &candidate;
        }
    }
    if (longest == nullptr) {
        return;
    }
    const bool may_pass =
        timed != nobody && longest->most > 0 && !(longest->sequence->drafting.missed >> timed & 1u);
    const bool copy = longest->copies > 0 && (copies_next_ || !may_pass);
    if (!copy && !may_pass) {
        return;
    }
    const auto rows = static_cast<double>(candidates.size() + drafts);
    double cost = step_costs_.seconds(rows + 1) - step_costs_.seconds(rows);
    if (!copy && !passes) {
        cost += pass_costs_[timed].seconds(1);
    }
    if (!allowance_.spend(cost)) {
        return;
    }
    (copy ? longest->copied : longest->timed) = 1;
    longest->sequence->drafting.tried = true;
    copies_next_ = !copies_next_;
}

// Who drafts, and who has gone without for how long.
void DraftDepths::settle(std::span<Candidate> candidates, std::uint32_t timed) {
    std::uint32_t no_gaps = 0;
    for (std::uint32_t proposer = 0; proposer < proposers_.size(); ++proposer) {
        if (proposers_[proposer]->takes_time() && !proposers_[proposer]->bridges_gaps()) {
            no_gaps |= 1u << proposer;
        }
    }
    drafters_ = 0;
    passed_ = nobody;
    for (Candidate& candidate : candidates) {
        Drafting& drafting = candidate.sequence->drafting;
        if (candidate.timed > 0) {
            drafting.proposer = timed;
            drafting.strength = 0;
            passed_ = timed;
        }
        if (candidate.copied + candidate.timed > 0) {
            drafting.undrafted = 0;
            drafters_ |= 1u << drafting.proposer;
        } else if (++drafting.undrafted >= patience) {
            drafting.missed |= no_gaps;
        }
    }
    drafted_run_ = drafters_ != 0 ? drafted_run_ + 1 : 0;
}

}  // namespace percheron::engine
