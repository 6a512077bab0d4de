#include "draft/depth_policy.h"

#include <algorithm>

namespace percheron::draft {
namespace {

// What starts must promise so much more than the step without it; passes, whose time is sure and
// whose gain is not, more than copies.
constexpr double margin_to_start = 1.02;
constexpr double margin_to_pass = 1.03;

// What the first `limit` drafts of an offer are worth where each costs `price` tokens.
double worth_of(const Offer& offer, std::uint32_t limit, double price) {
    double worth = 0;
    double chance = 1;
    for (std::uint32_t draft = 0; draft < std::min(offer.most, limit); ++draft) {
        chance *= offer.chance(draft);
        if (chance <= price) break;
        worth += chance - price;
    }
    return worth;
}

}  // namespace

// Everybody's drafts, likeliest first, where the timed proposer has `passes`; each sequence takes
// those of its better proposer.
void DepthPolicy::list(std::span<const Choice> choices, std::uint32_t passes, double price) {
    drafts_.clear();
    timed_.assign(choices.size(), false);
    for (std::uint32_t i = 0; i < choices.size(); ++i) {
        const Choice& choice = choices[i];
        constexpr std::uint32_t no_limit = 0xffffffffu;
        timed_[i] = passes > 0 &&
                    worth_of(choice.timed, passes, price) > worth_of(choice.copy, no_limit, price);
        const Offer& offer = timed_[i] ? choice.timed : choice.copy;
        const std::uint32_t most = timed_[i] ? std::min(offer.most, passes) : offer.most;
        double chance = 1;
        for (std::uint32_t draft = 0; draft < most; ++draft) {
            chance *= offer.chance(draft);
            drafts_.push_back({chance, i});
        }
    }
    std::stable_sort(drafts_.begin(), drafts_.end(),
                     [](const Draft& a, const Draft& b) { return a.chance > b.chance; });
}

DepthPolicy::Round DepthPolicy::best_of(std::span<const Choice> choices, std::uint32_t passes,
                                        double price, const RoundCosts& costs) {
    list(choices, passes, price);
    const auto passing = static_cast<double>(std::count(timed_.begin(), timed_.end(), true));
    double pass_seconds = 0;
    if (passing > 0) {
        pass_seconds = costs.passes->seconds(passing) * (costs.one_pass ? 1 : passes);
    }
    const auto sequences = static_cast<double>(choices.size());
    Round best;
    best.passes = passes;
    double tokens = sequences;
    double draws = sequences;
    for (std::uint32_t drafts = 0; drafts <= drafts_.size(); ++drafts) {
        if (drafts > 0) {
            const Draft& draft = drafts_[drafts - 1];
            tokens += draft.chance;
            draws += draft.chance + (timed_[draft.choice] ? 1 : 0);
        }
        const double rate = tokens / (costs.step->seconds(sequences + drafts, sequences) +
                                      costs.draw * draws + (drafts > 0 ? pass_seconds : 0));
        if (rate > best.rate) {
            best.rate = rate;
            best.drafts = drafts;
        }
    }
    return best;
}

double DepthPolicy::choose(std::span<Choice> choices, const RoundCosts& costs, bool drafting,
                           bool passing) {
    for (Choice& choice : choices) {
        choice.use_timed = false;
        choice.depth = 0;
    }
    if (choices.empty()) {
        return 0;
    }
    const auto sequences = static_cast<double>(choices.size());
    const double plain =
        sequences / (costs.step->seconds(sequences, sequences) + costs.draw * sequences);
    const auto price_at = [&](const Round& round) {
        const double rows = sequences + round.drafts;
        return round.rate * (costs.step->seconds(rows + 1) - costs.step->seconds(rows));
    };
    std::uint32_t deepest = 0;
    for (const Choice& choice : choices) {
        deepest = std::max(deepest, choice.timed.most);
    }
    if (costs.passes == nullptr || !costs.passes->known()) {
        deepest = 0;
    }
    Round best = best_of(choices, 0, 0, costs);
    if (best.rate < (drafting ? 1 : margin_to_start) * plain) {
        best = {plain, 0, 0};
    }
    double price = price_at(best);
    const double to_beat = (passing ? 1.01 : margin_to_pass) * best.rate;
    Round passed;
    for (std::uint32_t passes = 1; passes <= deepest; ++passes) {
        const Round round = best_of(choices, passes, price, costs);
        if (round.rate <= passed.rate) {
            break;  // a further pass would name what is likelier wrong still
        }
        passed = round;
    }
    if (passed.drafts > 0 && passed.rate > to_beat) {
        best = passed;
    }
    list(choices, best.passes, price);
    for (std::uint32_t i = 0; i < best.drafts; ++i) {
        Choice& choice = choices[drafts_[i].choice];
        ++choice.depth;
        choice.use_timed = timed_[drafts_[i].choice];
    }
    return best.rate;
}

}  // namespace percheron::draft
