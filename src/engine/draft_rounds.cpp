#include "engine/draft_rounds.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "core/logging.h"

namespace percheron::engine {
namespace {

// So many drafts of one proposer without a hit are worth a word.
constexpr std::uint32_t hopeless_drafts = 512;

}  // namespace

DraftRounds::DraftRounds(Proposers proposers, const draft::DraftOptions& options,
                         const draft::StepShape& shape, std::vector<TokenId> banned_tokens,
                         Scheduler& scheduler)
    : proposers_(std::move(proposers)),
      options_(options),
      banned_tokens_(std::move(banned_tokens)),
      scheduler_(scheduler),
      windows_(proposers_.size()) {
    if (options_.adaptive) {
        depths_.emplace(proposers_, shape);
    }
}

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

void DraftRounds::forget(CheckpointId checkpoint) {
    for (const auto& proposer : proposers_) {
        proposer->forget(checkpoint);
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
    if (depths_) {
        depths_->begin(sequence);
    }
}

void DraftRounds::count(Sequence& sequence, std::uint32_t drafted, const draft::Verdict& verdict) {
    Drafting& drafting = sequence.drafting;
    drafting.drafts.clear();
    tokens_ += verdict.taken;
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
    if (depths_) {
        depths_->learn(sequence, drafted, verdict);
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

Status DraftRounds::propose(const StepPlan& plan, double seconds, double drawing) {
    const std::uint32_t tokens = std::exchange(tokens_, 0);
    if (depths_ && plan.numeric_class == ops::NumericClass::decode) {
        std::uint32_t rows = 0, sequences = 0;
        for (const PlannedRows& planned : plan.rows) {
            rows += planned.count;
            sequences += planned.wants_token ? 1 : 0;
        }
        depths_->saw_step(rows, std::max(sequences, 1u), tokens, seconds, drawing);
    }
    collect(plan);
    if (seen_.empty()) {
        return {};
    }
    return depths_ ? propose_adaptively(plan.numeric_class) : propose_fixed(plan.numeric_class);
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
    PERCHERON_TRY(propose_copies(step_class));
    choose();
    for (std::uint32_t proposer = 0; proposer < proposers_.size(); ++proposer) {
        if (proposers_[proposer]->takes_time()) {
            PERCHERON_TRY(propose_timed(proposer, step_class));
        }
    }
    return {};
}

Status DraftRounds::propose_copies(ops::NumericClass step_class) {
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
    return {};
}

// Leaves in drafts and passes_ what each sequence shall have in the next step.
void DraftRounds::choose() {
    candidates_.clear();
    places_.clear();
    for (std::size_t i = 0; i < seen_.size(); ++i) {
        if (wanted_[i] > 0) {
            const auto named = static_cast<std::uint32_t>(seen_[i].drafts->size());
            candidates_.push_back({owners_[i], named, wanted_[i]});
            places_.push_back(i);
        }
    }
    timed_ = depths_->choose(candidates_);
    passes_.assign(seen_.size(), 0);
    for (std::size_t k = 0; k < candidates_.size(); ++k) {
        seen_[places_[k]].drafts->resize(candidates_[k].copied);
        passes_[places_[k]] = candidates_[k].timed;
    }
}

// Shows the proposer what it has to see: prompts, whoever drafts with it, and, if it bridges no
// gaps, all that it has not been given up for.
Status DraftRounds::propose_timed(std::uint32_t proposer, ops::NumericClass step_class) {
    const bool every_row = !proposers_[proposer]->bridges_gaps();
    std::uint32_t passes = 0, sequences = 0;
    shown_ = seen_;
    for (std::size_t i = 0; i < shown_.size(); ++i) {
        const bool missed = (owners_[i]->drafting.missed >> proposer & 1u) != 0;
        shown_[i].most = proposer == timed_ ? passes_[i] : 0;
        if (step_class == ops::NumericClass::decode && shown_[i].most == 0 &&
            (missed || !every_row)) {
            shown_[i].rows = 0;
        }
        passes = std::max(passes, shown_[i].most);
        sequences += shown_[i].most > 0 ? 1 : 0;
    }
    const auto start = Clock::now();
    PERCHERON_TRY(proposers_[proposer]->propose(step_class, shown_));
    if (passes > 0 && step_class == ops::NumericClass::decode) {
        const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
        std::uint32_t drafts = 0;
        for (const draft::DraftSequence& shown : shown_)
            drafts += shown.most > 0 ? static_cast<std::uint32_t>(shown.drafts->size()) : 0;
        depths_->saw_passes(proposer, sequences, proposers_[proposer]->one_pass() ? 1 : passes,
                            drafts, seconds);
    }
    return {};
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
