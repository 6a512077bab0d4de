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
// What an engine starts with, as so many tries: the longer a text has repeated itself, the likelier
// it goes on.
constexpr std::array<std::array<double, 3>, Proposer::strengths> chances_of_copies = {
    {{0.6, 0.65, 0.85}, {0.85, 0.85, 0.9}, {0.95, 0.96, 0.98}}};
constexpr std::array<double, 3> chances_of_passes = {0.7, 0.6, 0.6};
constexpr double tries_at_first = 10;
// For so many steps without a draft a proposer that bridges no gaps is kept up to date.
constexpr std::uint32_t patience = 16;
// One of so many drafted steps in a row is left without, so that what that loses is this share:
// where drafts gain little the comparison is a close one, and often made.  While few were made they
// lie closer: what was measured at the start may have been the machine's other work.
constexpr double price_of_plain = 0.01;
constexpr double fewest_between_plain = 4;
constexpr double most_between_plain = 256;
constexpr std::uint32_t plain_steps_to_know = 6;

std::uint32_t steps_to_next_plain(double gain, std::uint32_t plain_steps) {
    const auto early = fewest_between_plain * (1u << std::min(plain_steps, plain_steps_to_know));
    return static_cast<std::uint32_t>(std::clamp((gain - 1) / price_of_plain, fewest_between_plain,
                                                 std::min(early, most_between_plain)));
}
// Steps of copies cut short before one with whole ones, twice as many after each, so often.
constexpr std::uint32_t fewest_before_deep = 4;
constexpr std::uint32_t deep_steps_to_know = 5;
constexpr double least_chance_of_deep = 0.7;
// A sequence waits so many steps before something is tried on it.
constexpr std::uint32_t steps_between_tries = 4;
constexpr std::uint32_t drafts_of_a_try = 2;
// What the latest step says of how long tokens take to draw, and what of a pass is its own at
// least: a pass may draw faster than the step did.
constexpr double drawing_gain = 0.2;
constexpr double least_of_a_pass = 0.3;
// Of a step of one row, before a pass has been measured.
constexpr double guessed_share_of_a_pass = 0.15;

}  // namespace

DraftDepths::DraftDepths(const Proposers& proposers, const draft::StepShape& shape)
    : proposers_(proposers),
      step_costs_(shape),
      pass_costs_(proposers.size(), draft::StepCosts(shape)),
      accounts_(proposers.size()) {
    for (const auto& proposer : proposers) {
        for (std::uint32_t strength = 0; strength < Proposer::strengths; ++strength) {
            const std::array<double, 3>& chances =
                proposer->takes_time() ? chances_of_passes : chances_of_copies[strength];
            beliefs_.push_back({Belief(chances[0], tries_at_first),
                                Belief(chances[1], tries_at_first),
                                Belief(chances[2], tries_at_first)});
        }
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

// Of a step without drafts.
double DraftDepths::plain_seconds(double sequences) const {
    return step_costs_.seconds(sequences, sequences) + draw_seconds_ * sequences;
}

void DraftDepths::saw_step(std::uint32_t rows, std::uint32_t sequences, std::uint32_t tokens,
                           double seconds, double drawing) {
    const std::uint32_t moves = step_costs_.moves();
    step_costs_.observe(rows, seconds, sequences);
    const double drawn = drawing / std::max(tokens, 1u);
    draw_seconds_ += (draw_seconds_ == 0 ? 1 : drawing_gain) * (drawn - draw_seconds_);
    const double took = seconds + drawing + pass_seconds_;
    plain_steps_ += rows == sequences ? 1 : 0;
    // Where times have changed, drafted and plain steps are compared anew.
    if (step_costs_.moves() != moves) plain_steps_ = deep_steps_ = 0;
    allowance_.grow(took);
    seconds_a_token_ = plain_seconds(sequences) / sequences;
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
                             std::uint32_t drafts, double seconds) {
    const double alone = std::max(seconds - drafts * draw_seconds_, least_of_a_pass * seconds);
    pass_costs_[proposer].observe(sequences, alone / passes);
    pass_seconds_ += seconds;
}

draft::Offer DraftDepths::offer_of(const Sequence& sequence, std::uint32_t proposer,
                                   std::uint32_t strength, std::uint32_t most) const {
    const draft::Beliefs& beliefs =
        sequence.drafting.beliefs[proposer * Proposer::strengths + strength];
    return {{beliefs[0].chance(), beliefs[1].chance(), beliefs[2].chance()}, most};
}

std::array<double, 3> DraftDepths::hopes_of(const Sequence& sequence, std::uint32_t proposer,
                                            std::uint32_t strength) {
    const draft::Beliefs& beliefs =
        sequence.drafting.beliefs[proposer * Proposer::strengths + strength];
    return {beliefs[0].hope(), beliefs[1].hope(), beliefs[2].hope()};
}

draft::RoundCosts DraftDepths::costs_of(std::uint32_t timed) const {
    if (timed == nobody) return {&step_costs_, nullptr, false, draw_seconds_};
    return {&step_costs_, &pass_costs_[timed], proposers_[timed]->one_pass(), draw_seconds_};
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
    if (drafted_run_ >= steps_to_next_plain(gain_, plain_steps_)) {
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
            pass_costs_[proposer].probe(1, guessed_share_of_a_pass * step_costs_.seconds(1));
        }
        list(candidates, proposer);
        const double rate =
            policy_.choose(choices_, costs_of(proposer), drafting, passed_ == proposer);
        if (!asked || rate > best_rate) {
            best_rate = rate;
            best = proposer;
            best_choices_ = choices_;
        }
        asked = true;
    }
    if (!asked) {
        list(candidates, nobody);
        best_rate = policy_.choose(choices_, costs_of(nobody), drafting, false);
        best_choices_ = choices_;
    }
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        const draft::Choice& choice = best_choices_[i];
        (choice.use_timed ? candidates[i].timed : candidates[i].copied) = choice.depth;
    }
    const auto count = static_cast<double>(candidates.size());
    gain_ = best_rate * plain_seconds(count) / count;
    explore(candidates, best);
    deepen(candidates);
    settle(candidates, best);
    return best;
}

// Copies that were cut short, or left out, though they are likely, whole for once: a step of so
// many rows may be cheaper than it is taken for, and nothing else would show it.
void DraftDepths::deepen(std::span<Candidate> candidates) {
    const auto likely = [](const Candidate& candidate, const draft::Choice& choice) {
        std::uint32_t drafts = 0;
        for (double chance = 1; candidate.timed == 0 && drafts < choice.copy.most; ++drafts) {
            chance *= choice.copy.chance(drafts);
            if (chance < least_chance_of_deep) break;
        }
        return drafts;
    };
    bool cut = false;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        cut |= likely(candidates[i], best_choices_[i]) > candidates[i].copied;
    }
    if (!cut || ++shallow_run_ < fewest_before_deep << std::min(deep_steps_, deep_steps_to_know)) {
        return;
    }
    shallow_run_ = 0;
    ++deep_steps_;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        candidates[i].copied =
            std::max(candidates[i].copied, likely(candidates[i], best_choices_[i]));
    }
}

// Drafts that are not expected to pay but may, for all that has been seen, for who has gone without
// the longest.
void DraftDepths::explore(std::span<Candidate> candidates, std::uint32_t timed) {
    const auto idles = [](const Candidate& candidate) {
        return candidate.copied + candidate.timed == 0 &&
               candidate.sequence->drafting.undrafted >= steps_between_tries;
    };
    if (allowance_.seconds() <= 0 || std::none_of(candidates.begin(), candidates.end(), idles)) {
        return;
    }
    list(candidates, timed);
    std::uint32_t drafts = 0;
    bool passes = false;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        drafts += candidates[i].copied + candidates[i].timed;
        passes |= candidates[i].timed > 0;
        if (!idles(candidates[i])) continue;
        const Sequence& sequence = *candidates[i].sequence;
        if (choices_[i].copy.most > 0) {
            choices_[i].copy.chances =
                hopes_of(sequence, sequence.drafting.proposer, sequence.drafting.strength);
        }
        if (choices_[i].timed.most > 0) choices_[i].timed.chances = hopes_of(sequence, timed, 0);
    }
    policy_.choose(choices_, costs_of(timed), true, true);
    std::size_t longest = candidates.size();
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        const auto waited = [&](std::size_t k) {
            return candidates[k].sequence->drafting.undrafted;
        };
        if (idles(candidates[i]) && choices_[i].depth > 0 &&
            (longest == candidates.size() || waited(i) > waited(longest))) {
            longest = i;
        }
    }
    if (longest == candidates.size()) {
        return;
    }
    const std::uint32_t depth = std::min(choices_[longest].depth, drafts_of_a_try);
    const bool pass = choices_[longest].use_timed;
    const auto rows = static_cast<double>(candidates.size() + drafts);
    double cost = step_costs_.seconds(rows + depth) - step_costs_.seconds(rows);
    if (pass && !passes) {
        cost += pass_costs_[timed].seconds(1) * (proposers_[timed]->one_pass() ? 1 : depth) +
                draw_seconds_ * depth;
    }
    if (!allowance_.spend(cost)) {
        return;
    }
    (pass ? candidates[longest].timed : candidates[longest].copied) = depth;
    candidates[longest].sequence->drafting.tried = true;
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
            continue;
        }
        drafting.missed |= ++drafting.undrafted >= patience ? no_gaps : 0;
        for (draft::Beliefs& beliefs : drafting.beliefs) {
            for (Belief& belief : beliefs)
                belief.age();
        }
    }
    drafted_run_ = drafters_ != 0 ? drafted_run_ + 1 : 0;
}

}  // namespace percheron::engine
