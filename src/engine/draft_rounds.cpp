#include "engine/draft_rounds.h"

#include <algorithm>
#include <limits>

#include "core/logging.h"

namespace percheron::engine {
namespace {

// So many drafts of one proposer without a hit are worth a word.
constexpr std::uint32_t hopeless_drafts = 512;

}  // namespace

DraftRounds::DraftRounds(Proposers proposers, const draft::DraftOptions& options,
                         std::vector<TokenId> banned_tokens, Scheduler& scheduler)
    : proposers_(std::move(proposers)),
      options_(options),
      banned_tokens_(std::move(banned_tokens)),
      scheduler_(scheduler),
      windows_(proposers_.size()) {}

std::string DraftRounds::name() const {
    std::string name;
    for (const auto& proposer : proposers_) {
        name += name.empty() ? "" : "+";
        name += proposer->name();
    }
    return name;
}

void DraftRounds::begin(const Sequence& sequence) {
    for (const auto& proposer : proposers_) {
        proposer->begin(*sequence.slot);
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

Status DraftRounds::propose(const StepPlan& plan) {
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
    if (seen_.empty()) {
        return {};
    }
    std::size_t feature = 0;
    for (std::size_t i = 0; i < seen_.size(); ++i) {
        seen_[i].features = std::span(features_).subspan(feature, feature_ends_[i] - feature);
        feature = feature_ends_[i];
    }
    for (std::uint32_t proposer = 0; proposer < proposers_.size(); ++proposer) {
        PERCHERON_TRY(proposers_[proposer]->propose(plan.numeric_class, seen_));
        for (std::size_t i = 0; i < seen_.size(); ++i) {
            if (seen_[i].most > 0 && !seen_[i].drafts->empty()) {
                owners_[i]->drafting.proposer = proposer;
                seen_[i].most = 0;
            }
        }
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
