#include "draft/depth_policy.h"

#include <algorithm>

namespace percheron::draft {
namespace {

// Of a step of one row, before anything else is known.
constexpr double guessed_share_of_a_row = 0.3;
// Rows squared that must have been seen before the guess is outweighed.
constexpr double weight_of_the_guess = 1.0;
constexpr double memory = 0.98;  // the latest fifty steps or so

// Starting to draft must promise so much more than going on with it.
constexpr double margin_to_start = 1.15;

struct Worth {
    std::uint32_t depth = 0;
    double tokens = 0;
    double seconds = 0;
};

// The drafts of `offer` that are worth their places at `rate`.
Worth worth_of(const Offer& offer, double rate, double row_seconds, double margin) {
    Worth worth;
    double chance = offer.first;
    const double seconds = offer.seconds + row_seconds;
    while (worth.depth < offer.most && chance > margin * rate * seconds) {
        ++worth.depth;
        worth.tokens += chance;
        worth.seconds += seconds;
        chance *= offer.later;
    }
    return worth;
}

}  // namespace

void StepCosts::observe(double rows, double seconds) {
    weight_ = memory * weight_ + 1;
    const double share = 1 / weight_;
    const double by_rows = rows - rows_;
    const double by_seconds = seconds - seconds_;
    rows_ += share * by_rows;
    seconds_ += share * by_seconds;
    rows_squared_ = memory * rows_squared_ + (1 - share) * by_rows * by_rows;
    rows_seconds_ = memory * rows_seconds_ + (1 - share) * by_rows * by_seconds;
}

double StepCosts::seconds_per_row() const {
    // A step of `rows_` rows as the guess would have it.
    const double guess =
        guessed_share_of_a_row * seconds_ / (1 + guessed_share_of_a_row * (rows_ - 1));
    const double slope =
        (rows_seconds_ + weight_of_the_guess * guess) / (rows_squared_ + weight_of_the_guess);
    return std::max(slope, 0.0);
}

double StepCosts::seconds(double rows) const {
    // No step is faster than a share of the mean one, whatever the line says.
    return std::max(seconds_ + seconds_per_row() * (rows - rows_), 0.2 * seconds_);
}

void choose_depths(std::span<Choice> choices, const StepCosts& costs) {
    const auto count = static_cast<double>(choices.size());
    const double plain_seconds = costs.seconds(count);
    const double row_seconds = costs.seconds_per_row();
    double rate = count / plain_seconds;
    constexpr int rounds = 4;  // it settles within two or three
    for (int round = 0; round < rounds; ++round) {
        double tokens = count;
        double seconds = plain_seconds;
        for (Choice& choice : choices) {
            const double margin = choice.drafting ? 1.0 : margin_to_start;
            Worth best;
            double best_gain = 0;
            choice.depth = 0;
            for (std::uint32_t i = 0; i < choice.offers.size(); ++i) {
                const Worth worth = worth_of(choice.offers[i], rate, row_seconds, margin);
                const double gain = worth.tokens - rate * worth.seconds;
                if (worth.depth > 0 && gain > best_gain) {
                    best = worth;
                    best_gain = gain;
                    choice.offer = i;
                    choice.depth = worth.depth;
                }
            }
            tokens += best.tokens;
            seconds += best.seconds;
        }
        rate = tokens / seconds;
    }
}

}  // namespace percheron::draft
