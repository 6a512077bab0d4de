#include "engine/draft_rounds.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "core/logging.h"

namespace percheron::engine {
namespace {

// Adaptive depth.  What a sequence starts with of what others have shown, as so many tries, and
// never so little that nothing is tried.
constexpr double tries_of_others = 4;
constexpr double least_hope = 0.4;
// For so many steps without a draft worth its place a proposer that takes time is kept up to date;
// then it is given up for the sequence.  Copies are tried again every so many steps.
constexpr std::uint32_t patience = 6;
// After so many sequences that gave up without one draft, only each so-manieth tries again.
constexpr std::uint32_t disappointments = 3;
constexpr std::uint32_t sequences_between_tries = 16;
constexpr std::uint32_t steps_between_tries = 32;
// Of a step of one row, before a pass has been measured.
constexpr double guessed_share_of_a_pass = 0.15;

// So many drafts of one proposer without a hit are worth a word.
constexpr std::uint32_t hopeless_drafts = 512;

}  // namespace

DraftRounds::DraftRounds(Proposers proposers, const draft::DraftOptions& options,
                         std::vector<TokenId> banned_tokens, Scheduler& scheduler)
    : proposers_(std::move(proposers)),
      options_(options),
      banned_tokens_(std::move(banned_tokens)),
      scheduler_(scheduler),
      windows_(proposers_.size()),
      beliefs_(proposers_.size() * draft::Proposer::strengths,
               {draft::Belief(0.7, 10), draft::Belief(0.6, 10)}) {}

std::string DraftRounds::name() const {
    std::string name;
    for (const auto& proposer : proposers_) {
        name += name.empty() ? "" : "+";
        name += proposer->name();
    }
    return name;
}

void DraftRounds::save(std::span<const StateCopy> copies) {
    for (const StateCopy& copy : copies) {
        for (const auto& proposer : proposers_) {
            proposer->save(copy.slot, copy.position, copy.checkpoint);
        }
    }
}

void DraftRounds::end(const Sequence& sequence) {
    if (!sequence.slot) return;
    for (const auto& proposer : proposers_) {
        proposer->end(*sequence.slot);
    }
}

void DraftRounds::begin(Sequence& sequence, std::optional<CheckpointId> restored) {
    for (const auto& proposer : proposers_) {
        proposer->begin(*sequence.slot);
        if (restored) {
            proposer->resume(*sequence.slot, sequence.computed, *restored);
        }
    }
    if (options_.adaptive) {
        Drafting& drafting = sequence.drafting;
        drafting.beliefs.clear();
        for (const auto& [first, later] : beliefs_) {
            drafting.beliefs.push_back(
                {draft::Belief(std::max(first.chance(), least_hope), tries_of_others),
                 draft::Belief(std::max(later.chance(), least_hope), tries_of_others)});
        }
        drafting.undrafted = 0;
        drafting.retired =
            disappointed_ >= disappointments && ++begun_ % sequences_between_tries != 0;
    }
}

void DraftRounds::count(Sequence& sequence, std::uint32_t drafted, const draft::Verdict& verdict) {
    Drafting& drafting = sequence.drafting;
    drafting.drafts.clear();
    if (drafted == 0) {
        return;
    }
    ++drafting.rounds;
    drafting.drafted += drafted;
    drafting.accepted += verdict.accepted;
    drafting.proposers |= 1u << drafting.proposer;
    if (drafting.accepted_per_position.size() < drafted) {
        drafting.accepted_per_position.resize(drafted);
    }
    for (std::uint32_t i = 0; i < verdict.accepted; ++i) {
        ++drafting.accepted_per_position[i];
    }
    watch(drafting.proposer, drafted, verdict.accepted);
    if (options_.adaptive) {
        learn(sequence, drafted, verdict);
    }
}

void DraftRounds::learn(Sequence& sequence, std::uint32_t drafted, const draft::Verdict& verdict) {
    const Drafting& drafting = sequence.drafting;
    const std::size_t kind = drafting.proposer * draft::Proposer::strengths + drafting.strength;
    // The first that does not hold is a try too, unless the sequence ended before it was looked at.
    const bool failed = verdict.accepted < drafted && !verdict.ended;
    for (std::uint32_t i = 0; i < verdict.accepted + (failed ? 1 : 0); ++i) {
        const bool holds = i < verdict.accepted;
        sequence.drafting.beliefs[kind][i > 0].see(holds);
        beliefs_[kind][i > 0].see(holds);
    }
}

void DraftRounds::watch(std::uint32_t proposer, std::uint32_t drafted, std::uint32_t accepted) {
    Window& window = windows_[proposer];
    window.drafted += drafted;
    window.accepted += accepted;
    if (window.drafted < hopeless_drafts) {
        return;
    }
    const bool hopeless = window.accepted == 0;
    if (hopeless && !window.named) {
        log_warning("the proposer " + std::string(proposers_[proposer]->name()) +
                    " had none of its last " + std::to_string(window.drafted) +
                    " drafts accepted; its weights do not fit this model, or --draft should leave "
                    "it out");
    }
    window = {0, 0, hopeless};
}

// How many drafts the sequence may have in its next step, its pages reserved.
std::uint32_t DraftRounds::most_drafts(Sequence& sequence) {
    const auto size = static_cast<std::uint32_t>(sequence.tokens.size());
    if (!sequence.drafting.wanted || sequence.prefilling() || sequence.computed + 1 != size) {
        return 0;
    }
    // One token comes from the round in any case.
    const std::uint32_t left = sequence.token_limit - sequence.generated() - 1;
    const std::uint32_t wanted = std::min(options_.depth, left);
    return wanted == 0 ? 0 : std::max(scheduler_.reserve(sequence, size + wanted), size) - size;
}

void DraftRounds::add(Sequence& sequence, const PlannedRows& planned, std::uint32_t first_row) {
    draft::DraftSequence seen;
    seen.slot = *sequence.slot;
    seen.prompt_tokens = sequence.prompt_tokens;
    seen.most = most_drafts(sequence);
    seen.tokens = sequence.tokens;
    seen.pages = sequence.pages;
    seen.first = planned.first;
    seen.rows = sequence.computed - planned.first;
    seen.first_row = first_row;
    seen.drafts = &sequence.drafting.drafts;
    seen.drawing.parameters = &sequence.sampling;
    seen.drawing.counts = sequence.counts ? &*sequence.counts : nullptr;
    seen.drawing.banned = banned_tokens_;
    seen.drawing.stops = sequence.stop_tokens;
    seen.drawing.stops_masked_before = sequence.ignore_eos
                                           ? std::numeric_limits<Position>::max()
                                           : sequence.prompt_tokens + sequence.min_tokens;
    seen.drawing.noise = sequence.noise();
    if (sequence.prefilling() || planned.first < sequence.prompt_tokens) {
        for (const SequenceImage& image : sequence.images) {
            // Rows look at the embedding one position further on.
            const Position begin = std::max<Position>(image.place.first, planned.first + 1);
            const Position end =
                std::min<Position>(image.place.first + image.place.count, sequence.computed + 1);
            if (begin >= end) continue;
            const std::size_t hidden = image.features->size() / image.place.count;
            for (Position position = begin; position < end; ++position) {
                features_.push_back(
                    {position, image.features->data() + (position - image.place.first) * hidden});
            }
        }
    }
    seen_.push_back(seen);
    owners_.push_back(&sequence);
    wanted_.push_back(seen.most);
    feature_ends_.push_back(features_.size());
}

void DraftRounds::collect(const StepPlan& plan) {
    seen_.clear();
    owners_.clear();
    features_.clear();
    feature_ends_.clear();
    wanted_.clear();
    std::uint32_t first_row = 0;
    for (const PlannedRows& planned : plan.rows) {
        // What stays of a prompt may be shared with others, who draft.
        const bool prompt = plan.numeric_class == ops::NumericClass::prefill;
        if (planned.sequence != nullptr && (prompt || planned.sequence->drafting.wanted)) {
            add(*planned.sequence, planned, first_row);
        }
        first_row += planned.count;
    }
    std::size_t feature = 0;
    for (std::size_t i = 0; i < seen_.size(); ++i) {
        seen_[i].features = std::span(features_).subspan(feature, feature_ends_[i] - feature);
        feature = feature_ends_[i];
    }
}

Status DraftRounds::propose(const StepPlan& plan, double seconds) {
    if (plan.numeric_class == ops::NumericClass::decode) {
        std::uint32_t rows = 0;
        for (const PlannedRows& planned : plan.rows) {
            rows += planned.count;
        }
        step_costs_.observe(rows, seconds);
    }
    collect(plan);
    if (seen_.empty()) {
        return {};
    }
    return options_.adaptive ? propose_adaptively(plan.numeric_class)
                             : propose_fixed(plan.numeric_class);
}

Status DraftRounds::propose_fixed(ops::NumericClass step_class) {
    for (std::uint32_t proposer = 0; proposer < proposers_.size(); ++proposer) {
        PERCHERON_TRY(proposers_[proposer]->propose(step_class, seen_));
        for (std::size_t i = 0; i < seen_.size(); ++i) {
            if (seen_[i].most > 0 && !seen_[i].drafts->empty()) {
                owners_[i]->drafting.proposer = proposer;
                seen_[i].most = 0;
            }
        }
    }
    return {};
}

// Who costs nothing is asked first; then depths are chosen for all, and the others asked for
// theirs.
Status DraftRounds::propose_adaptively(ops::NumericClass step_class) {
    for (std::uint32_t proposer = 0; proposer < proposers_.size(); ++proposer) {
        if (proposers_[proposer]->takes_time()) {
            continue;
        }
        PERCHERON_TRY(proposers_[proposer]->propose(step_class, seen_));
        for (std::size_t i = 0; i < seen_.size(); ++i) {
            if (seen_[i].most > 0 && !seen_[i].drafts->empty()) {
                owners_[i]->drafting.proposer = proposer;
                owners_[i]->drafting.strength = proposers_[proposer]->strength(seen_[i].slot);
                seen_[i].most = 0;
            }
        }
    }
    choose();
    for (std::uint32_t proposer = 0; proposer < proposers_.size(); ++proposer) {
        if (!proposers_[proposer]->takes_time()) {
            continue;
        }
        std::uint32_t passes = 0;
        for (std::size_t i = 0; i < seen_.size(); ++i) {
            passes = std::max(passes, seen_[i].most);
            if (seen_[i].most > 0) {
                owners_[i]->drafting.proposer = proposer;
                owners_[i]->drafting.strength = 0;
            }
        }
        const auto start = Clock::now();
        PERCHERON_TRY(proposers_[proposer]->propose(step_class, seen_));
        if (passes > 0 && step_class == ops::NumericClass::decode) {
            const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
            const double pass = seconds / passes;
            seconds_a_pass_ = seconds_a_pass_ == 0 ? pass : 0.9 * seconds_a_pass_ + 0.1 * pass;
        }
    }
    return {};
}

draft::Offer DraftRounds::offer_of(const Sequence& sequence, std::uint32_t proposer,
                                   std::uint32_t strength, std::uint32_t most) const {
    const auto& [first, later] =
        sequence.drafting.beliefs[proposer * draft::Proposer::strengths + strength];
    return {first.chance(), later.chance(), most, 0};
}

// Leaves in seen_ and in the drafts there are what each sequence shall have in the next step.
void DraftRounds::choose() {
    choices_.clear();
    choosers_.clear();
    std::uint32_t timed = 0;
    while (timed < proposers_.size() && !proposers_[timed]->takes_time()) {
        ++timed;
    }
    for (std::size_t i = 0; i < seen_.size(); ++i) {
        const Sequence& sequence = *owners_[i];
        if (wanted_[i] == 0) {
            continue;
        }
        draft::Choice choice;
        choice.drafting = sequence.drafting.undrafted == 0;
        const auto named = static_cast<std::uint32_t>(sequence.drafting.drafts.size());
        if (named > 0) {
            choice.offers[0] =
                offer_of(sequence, sequence.drafting.proposer, sequence.drafting.strength, named);
        }
        if (timed < proposers_.size() && !sequence.drafting.retired) {
            choice.offers[1] = offer_of(sequence, timed, 0, wanted_[i]);
        }
        choices_.push_back(choice);
        choosers_.push_back(i);
    }
    // A pass serves all at once.
    const double pass =
        seconds_a_pass_ > 0 ? seconds_a_pass_ : guessed_share_of_a_pass * step_costs_.seconds(1);
    for (draft::Choice& choice : choices_) {
        choice.offers[1].seconds = pass / static_cast<double>(choices_.size());
    }
    if (step_costs_.known()) {
        draft::choose_depths(choices_, step_costs_);
    } else {
        for (draft::Choice& choice : choices_) {
            choice.offer = choice.offers[0].most > 0 ? 0 : 1;
            choice.depth = std::min(choice.offers[choice.offer].most, 1u);
        }
    }
    for (std::size_t k = 0; k < choices_.size(); ++k) {
        draft::Choice& choice = choices_[k];
        draft::DraftSequence& seen = seen_[choosers_[k]];
        Drafting& drafting = owners_[choosers_[k]]->drafting;
        const bool try_again = drafting.undrafted % steps_between_tries == steps_between_tries - 1;
        if (choice.depth == 0 && choice.offers[0].most > 0 && try_again) {
            choice.offer = 0;
            choice.depth = 1;
        }
        drafting.undrafted = choice.depth > 0 ? 0 : drafting.undrafted + 1;
        if (!drafting.retired && drafting.undrafted >= patience) {
            drafting.retired = true;
            ++disappointed_;
        }
        const bool copied = choice.depth > 0 && choice.offer == 0;
        seen.drafts->resize(copied ? choice.depth : 0);
        seen.most = choice.depth > 0 && choice.offer == 1 ? choice.depth : 0;
        if (seen.most > 0) {
            disappointed_ = 0;
        }
    }
    for (std::size_t i = 0; i < seen_.size(); ++i) {
        if (owners_[i]->drafting.retired && !owners_[i]->prefilling() &&
            seen_[i].first >= owners_[i]->prompt_tokens) {
            seen_[i].rows = 0;
        }
    }
}

void DraftRounds::write_statistics(const Sequence& sequence, ChoiceStatistics& statistics) const {
    const Drafting& drafting = sequence.drafting;
    statistics.draft_rounds = drafting.rounds;
    statistics.drafted_tokens = drafting.drafted;
    statistics.accepted_tokens = drafting.accepted;
    statistics.accepted_per_position = drafting.accepted_per_position;
    for (std::uint32_t proposer = 0; proposer < proposers_.size(); ++proposer) {
        if ((drafting.proposers >> proposer & 1u) != 0) {
            statistics.proposer += statistics.proposer.empty() ? "" : "+";
            statistics.proposer += proposers_[proposer]->name();
        }
    }
}

}  // namespace percheron::engine
