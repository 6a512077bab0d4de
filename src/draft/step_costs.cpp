#include "draft/step_costs.h"

#include <algorithm>
#include <cmath>

namespace percheron::draft {
namespace {

// Of a step of one row.
constexpr double share_of_a_row = 0.1;
constexpr double share_of_experts = 0.35;
constexpr double share_of_a_row_without_experts = 0.3;

// What one observation may change; a step the machine was busy in says little, and the prior counts
// as some observations of its own.
constexpr double least_level_gain = 0.03;
constexpr double least_correction_gain = 0.08;
constexpr double prior_steps = 0.3;
constexpr double most_surprise_at_first = 0.7;
constexpr double most_surprise = 0.25;
constexpr double steps_until_known = 4;

// Surprises that are believed: so large, so many in a row; of fast steps one, for a machine with
// other work is slow by accident and never fast.  A number of rows was met lately if it
// was among so many steps.
constexpr double large_surprise = 0.35;
constexpr int slow_to_believe = 6;
constexpr int fast_to_believe = 1;
constexpr double lately = 100;

// How well a number of rows is known, in steps met: so much of that is left after each step of
// others, less after one that refutes it; and what a probe counts, and a guess.
constexpr double memory_of_rows = 0.97;
constexpr double memory_of_refuted_rows = 0.7;
constexpr double weight_of_a_probe = 0.3;
constexpr double weight_of_a_guess = 0.01;

// How far, by the logarithm of rows, a lesson goes before it is worth a third.
constexpr double reach_of_a_lesson = 0.5;

// A row is never taken for less than this share of a step of one row.
constexpr double least_row = 0.01;

double prior(double rows, const StepShape& shape) {
    if (shape.experts <= shape.chosen || shape.chosen <= 0) {
        return 1 + share_of_a_row_without_experts * (rows - 1);
    }
    const double missed = 1 - shape.chosen / shape.experts;
    const double touched = (1 - std::pow(missed, rows)) / (1 - missed);
    return 1 - share_of_a_row - share_of_experts + share_of_a_row * rows +
           share_of_experts * touched;
}

}  // namespace

StepCosts::StepCosts(StepShape shape) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
        nodes_[i].prior = std::log(prior(rows_of_a_node[i], shape));
    }
}

StepCosts::Place StepCosts::place_of(double rows) {
    const auto above = std::upper_bound(rows_of_a_node.begin(), rows_of_a_node.end(), rows);
    const auto below = static_cast<std::size_t>(above - rows_of_a_node.begin());
    const std::size_t low = std::clamp<std::size_t>(below, 1, rows_of_a_node.size() - 1) - 1;
    return {low, (rows - rows_of_a_node[low]) / (rows_of_a_node[low + 1] - rows_of_a_node[low])};
}

double StepCosts::log_relative(double rows, double sequences) const {
    const auto [low, part] = place_of(rows);
    const auto of = [](const Node& node) { return node.prior + node.correction; };
    const double of_rows =
        of(nodes_[low]) + std::min(part, 1.0) * (of(nodes_[low + 1]) - of(nodes_[low]));
    return std::log(std::exp(of_rows) + sequence_share_ * (sequences - 1));
}

// The first step gives the level.
double StepCosts::surprise_of(double rows, double seconds, double sequences) {
    const double relative = log_relative(rows, sequences);
    if (observed_ == 0) level_ = std::log(seconds) - relative;
    return std::log(seconds) - level_ - relative;
}

StepCosts::Node& StepCosts::nearest(double rows) {
    const auto [low, part] = place_of(rows);
    return nodes_[part > 0.5 ? low + 1 : low];
}

void StepCosts::observe(double rows, double seconds, double sequences) {
    if (!(seconds > 0) || rows < 1) {
        return;
    }
    Node& node = nearest(rows);
    if (believes(node, surprise_of(rows, seconds, sequences))) {
        // What was put down to the number of rows meanwhile was no matter of theirs.
        node.correction -= node.put_down;
        move_level(node, node.least + node.put_down);
        node.least = node.put_down = 0;
    }
    const double surprise = surprise_of(rows, seconds, sequences);
    forget(node, surprise);
    node.weight += 1;
    take(node, surprise);
    node.last = observed_;
}

void StepCosts::probe(double rows, double seconds, double sequences) {
    if (seconds > 0 && rows >= 1) {
        nearest(rows).weight += weight_of_a_probe;
        take(nearest(rows), surprise_of(rows, seconds, sequences));
    }
}

// A step of more rows was no slower than others of fewer are held for: the machine was busy when
// they were met.
void StepCosts::forget(const Node& met, double surprise) {
    const double relative = met.prior + met.correction + surprise;
    for (Node& node : nodes_) {
        const bool refuted = &node < &met && node.prior + node.correction > relative;
        node.weight *= refuted ? memory_of_refuted_rows : memory_of_rows;
    }
}

// Whether it is one too many of its kind, in a row with those before it.
bool StepCosts::believes(Node& node, double surprise) const {
    const bool large = std::fabs(surprise) >= large_surprise;
    if (!large || node.alike == 0 || std::signbit(surprise) != std::signbit(node.least)) {
        node.alike = 0;
        node.least = surprise;
        node.put_down = 0;
    }
    if (!large) return false;
    if (std::fabs(surprise) < std::fabs(node.least)) node.least = surprise;
    if (++node.alike < (surprise > 0 ? slow_to_believe : fast_to_believe)) return false;
    node.alike = 0;
    return true;
}

void StepCosts::move_level(const Node& moved, double by) {
    level_ += by;
    ++moves_;
    for (Node& node : nodes_) {
        const bool lately_met = node.last > 0 && observed_ - node.last < lately;
        if (&node != &moved && lately_met) node.correction -= by;
    }
}

void StepCosts::take(Node& node, double surprise) {
    observed_ += 1;
    // Against what was only guessed one step says a good deal.
    const bool guessed = observed_ <= steps_until_known || node.seen == 0;
    const double limit = guessed ? most_surprise_at_first : most_surprise;
    surprise = std::clamp(surprise, -limit, limit);
    const double gain = std::max(least_correction_gain, 1 / (node.seen + 1 + prior_steps));
    node.correction += gain * surprise;
    teach_neighbours(node, gain * surprise);
    if (node.alike > 0) node.put_down += gain * surprise;
    node.seen += 1;
    level_ += std::max(least_level_gain, 1 / observed_) * (1 - gain) * surprise;
    carry_over();
    tabulate();
}

// What a number of rows was wrong by its neighbours are likely wrong by too: rows of drafts may
// take longer than those of the start did, however many they are.
void StepCosts::teach_neighbours(const Node& taught, double by) {
    const auto rows_of = [&](const Node& node) {
        return rows_of_a_node[static_cast<std::size_t>(&node - nodes_.data())];
    };
    for (Node& node : nodes_) {
        if (&node == &taught || node.seen == 0) continue;
        const double distance = std::fabs(std::log(rows_of(node) / rows_of(taught)));
        node.correction += by * std::exp(-distance / reach_of_a_lesson) / (1 + node.weight);
    }
}

// Between two numbers of rows that were seen the correction goes over from one to the other; beyond
// them it stays.
void StepCosts::carry_over() {
    std::size_t before = nodes_.size();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
        if (nodes_[i].seen == 0) continue;
        for (std::size_t k = before == nodes_.size() ? 0 : before + 1; k < i; ++k) {
            if (before == nodes_.size()) {
                nodes_[k].correction = nodes_[i].correction;
                continue;
            }
            const double part = std::log(rows_of_a_node[k] / rows_of_a_node[before]) /
                                std::log(rows_of_a_node[i] / rows_of_a_node[before]);
            nodes_[k].correction = nodes_[before].correction +
                                   part * (nodes_[i].correction - nodes_[before].correction);
        }
        before = i;
    }
    for (std::size_t k = before + 1; k < nodes_.size(); ++k) {
        nodes_[k].correction = nodes_[before].correction;
    }
}

// Beyond what was seen a step grows no faster than towards the largest number of rows that was,
// from one well below it: what rows share is paid for by then.
void StepCosts::tabulate() {
    std::size_t last = 0, before_last = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
        nodes_[i].seconds = std::exp(level_ + nodes_[i].prior + nodes_[i].correction);
        if (nodes_[i].seen > 0) last = i;
    }
    for (std::size_t i = 0; 3 * rows_of_a_node[i] <= 2 * rows_of_a_node[last]; ++i) {
        if (nodes_[i].seen > 0) before_last = i;
    }
    balance(last + 1);
    for (std::size_t i = last + 1; i < nodes_.size(); ++i) {
        double& seconds = nodes_[i].seconds;
        if (nodes_[before_last].seen > 0 && last > before_last) {
            const double row = (nodes_[last].seconds - nodes_[before_last].seconds) /
                               (rows_of_a_node[last] - rows_of_a_node[before_last]);
            seconds = std::min(
                seconds, nodes_[last].seconds + row * (rows_of_a_node[i] - rows_of_a_node[last]));
        }
        const double more = rows_of_a_node[i] - rows_of_a_node[i - 1];
        seconds = std::max(seconds, nodes_[i - 1].seconds + least_row * nodes_[0].seconds * more);
    }
}

// The rising curve nearest to the first nodes' times by their weights (neighbours that fall are
// joined to their mean until nothing falls): a step that looked slow long ago must not lift those
// of more rows that are met now, nor lend them its own time so that drafts look free.
void StepCosts::balance(std::size_t nodes) {
    struct Joined {
        double mean = 0;
        double weight = 0;
        std::size_t end = 0;
    };
    std::array<Joined, rows_of_a_node.size()> joined;
    std::size_t count = 0;
    const double row = least_row * nodes_[0].seconds;
    for (std::size_t i = 0; i < nodes; ++i) {
        joined[count++] = {nodes_[i].seconds - row * rows_of_a_node[i],
                           nodes_[i].weight + weight_of_a_guess, i + 1};
        for (; count > 1 && joined[count - 2].mean > joined[count - 1].mean; --count) {
            const Joined& right = joined[count - 1];
            Joined& left = joined[count - 2];
            const double weight = left.weight + right.weight;
            left = {(left.mean * left.weight + right.mean * right.weight) / weight, weight,
                    right.end};
        }
    }
    std::size_t node = 0;
    for (std::size_t k = 0; k < count; ++k)
        for (; node < joined[k].end; ++node)
            nodes_[node].seconds = joined[k].mean + row * rows_of_a_node[node];
}

double StepCosts::seconds(double rows, double sequences) const {
    const auto [low, part] = place_of(rows);
    return nodes_[low].seconds + part * (nodes_[low + 1].seconds - nodes_[low].seconds) +
           std::exp(level_) * sequence_share_ * (sequences - 1);
}

}  // namespace percheron::draft
