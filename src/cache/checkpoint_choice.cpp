#include "cache/checkpoint_choice.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace percheron::cache {

namespace {

// A checkpoint among the others of its path.
struct Candidate {
    PrefixBlock* block = nullptr;
    bool between = false;
    std::uint32_t before = 0;   // depth of the one before it, 0: none
    std::uint32_t behind = 0;   // depth of the farthest that comes next behind it
    std::uint32_t deepest = 0;  // depth of the last one behind it

    // Small: little is lost without it.
    double gap_by_distance() const {
        return static_cast<double>(behind - before) / (deepest - block->depth + 1);
    }
};

std::vector<Candidate> candidates(std::span<PrefixBlock* const> held, PrefixBlock& added,
                                  CheckpointKind kind) {
    std::vector<Candidate> result;
    for (PrefixBlock* const block : held) {
        result.push_back({block, block->checkpoint->kind == CheckpointKind::between});
    }
    result.push_back({&added, kind == CheckpointKind::between});
    // Deepest first, so that whoever lies behind is complete before the one before it.
    std::stable_sort(result.begin(), result.end(), [](const Candidate& a, const Candidate& b) {
        return a.block->depth > b.block->depth;
    });
    std::unordered_map<const PrefixBlock*, Candidate*> by_block;
    for (Candidate& candidate : result) {
        candidate.deepest = std::max(candidate.deepest, candidate.block->depth);
        candidate.behind = std::max(candidate.behind, candidate.block->depth);
        by_block.emplace(candidate.block, &candidate);
    }
    for (Candidate& candidate : result) {
        const PrefixBlock* before = candidate.block->parent;
        while (before != nullptr && !before->checkpoint && before != &added) {
            before = before->parent;
        }
        if (before == nullptr) continue;
        Candidate& other = *by_block.at(before);
        candidate.before = before->depth;
        other.deepest = std::max(other.deepest, candidate.deepest);
        other.behind = std::max(other.behind, candidate.block->depth);
    }
    // With nothing behind it a checkpoint is an end, whatever it was made for; the new one is what
    // it is asked for as.
    for (Candidate& candidate : result) {
        const bool last = candidate.deepest == candidate.block->depth;
        if (last && candidate.block != &added) candidate.between = false;
    }
    return result;
}

}  // namespace

PrefixBlock* checkpoint_to_give_up(std::span<PrefixBlock* const> held, PrefixBlock& added,
                                   CheckpointKind kind) {
    const Candidate* thinnest = nullptr;
    const Candidate* oldest = nullptr;
    std::size_t ends = 0;
    const std::vector<Candidate> all = candidates(held, added, kind);
    for (const Candidate& candidate : all) {
        if (candidate.between) {
            const bool thinner = thinnest == nullptr ||
                                 candidate.gap_by_distance() < thinnest->gap_by_distance() ||
                                 (candidate.gap_by_distance() == thinnest->gap_by_distance() &&
                                  candidate.block->used < thinnest->block->used);
            if (thinner) thinnest = &candidate;
        } else if (candidate.block != &added) {
            ++ends;
            if (oldest == nullptr || candidate.block->used < oldest->block->used) {
                oldest = &candidate;
            }
        }
    }
    if (kind == CheckpointKind::between) {
        return thinnest->block == &added ? nullptr : thinnest->block;
    }
    const bool many_ends = 4 * ends > 3 * held.size();
    if (oldest != nullptr && (many_ends || thinnest == nullptr)) return oldest->block;
    return thinnest == nullptr ? nullptr : thinnest->block;
}

}  // namespace percheron::cache
